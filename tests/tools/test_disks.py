"""Disks and mount points: add, grow, move, detach, attach, destroy, and what is refused."""

import pytest

from pve_simulator.guests.guest import GIB
from pve_simulator.storage.storages import Volume
from quorate.config import Access
from tests.rigs.mcp_session import rig

pytestmark = pytest.mark.anyio

VM, STOPPED_VM, CT, STOPPED_CT, NFS_VM = 104, 107, 201, 206, 101


def guest(quorate, vmid):
    return quorate.sim.world.guests[vmid]


def volume(quorate, vmid, volid):
    storage = quorate.sim.world.storages[volid.partition(":")[0]]
    return storage.volume(guest(quorate, vmid).node, volid)


def volid_of(quorate, vmid, key):
    return str(guest(quorate, vmid).config[key]).split(",")[0]


# -- add ---------------------------------------------------------------------------------------------------------------


async def test_a_disk_is_made_on_the_bus_of_the_boot_disk_in_a_task(tmp_path):
    async with rig(tmp_path) as quorate:
        facts = await quorate.facts(
            "disk_add", guest=VM, size="10G", storage="local-lvm", options={"ssd": True, "discard": "on"}
        )
        assert facts["disk"] == "scsi1"
        stored = str(guest(quorate, VM).config["scsi1"])
        assert "ssd=1" in stored
        assert "discard=on" in stored
        assert volume(quorate, VM, stored.split(",")[0]).size == 10 * GIB
        assert ":qmconfig:" in facts["task"]
        assert facts["scsi1"] == stored


async def test_sizes_below_a_gibibyte_and_bare_numbers_are_understood(tmp_path):
    async with rig(tmp_path) as quorate:
        await quorate.facts("disk_add", guest=VM, size="512M", disk="virtio")
        await quorate.facts("disk_add", guest=VM, size=3, disk="virtio5")
        config = guest(quorate, VM).config
        assert "size=512M" in config["virtio0"]
        assert "size=3G" in config["virtio5"]


async def test_files_become_qcow2_unless_another_format_is_asked_for(tmp_path):
    async with rig(tmp_path) as quorate:
        facts = await quorate.facts("disk_add", guest=VM, size=1, storage="nas")
        assert facts["format"] == "qcow2"
        assert volid_of(quorate, VM, "scsi1").endswith(".qcow2")
        await quorate.facts("disk_add", guest=VM, size=1, storage="nas", format="raw")
        assert volid_of(quorate, VM, "scsi2").endswith(".raw")
        text = await quorate.refusal("disk_add", guest=VM, size=1, storage="local-lvm", format="qcow2")
        assert "local-lvm (lvmthin) keeps disks as raw, not qcow2" in text


async def test_a_disk_that_cannot_be_plugged_in_waits_for_a_restart(tmp_path):
    async with rig(tmp_path) as quorate:
        facts = await quorate.facts("disk_add", guest=VM, size=1, disk="sata")
        assert "sata0" in facts["waits_for_restart"]
        assert "action=reboot" in facts["next"]


async def test_a_container_gets_a_mount_point(tmp_path):
    async with rig(tmp_path) as quorate:
        await quorate.facts("disk_add", guest=CT, size="4G", storage="tank", path="/data", options={"backup": True})
        stored = str(guest(quorate, CT).config["mp0"])
        assert "mp=/data" in stored
        assert "backup=1" in stored
        assert stored.startswith("tank:subvol-")
        assert "path" in await quorate.refusal("disk_add", guest=CT, size="4G")


