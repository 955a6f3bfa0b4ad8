"""Defaults that are chosen for the caller are reported, and plans warn about consequences."""

import pytest

from tests.rigs.mcp_session import rig

pytestmark = pytest.mark.anyio

STOPPED, RUNNING, TEMPLATE = 108, 102, 9000
ISO = "debian-13.1.0-amd64-netinst.iso"


async def test_an_iso_boots_before_an_empty_disk_and_the_answer_says_so(tmp_path):
    async with rig(tmp_path) as quorate:
        facts = await quorate.facts("vm_create", name="new", iso=ISO, node="pve1")
        config = quorate.sim.world.guests[facts["vmid"]].config
        assert config["boot"] == "order=ide2;scsi0;net0"
        assert facts["boots_from"] == f"ide2 (local:iso/{ISO}), then scsi0 (empty), then net0"
        assert "warnings" not in facts


async def test_the_caller_may_give_the_boot_order(tmp_path):
    async with rig(tmp_path) as quorate:
        facts = await quorate.facts("vm_create", iso=ISO, boot=["scsi0", "ide2"], node="pve1")
        assert quorate.sim.world.guests[facts["vmid"]].config["boot"] == "order=scsi0;ide2"
        assert facts["boots_from"].startswith("scsi0 (empty), then ide2")
        refusal = await quorate.refusal("vm_create", boot=["sata0"])
        assert "no device 'sata0' to boot from" in refusal
        assert "scsi0" in refusal


async def test_a_new_vm_with_nothing_to_boot_is_warned_of(tmp_path):
    async with rig(tmp_path) as quorate:
        (warning,) = (await quorate.facts("vm_create", dry_run=True))["warnings"]
        assert "nothing to boot" in warning


async def test_starting_a_vm_without_disk_and_iso_warns(tmp_path):
    async with rig(tmp_path) as quorate:
        config = quorate.sim.world.guests[STOPPED].config
        for key in [key for key in config if key.startswith(("scsi0", "ide2"))]:
            del config[key]
        quorate.sim.world.guests[STOPPED].touch()
        await quorate.clock.advance(15)  # until the node has reported it
        (warning,) = (await quorate.facts("guest_power", guest=STOPPED, action="start", dry_run=True))["warnings"]
        assert "neither a disk nor an inserted ISO" in warning
        assert "warnings" not in await quorate.facts("guest_power", guest=107, action="start", dry_run=True)


async def test_disks_go_to_a_local_storage_rather_than_to_the_roomiest_share(tmp_path):
    async with rig(tmp_path) as quorate:
        shares = {name for name, storage in quorate.sim.world.storages.items() if storage.type in ("nfs", "cifs")}
        rows = await quorate.rows("storage_list", node="pve1", content="images")
        roomiest = max(rows, key=lambda row: row["used"]["total"] - row["used"]["used"])
        assert roomiest["storage"] in shares
        for tool, arguments in (("vm_create", {}), ("container_create", {"template": "debian-13"})):
            facts = await quorate.facts(tool, node="pve1", dry_run=True, **arguments)
            assert facts["chosen"]["storage"] not in shares


async def test_a_local_storage_without_room_gives_way_to_a_share(tmp_path):
    async with rig(tmp_path) as quorate:
        facts = await quorate.facts("vm_create", node="pve1", disks=["3600G"], dry_run=True)
        assert quorate.sim.world.storages[facts["chosen"]["storage"]].type == "nfs"


async def test_every_choice_is_reported(tmp_path):
    async with rig(tmp_path) as quorate:
        container = (await quorate.facts("container_create", template="debian-13", dry_run=True))["chosen"]
        assert container["features"] == "nesting=1"
        assert container["swap"] == 512 * 1024**2
        assert container.keys() >= {"template", "storage", "bridge"}
        vm = (await quorate.facts("vm_create", dry_run=True))["chosen"]
        assert vm.keys() >= {"disk", "storage", "bridge", "ostype", "cpu", "network_model"}
        answer = await quorate.facts(
            "container_create", template="debian-13", swap=0, features="nesting=0", dry_run=True
        )
        assert not {"swap", "features"} & answer["chosen"].keys()


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("vm_create", {"node": "pve1", "memory": "500G", "iso": ISO}),
        ("container_create", {"node": "pve1", "memory": "500G", "template": "debian-13", "password": "hunter22"}),
        ("guest_configure", {"guest": STOPPED, "memory": "500G"}),
    ],
)
async def test_a_guest_larger_than_its_node_is_warned_of_in_the_plan(tmp_path, tool, arguments):
    async with rig(tmp_path) as quorate:
        (warning,) = (await quorate.facts(tool, **arguments, dry_run=True))["warnings"]
        assert "500G of memory is more than pve1 has" in warning


async def test_a_backup_that_stops_a_running_guest_is_warned_of(tmp_path):
    async with rig(tmp_path) as quorate:
        (warning,) = (await quorate.facts("backup_create", guest=RUNNING, mode="stop", dry_run=True))["warnings"]
        assert "shut down for their backup" in warning
        assert "docker01" in warning
        for guest, mode in ((RUNNING, "snapshot"), (STOPPED, "stop")):
            assert "warnings" not in await quorate.facts("backup_create", guest=guest, mode=mode, dry_run=True)


async def test_migrating_a_linked_clone_is_warned_of(tmp_path):
    async with rig(tmp_path) as quorate:
        answer = await quorate.facts("guest_clone", guest=9001, name="linked")
        config = quorate.sim.world.guests[answer["vmid"]].config
        config["rootfs"] = "tank:basevol-9001-disk-0/subvol-300-disk-0,size=4G"
        facts = await quorate.facts("guest_migrate", guest=answer["vmid"], node="pve2", dry_run=True)
        assert any("linked clone of basevol-9001-disk-0" in warning for warning in facts["warnings"])


async def test_a_clone_takes_tags_and_a_description(tmp_path):
    async with rig(tmp_path) as quorate:
        facts = await quorate.facts("guest_clone", guest=TEMPLATE, name="web", tags=["b", "a"], description="the web")
        config = quorate.sim.world.guests[facts["vmid"]].config
        assert config["tags"] in ("b;a", "a;b")
        assert str(config["description"]).strip() == "the web"
        bare = await quorate.facts("guest_clone", guest=TEMPLATE, name="bare", tags=[])
        assert not quorate.sim.world.guests[bare["vmid"]].config.get("tags")


async def test_a_change_of_a_stopped_guest_is_not_called_live(tmp_path):
    async with rig(tmp_path) as quorate:
        stopped = await quorate.facts("guest_configure", guest=STOPPED, cores=2)
        assert stopped["changed"] == ["cores"]
        assert stopped["status"] == "stopped"
        assert "live" not in stopped
        assert (await quorate.facts("guest_configure", guest=RUNNING, onboot=False))["live"] == ["onboot"]


async def test_protection_is_shown_and_lists_filter_by_it(tmp_path):
    async with rig(tmp_path) as quorate:
        everyone = await quorate.rows("guest_list", limit=200)
        quorate.sim.world.guests[STOPPED].config["protection"] = 1
        assert (await quorate.facts("guest_get", guest=STOPPED))["protection"] is True
        protected = {row["vmid"] for row in await quorate.rows("guest_list", protection=True)}
        open_to_all = {row["vmid"] for row in await quorate.rows("guest_list", protection=False, limit=200)}
        assert STOPPED in protected
        assert protected | open_to_all == {row["vmid"] for row in everyone}
        assert not protected & open_to_all