async def test_an_image_is_imported_and_grown_to_the_wanted_size(tmp_path):
    async with rig(tmp_path) as quorate:
        source = "local:import/cloud.qcow2"
        image = Volume(source, "import", "qcow2", GIB // 2, GIB // 2, 0, virtual_size=2 * GIB)
        quorate.sim.world.storages["local"].add("pve2", image)
        facts = await quorate.facts("disk_add", guest=STOPPED_VM, import_from=source, size="20G", storage="local-lvm")
        assert [step["state"] for step in facts["steps"]] == ["done", "done"]
        assert "size=20G" in guest(quorate, STOPPED_VM).config["scsi1"]
        text = await quorate.refusal("disk_add", guest=STOPPED_VM, import_from=source, size="1G", storage="local-lvm")
        assert "makes a disk of 2G, more than 1G" in text


@pytest.mark.parametrize("version", ["8.4.1", "9.2.3"])
@pytest.mark.parametrize("storage", ["local-lvm", "nas"])
async def test_firmware_drives_are_such_as_windows_11_wants(tmp_path, version, storage):
    async with rig(tmp_path, version=version) as quorate:
        await quorate.facts("disk_add", guest=STOPPED_VM, disk="tpmstate0", storage=storage)
        await quorate.facts("disk_add", guest=STOPPED_VM, disk="efidisk0", storage=storage)
        config = guest(quorate, STOPPED_VM).config
        assert "version=v2.0" in config["tpmstate0"]
        assert volume(quorate, STOPPED_VM, volid_of(quorate, STOPPED_VM, "tpmstate0")).format == "raw"
        assert {"efitype=4m", "pre-enrolled-keys=1"} < set(str(config["efidisk0"]).split(","))


async def test_options_of_a_firmware_drive_come_before_the_usual_ones(tmp_path):
    async with rig(tmp_path) as quorate:
        await quorate.facts("disk_add", guest=STOPPED_VM, disk="efidisk0", options={"pre-enrolled-keys": False})
        assert "pre-enrolled-keys=0" in guest(quorate, STOPPED_VM).config["efidisk0"]


async def test_btrfs_keeps_disks_raw_however_they_come_to_be(tmp_path):
    async with rig(tmp_path) as quorate:
        quorate.sim.world.storages["nas"].type = "btrfs"
        facts = await quorate.facts("disk_add", guest=VM, size=1, storage="nas")
        assert "format" not in facts
        assert volid_of(quorate, VM, "scsi1").endswith(".raw")
        made = await quorate.facts("vm_create", disks=["nas:1G"], bios="ovmf")
        assert volid_of(quorate, made["vmid"], "scsi0").endswith(".raw")
        for tool, arguments in (
            ("disk_add", {"guest": VM, "size": 1, "storage": "nas", "format": "qcow2"}),
            ("vm_create", {"disks": ["nas:1G,format=qcow2"]}),
        ):
            assert "nas (btrfs) keeps disks as raw, not qcow2" in await quorate.refusal(tool, **arguments)


@pytest.mark.parametrize("version", ["8.4.1", "9.2.3"])
async def test_a_disk_of_an_appliance_archive_is_taken_out_where_files_may_lie(tmp_path, version):
    async with rig(tmp_path, version=version) as quorate:
        archive = Volume("local:import/shop.ova", "import", "ova", GIB, GIB, 0, virtual_size=4 * GIB)
        quorate.sim.world.storages["local"].add("pve2", archive)
        inside = "local:import/shop.ova/shop-disk1.vmdk"
        arguments = {"guest": STOPPED_VM, "storage": "local-lvm"}
        await quorate.facts("disk_add", import_from=inside, size="6G", **arguments)
        assert "size=6G" in guest(quorate, STOPPED_VM).config["scsi1"]
        assert "a disk of 4G, more than 2G" in await quorate.refusal(
            "disk_add", import_from=inside, size="2G", **arguments
        )
        assert f"Give {inside}" in await quorate.refusal("disk_add", import_from=archive.volid, **arguments)
        text = await quorate.refusal("disk_add", import_from=f"{archive.volid}/other.vmdk", **arguments)
        assert "shop.ova has no disk 'other.vmdk'" in text
        assert inside in text


async def test_an_appliance_archive_needs_a_storage_of_files_with_images(tmp_path):
    async with rig(tmp_path) as quorate:
        world = quorate.sim.world
        world.storages["local"].add("pve2", Volume("local:import/shop.ova", "import", "ova", GIB, GIB, 0))
        world.storages["nas"].content = ("backup", "iso")
        inside = "local:import/shop.ova/shop-disk1.vmdk"
        for tool, arguments in (
            ("disk_add", {"guest": STOPPED_VM, "storage": "local-lvm", "import_from": inside}),
            ("vm_create", {"node": "pve2", "disks": [{"import_from": inside, "storage": "local-lvm"}]}),
        ):
            text = await quorate.refusal(tool, **arguments)
            assert "no storage to extract" in text
            assert "image_upload" in text
        world.storages["local"].content += ("images",)
        await quorate.clock.advance(3)  # what was read of the storages is out of date by then
        await quorate.facts("disk_add", guest=STOPPED_VM, storage="local-lvm", import_from=inside)
        assert "size=1G" in guest(quorate, STOPPED_VM).config["scsi1"]


@pytest.mark.parametrize(
    ("vmid", "arguments", "words"),
    [
        (VM, {}, ["size is missing", "32G"]),
        (VM, {"size": 0}, ["is not a size"]),
        (VM, {"size": 1, "disk": "scsi0"}, ["scsi0", "is taken by"]),
        (VM, {"size": 1, "disk": "mp0"}, ["A VM has no disk slot 'mp0'"]),
        (VM, {"size": 1, "storage": "local"}, ["local does not take images", "Storages for images:"]),
        (VM, {"size": 1, "storage": "moon"}, ["no storage 'moon'"]),
        (VM, {"size": "5000G", "storage": "local-lvm"}, ["free, not 4.9T", "force=true"]),
        (VM, {"size": 1, "path": "/x"}, ["containers only"]),
        (VM, {"size": 1, "options": {"shiny": 1}}, ["shiny", "Nothing was sent"]),
        (VM, {"import_from": "/root/disk.img"}, ["Only root@pam", "storage:import/"]),
        (VM, {"import_from": "local:iso/x.img"}, ["imports only images and import content"]),
        (VM, {"import_from": "local:import/x.qcow2"}, ["x.qcow2 cannot be read on", "volume_list storage=local"]),
        (CT, {"size": 1, "path": "/x", "storage": "nas"}, ["nas does not take rootdir"]),
        (CT, {"size": 1, "path": "/x", "format": "qcow2"}, ["does not apply to containers"]),
        (CT, {"size": 1, "path": "/x", "disk": "scsi1"}, ["A container has no disk slot 'scsi1'"]),
    ],
)
async def test_a_disk_that_cannot_be_made_is_refused_with_what_would_go(tmp_path, vmid, arguments, words):
    async with rig(tmp_path) as quorate:
        await quorate.refuses("disk_add", words, guest=vmid, **arguments)


async def test_force_overcommits_a_storage_with_a_warning(tmp_path):
    async with rig(tmp_path) as quorate:
        facts = await quorate.facts("disk_add", guest=VM, size="5000G", storage="local-lvm", force=True, dry_run=True)
        assert "guests stop when it is full" in facts["warnings"][0]


# -- resize ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("vmid", "key"), [(VM, "scsi0"), (CT, "rootfs")])
async def test_a_disk_grows_by_and_to_a_size_and_never_shrinks(tmp_path, vmid, key):
    async with rig(tmp_path) as quorate:
        before = volume(quorate, vmid, volid_of(quorate, vmid, key)).size
        await quorate.facts("disk_change", action="resize", guest=vmid, disk=key, size="+2G")
        assert volume(quorate, vmid, volid_of(quorate, vmid, key)).size == before + 2 * GIB
        facts = await quorate.facts("disk_change", action="resize", guest=vmid, size="100G")
        assert volume(quorate, vmid, volid_of(quorate, vmid, key)).size == 100 * GIB
        assert ":resize:" in facts["task"]
        again = await quorate.facts("disk_change", action="resize", guest=vmid, size="100G")
        assert again["result"] == "nothing to do"
        text = await quorate.refusal("disk_change", action="resize", guest=vmid, size="50G")
        assert "has 100G and cannot be shrunk to 50G" in text
        assert "only grows disks" in text
        assert "disk_add" in text


async def test_growing_says_what_is_left_to_do_inside_a_vm(tmp_path):
    async with rig(tmp_path) as quorate:
        assert (
            "file system inside" in (await quorate.facts("disk_change", action="resize", guest=VM, size="+1G"))["next"]
        )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"disk": "scsi5", "size": "+1G"}, ["no disk 'scsi5'", "It has scsi0"]),
        ({"size": "big"}, ["'big' is not a size"]),
        ({"size": "+9000G"}, ["free, not 8.8T"]),
    ],
)
async def test_a_resize_that_cannot_work_is_refused(tmp_path, arguments, words):
    async with rig(tmp_path) as quorate:
        await quorate.refuses("disk_change", words, action="resize", guest=VM, **arguments)


async def test_a_cd_drive_is_neither_resized_nor_moved(tmp_path):
    async with rig(tmp_path) as quorate:
        guest(quorate, STOPPED_VM).config["ide2"] = "none,media=cdrom"
        assert "cannot be resized" in await quorate.refusal(
            "disk_change", action="resize", guest=STOPPED_VM, disk="ide2", size="+1G"
        )
        text = await quorate.refusal("disk_change", action="move", guest=STOPPED_VM, disk="ide2", storage="nas")
        assert "cannot be moved" in text


async def test_a_file_with_snapshots_cannot_grow_and_they_are_named(tmp_path):
    async with rig(tmp_path) as quorate:
        from pve_simulator.guests.guest import Snapshot

        vm = guest(quorate, NFS_VM)
        vm.snapshots["old"] = Snapshot("old", 1, dict(vm.config))
        vm.config["parent"] = "old"
        text = await quorate.refusal("disk_change", action="resize", guest=NFS_VM, size="+1G")
        assert "The snapshots old need it" in text
        assert "snapshot_delete" in text


async def test_a_task_that_fails_to_resize_is_an_error_with_its_words(tmp_path):
    async with rig(tmp_path, faults=["task-fails:resize:shrinking disks is not supported"]) as quorate:
        assert "shrinking disks is not supported" in await quorate.refusal(
            "disk_change", action="resize", guest=VM, size="+1G"
        )


async def test_a_lost_answer_to_a_resize_is_followed_and_not_sent_again(tmp_path):
    async with rig(tmp_path, faults=["drop:after:PUT:/nodes/*/resize"]) as quorate:
        before = volume(quorate, VM, volid_of(quorate, VM, "scsi0")).size
        facts = await quorate.facts("disk_change", action="resize", guest=VM, size="+1G")
        assert facts["result"] == "done"
        assert volume(quorate, VM, volid_of(quorate, VM, "scsi0")).size == before + GIB
        assert len(quorate.writes) == 1


# -- move --------------------------------------------------------------------------------------------------------------


async def test_a_vm_disk_moves_while_it_runs_and_the_source_goes(tmp_path):
    async with rig(tmp_path) as quorate:
        old = volid_of(quorate, VM, "scsi0")
        facts = await quorate.facts("disk_change", action="move", guest=VM, disk="scsi0", storage="nas", format="qcow2")
        new = volid_of(quorate, VM, "scsi0")
        assert new.startswith("nas:")
        assert volume(quorate, VM, old) is None
        assert facts["scsi0"].startswith(new)


async def test_the_source_can_be_kept(tmp_path):
    async with rig(tmp_path) as quorate:
        old = volid_of(quorate, STOPPED_CT, "rootfs")
        await quorate.facts("disk_change", action="move", guest=STOPPED_CT, disk="rootfs", storage="local-lvm")
        assert volid_of(quorate, STOPPED_CT, "rootfs") == old  # it already exists
        old = volid_of(quorate, STOPPED_VM, "scsi0")
        await quorate.facts("disk_change", action="move", guest=STOPPED_VM, disk="scsi0", storage="tank", delete=False)
        assert guest(quorate, STOPPED_VM).config["unused0"] == old


async def test_a_container_volume_moves_when_it_is_off(tmp_path):
    async with rig(tmp_path) as quorate:
        text = await quorate.refusal("disk_change", action="move", guest=CT, disk="rootfs", storage="tank")
        assert "only the volumes of stopped containers" in text
        assert "action=shutdown" in text
        await quorate.facts("guest_power", guest=CT, action="shutdown")
        await quorate.facts("disk_change", action="move", guest=CT, disk="rootfs", storage="tank")
        assert volid_of(quorate, CT, "rootfs").startswith("tank:")


async def test_a_move_to_the_wrong_or_a_full_storage_is_refused(tmp_path):
    async with rig(tmp_path) as quorate:
        space = quorate.sim.world.storages["tank"].space("pve2")
        space.base_used = space.total - GIB
        await quorate.clock.advance(10)
        text = await quorate.refusal("disk_change", action="move", guest=VM, disk="scsi0", storage="tank")
        assert "free, not 60G" in text
        assert "force" not in text
        assert "does not take images" in await quorate.refusal(
            "disk_change", action="move", guest=VM, disk="scsi0", storage="local"
        )


async def test_a_disk_in_a_snapshot_moves_only_if_the_source_stays(tmp_path):
    async with rig(tmp_path) as quorate:
        text = await quorate.refusal("disk_change", action="move", guest=108, disk="scsi0", storage="tank")
        assert "clean, configured" in text
        assert "delete=false" in text
        await quorate.facts("disk_change", action="move", guest=108, disk="scsi0", storage="tank", delete=False)
        assert volid_of(quorate, 108, "scsi0").startswith("tank:")


# -- detach, attach, destroy -------------------------------------------------------------------------------------------


async def test_a_disk_is_detached_attached_and_destroyed(tmp_path):
    async with rig(tmp_path) as quorate:
        await quorate.facts("disk_add", guest=VM, size=1, storage="local-lvm")
        volid = volid_of(quorate, VM, "scsi1")
        facts = await quorate.facts("disk_change", action="detach", guest=VM, disk="scsi1")
        assert facts["kept_as"] == "unused0"
        assert "unmount " in facts["warnings"][0]
        assert guest(quorate, VM).config["unused0"] == volid
        facts = await quorate.facts("disk_change", action="attach", guest=VM, slot="virtio")
        assert facts["disk"] == "virtio0"
        config = guest(quorate, VM).config
        assert str(config["virtio0"]).startswith(volid)
        assert "unused0" not in config
        facts = await quorate.facts("disk_destroy", guest=VM, disk="virtio0")
        assert volid in facts["plan"]
        assert volume(quorate, VM, volid) is None
        assert "virtio0" not in guest(quorate, VM).config


async def test_a_mount_point_is_detached_and_attached_elsewhere(tmp_path):
    async with rig(tmp_path) as quorate:
        await quorate.facts("disk_add", guest=STOPPED_CT, size=1, path="/a", storage="local-lvm")
        volid = volid_of(quorate, STOPPED_CT, "mp0")
        text = await quorate.refusal("disk_destroy", guest=STOPPED_CT, disk="mp0")
        assert "action=detach disk=mp0" in text
        detached = await quorate.facts("disk_change", action="detach", guest=STOPPED_CT, disk="mp0")
        assert detached["kept_as"] == "unused0"
        assert "action=attach disk=unused0" in detached["next"]
        await quorate.facts("disk_change", action="attach", guest=STOPPED_CT, disk="unused0", path="/b")
        assert "mp=/b" in guest(quorate, STOPPED_CT).config["mp0"]
        assert "unused0" not in guest(quorate, STOPPED_CT).config
        await quorate.facts("disk_change", action="detach", guest=STOPPED_CT, disk="mp0")
        await quorate.facts("disk_destroy", guest=STOPPED_CT, disk="unused0")
        assert volume(quorate, STOPPED_CT, volid) is None


async def test_the_boot_disk_is_guarded(tmp_path):
    async with rig(tmp_path) as quorate:
        for tool, action in (("disk_change", {"action": "detach"}), ("disk_destroy", {})):
            text = await quorate.refusal(tool, guest=STOPPED_VM, disk="scsi0", **action)
            assert "boots from it" in text
            assert "force=true" in text
            assert "rootfs" in await quorate.refusal(tool, guest=STOPPED_CT, disk="rootfs", force=True, **action)
        assert quorate.writes == []
        await quorate.facts("disk_change", action="detach", guest=STOPPED_VM, disk="scsi0", force=True)
        facts = await quorate.facts("disk_change", action="attach", guest=STOPPED_VM)
        assert "boot=[scsi0]" in facts["next"]


async def test_a_protected_guest_keeps_its_disks(tmp_path):
    async with rig(tmp_path) as quorate:
        guest(quorate, 207).config["unused0"] = "local-lvm:vm-207-disk-9"
        text = await quorate.refusal("disk_destroy", guest=207, disk="unused0")
        assert "is protected" in text
        assert "protection=false" in text
        assert "is protected" in await quorate.refusal(
            "disk_change", action="detach", guest=109, disk="scsi0", force=True
        )


async def test_a_disk_that_a_snapshot_needs_is_not_destroyed(tmp_path):
    async with rig(tmp_path) as quorate:
        await quorate.facts("disk_change", action="detach", guest=108, disk="scsi0", force=True)
        text = await quorate.refusal("disk_destroy", guest=108, disk="unused0")
        assert "need it" in text


async def test_attaching_names_what_there_is(tmp_path):
    async with rig(tmp_path) as quorate:
        assert "no detached disk" in await quorate.refusal("disk_change", action="attach", guest=VM)
        guest(quorate, VM).config |= {"unused0": "local-lvm:a", "unused1": "local-lvm:b"}
        assert "unused1 (local-lvm:b)" in await quorate.refusal("disk_change", action="attach", guest=VM)
        assert "no detached disk 'unused7'" in await quorate.refusal(
            "disk_change", action="attach", guest=VM, disk="unused7"
        )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"action": "attach", "size": "+1G"}, ["size cannot be combined with action=attach", "It is for resize"]),
        ({"action": "attach", "force": False}, ["force cannot be combined with action=attach", "detach and resize"]),
        (
            {"action": "detach", "disk": "scsi0", "delete": False},
            ["delete cannot be combined with action=detach", "move"],
        ),
        (
            {"action": "move", "disk": "scsi0", "storage": "nas", "slot": "scsi1"},
            ["slot cannot be combined with action=move"],
        ),
        ({"action": "resize", "size": "+1G", "storage": "nas"}, ["storage cannot be combined with action=resize"]),
        ({"action": "resize"}, ["action=resize needs size", "+10G"]),
        ({"action": "move", "disk": "scsi0"}, ["action=move needs storage"]),
        ({"action": "move", "storage": "nas"}, ["No disk of", "was specified", "It has scsi0"]),
        ({"action": "detach"}, ["No disk of", "was specified", "It has scsi0"]),
    ],
)
async def test_every_action_takes_only_what_belongs_to_it(tmp_path, arguments, words):
    async with rig(tmp_path) as quorate:
        text = await quorate.refusal("disk_change", guest=VM, **arguments)
        assert all(word in text for word in words), text
        assert quorate.writes == []


async def test_destroying_needs_the_access_level_for_it(tmp_path):
    async with rig(tmp_path, access=Access.OPERATE) as quorate:
        assert "--access admin" in await quorate.refusal("disk_destroy", guest=VM, disk="scsi0", force=True)


async def test_a_cd_drive_holds_nothing_to_destroy_but_can_be_taken_out(tmp_path):
    async with rig(tmp_path) as quorate:
        guest(quorate, STOPPED_VM).config["ide2"] = "none,media=cdrom"
        assert "no data of its own" in await quorate.refusal("disk_destroy", guest=STOPPED_VM, disk="ide2")
        await quorate.facts("disk_change", action="detach", guest=STOPPED_VM, disk="ide2")
        assert "ide2" not in guest(quorate, STOPPED_VM).config


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("disk_add", {"size": 1}),
        ("disk_change", {"action": "resize", "size": "+1G"}),
        ("disk_change", {"action": "move", "disk": "scsi0", "storage": "tank"}),
        ("disk_change", {"action": "detach", "disk": "scsi0"}),
        ("disk_change", {"action": "attach"}),
        ("disk_destroy", {"disk": "scsi0"}),
    ],
)
async def test_a_locked_guest_keeps_its_disks_as_they_are(tmp_path, tool, arguments):
    async with rig(tmp_path, faults=[f"locked:{STOPPED_VM}:migrate"]) as quorate:
        assert "is locked (migrate)" in await quorate.refusal(tool, guest=STOPPED_VM, **arguments)


@pytest.mark.parametrize("version", ["8.4", "9.2"])
async def test_both_versions_take_every_call(tmp_path, version):
    async with rig(tmp_path, version=version) as quorate:
        await quorate.facts("disk_add", guest=STOPPED_VM, size=1, storage="nas")
        await quorate.facts("disk_change", action="resize", guest=STOPPED_VM, disk="scsi1", size="2G")
        await quorate.facts("disk_change", action="move", guest=STOPPED_VM, disk="scsi1", storage="tank")
        await quorate.facts("disk_change", action="detach", guest=STOPPED_VM, disk="scsi1")
        await quorate.facts("disk_destroy", guest=STOPPED_VM, disk="unused0")
        await quorate.facts("disk_add", guest=STOPPED_CT, size=1, path="/a")
        await quorate.facts("disk_change", action="resize", guest=STOPPED_CT, disk="mp0", size="+1G")


async def test_a_mount_point_whose_answer_is_lost_is_found(tmp_path):
    async with rig(tmp_path, faults=["drop:after:PUT:/nodes/*/lxc/*/config"]) as quorate:
        facts = await quorate.facts("disk_add", guest=STOPPED_CT, size=1, path="/a")
        assert "effect was found" in facts["note"]
        assert len(quorate.writes) == 1


@pytest.mark.parametrize("cut", ["drop:after", "drop:mid", "596"])
async def test_a_disk_whose_answer_is_lost_is_made_once(tmp_path, cut):
    async with rig(tmp_path, faults=[f"{cut}:POST:/nodes/*/qemu/*/config"]) as quorate:
        answer = await quorate.call("disk_add", guest=VM, size=1)
        made = [key for key in guest(quorate, VM).config if key.startswith("scsi") and key[4:].isdecimal()]
        assert len(quorate.writes) == 1
        assert answer.is_error == (made == ["scsi0"])
