"""Options of guests: what is sent, what is live at once, what waits for a restart, and what is refused."""

import asyncio
from dataclasses import replace

import pytest
from mcp import Client

from quorate.app import build
from quorate.config import Access
from quorate.pve.connection import Password, Secret
from tests.rigs.mcp_session import DrivenTime, pointed_at, rig, text_of

pytestmark = pytest.mark.anyio

VM, STOPPED_VM, CT, STOPPED_CT = 102, 108, 201, 206


def guest(quorate, vmid):
    return quorate.sim.world.guests[vmid]


async def test_a_stopped_vm_takes_everything_at_once(tmp_path):
    async with rig(tmp_path) as quorate:
        facts = await quorate.facts(
            "guest_configure", guest=STOPPED_VM, cores=3, sockets=2, memory="4G", balloon=2048, cpu="host",
            name="renamed", description="new notes", onboot=True, startup="order=3,up=20", protection=True,
            agent=True, options={"ostype": "l26", "tablet": "no"},
        )  # fmt: skip
        config = guest(quorate, STOPPED_VM).config
        assert (config["cores"], config["sockets"], config["memory"], config["balloon"]) == (3, 2, "4096", 2048)
        assert (config["name"], config["description"], config["onboot"]) == ("renamed", "new notes", 1)
        assert (config["startup"], config["protection"], config["tablet"]) == ("order=3,up=20", 1, 0)
        assert str(config["cpu"]).startswith("host")
        assert "waits_for_restart" not in facts
        assert {"cores", "memory", "tablet"} <= set(facts["changed"])
        assert quorate.writes == [("PUT", f"/nodes/pve1/qemu/{STOPPED_VM}/config")]


async def test_a_running_vm_shows_what_is_live_and_what_is_pending(tmp_path):
    async with rig(tmp_path) as quorate:
        facts = await quorate.facts("guest_configure", guest=VM, cores=6, onboot=False)
        assert facts["live"] == ["onboot"]
        assert facts["waits_for_restart"] == {"cores": "6"}
        assert "action=reboot" in facts["next"]
        assert guest(quorate, VM).pending == {"cores": 6}
        await quorate.facts("guest_power", guest=VM, action="reboot")
        assert guest(quorate, VM).config["cores"] == 6


async def test_what_may_be_hot_plugged_is_done_in_a_task(tmp_path):
    async with rig(tmp_path) as quorate:
        facts = await quorate.facts("guest_configure", guest=VM, memory=9000)
        assert ":qmconfig:" in facts["task"]
        assert facts["waits_for_restart"] == {"memory": "9000"}


async def test_a_container_takes_its_name_as_hostname_and_its_limits_live(tmp_path):
    async with rig(tmp_path) as quorate:
        facts = await quorate.facts(
            "guest_configure", guest=CT, name="proxy2", memory="2G", cores=1, options={"swap": 256}
        )
        config = guest(quorate, CT).config
        assert (config["hostname"], config["memory"], config["cores"], config["swap"]) == ("proxy2", 2048, 1, 256)
        assert "waits_for_restart" not in facts


async def test_tags_are_replaced_added_and_removed(tmp_path):
    async with rig(tmp_path) as quorate:
        await quorate.facts("guest_configure", guest=CT, add_tags=["blue", "web"], remove_tags=["prod"])
        assert guest(quorate, CT).config["tags"] == "blue;web"
        await quorate.facts("guest_configure", guest=CT, tags=["one", "two"])
        assert guest(quorate, CT).config["tags"] == "one;two"
        await quorate.facts("guest_configure", guest=CT, tags=[])
        assert "tags" not in guest(quorate, CT).config
        assert "replaces all" in await quorate.refusal("guest_configure", guest=CT, tags=["a"], add_tags=["b"])


async def test_unset_removes_and_revert_drops_what_is_pending(tmp_path):
    async with rig(tmp_path) as quorate:
        await quorate.facts("guest_configure", guest=100, unset=["startup"])
        assert "startup" not in guest(quorate, 100).config
        assert guest(quorate, 104).pending == {"memory": "8192"}
        await quorate.facts("guest_configure", guest=104, revert=["memory"])
        assert guest(quorate, 104).pending == {}
        text = await quorate.refusal("guest_configure", guest=104, revert=["memory"])
        assert "no pending change" in text
        assert "Nothing is pending" in text


async def test_settings_that_are_already_in_place_send_nothing(tmp_path):
    async with rig(tmp_path) as quorate:
        facts = await quorate.facts("guest_configure", guest=STOPPED_VM, cores=1, add_tags=["lab"], unset=["startup"])
        assert facts["result"] == "nothing to do"
        assert facts["unchanged"] == ["cores is already 1", "tags is already lab", "startup is not set"]
        assert quorate.writes == []


async def test_switching_the_agent_on_keeps_its_other_settings_and_a_cpu_type_its_flags(tmp_path):
    async with rig(tmp_path) as quorate:
        config = guest(quorate, STOPPED_VM).config
        config |= {"agent": "enabled=0,fstrim_cloned_disks=1", "cpu": "x86-64-v2-AES,flags=+pcid"}
        await quorate.facts("guest_configure", guest=STOPPED_VM, agent=True, cpu="host")
        assert config["agent"] == "1,fstrim_cloned_disks=1"
        assert config["cpu"] == "host,flags=+pcid"


async def test_the_boot_order_names_devices_that_exist(tmp_path):
    async with rig(tmp_path) as quorate:
        await quorate.facts("guest_configure", guest=STOPPED_VM, boot=["net0", "scsi0"])
        assert guest(quorate, STOPPED_VM).config["boot"] == "order=net0;scsi0"
        text = await quorate.refusal("guest_configure", guest=STOPPED_VM, boot=["scsi7"])
        assert "no device 'scsi7'" in text
        assert "net0, scsi0" in text


async def test_a_disc_is_inserted_and_ejected_again(tmp_path):
    async with rig(tmp_path) as quorate:
        iso = "local:iso/debian-13.1.0-amd64-netinst.iso"
        await quorate.facts("guest_configure", guest=STOPPED_VM, cdrom=iso)
        assert str(guest(quorate, STOPPED_VM).config["ide2"]).startswith(f"{iso},media=cdrom")
        assert (await quorate.facts("guest_configure", guest=STOPPED_VM, cdrom=iso))["result"] == "nothing to do"
        await quorate.facts("guest_configure", guest=STOPPED_VM, cdrom="none")
        assert guest(quorate, STOPPED_VM).config["ide2"] == "none,media=cdrom"
        assert "storage:iso/" in await quorate.refusal("guest_configure", guest=STOPPED_VM, cdrom="debian.iso")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"options": {"net0": "virtio"}}, ["network card", "nic_set"]),
        ({"options": {"scsi1": "local-lvm:8"}}, ["is a disk", "disk_add"]),
        ({"unset": ["scsi0"]}, ["is a disk", "disk_change"]),
        ({"unset": ["unused0"]}, ["detached disk", "disk_destroy"]),
        ({"options": {"sshkeys": "ssh-rsa"}}, ["cloud-init", "cloudinit_set"]),
        ({"options": {"core": 2}}, ["A VM has no option 'core'", "Did you mean 'cores'"]),
        ({"options": {"swap": 512}}, ["A VM has no option 'swap'"]),
        ({"options": {"digest": "x"}}, ["not an option of a guest"]),
        ({"options": {"cores": 2}, "cores": 2}, ["specified twice"]),
        ({"options": {"cores": [2]}}, ["a string, a number or a boolean"]),
        ({"cores": 2, "unset": ["cores"]}, ["set and unset"]),
        ({"memory": "a lot"}, ["'a lot' is not a size", "512M"]),
        ({"cores": 0}, ["cores", "Nothing was sent"]),
        ({"options": {"ostype": "beos"}}, ["ostype", "beos"]),
        ({"memory": 512, "balloon": 1024}, ["balloon=1024 is more than the memory of 512 MiB"]),
        ({}, ["No changes were specified"]),
    ],
)
async def test_what_pve_would_refuse_is_refused_before_it_is_sent(tmp_path, arguments, words):
    async with rig(tmp_path) as quorate:
        await quorate.refuses("guest_configure", words, guest=STOPPED_VM, **arguments)


async def test_a_container_has_no_hardware_of_a_vm(tmp_path):
    async with rig(tmp_path) as quorate:
        assert "container, which has no sockets" in await quorate.refusal("guest_configure", guest=CT, sockets=2)
        text = await quorate.refusal("guest_configure", guest=CT, options={"unprivileged": 0})
        assert "unable to modify read-only option: 'unprivileged'" in text


@pytest.mark.parametrize(("vmid", "tool"), [(STOPPED_VM, "qm"), (STOPPED_CT, "pct")])
async def test_a_locked_guest_is_refused_with_the_next_step(tmp_path, vmid, tool):
    async with rig(tmp_path) as quorate:
        guest(quorate, vmid).config["lock"] = "backup"
        text = await quorate.refusal("guest_configure", guest=vmid, cores=2)
        assert "is locked (backup)" in text
        assert f"{tool} unlock {vmid}" in text
        assert quorate.writes == []


@pytest.mark.parametrize("vmid", [STOPPED_VM, STOPPED_CT])
async def test_a_digest_that_is_out_of_date_is_a_conflict(tmp_path, vmid):
    async with rig(tmp_path) as quorate:
        digest = (await quorate.facts("guest_get", guest=vmid, detail=True))["digest"]
        await quorate.facts("guest_configure", guest=vmid, cores=2, digest=digest, onboot=True)
        text = await quorate.refusal("guest_configure", guest=vmid, cores=3, digest=digest)
        assert "has changed since you read it" in text
        assert guest(quorate, vmid).config["cores"] == 2


@pytest.mark.parametrize("vmid", [STOPPED_VM, STOPPED_CT])
async def test_changes_at_the_same_time_never_overwrite_each_other(tmp_path, vmid):
    async with rig(tmp_path) as quorate:
        tags = [f"t{number}" for number in range(6)]
        answers = await asyncio.gather(*(quorate.call("guest_configure", guest=vmid, add_tags=[tag]) for tag in tags))
        done = {tag for tag, answer in zip(tags, answers, strict=True) if not answer.is_error}
        refused = [text_of(answer) for answer in answers if answer.is_error]
        assert done
        assert done == set(str(guest(quorate, vmid).config["tags"]).split(";")) & set(tags)
        assert all("Someone else changed it" in text for text in refused)


@pytest.mark.parametrize(
    ("vmid", "refusal"),
    [
        (STOPPED_VM, "checksum mismatch (file change by other user?)"),
        (STOPPED_CT, "detected modified configuration - file changed by other user? Try again."),
    ],
)
async def test_a_change_by_someone_else_between_reading_and_writing_is_refused(tmp_path, vmid, refusal):
    async with rig(tmp_path, faults=[f"500:{refusal}:PUT:/nodes/*/config"]) as quorate:
        text = await quorate.refusal("guest_configure", guest=vmid, cores=7)
        assert refusal in text
        assert "read it again, then decide" in text


async def test_more_cpus_than_the_node_has_are_warned_of(tmp_path):
    async with rig(tmp_path) as quorate:
        facts = await quorate.facts("guest_configure", guest=STOPPED_VM, cores=20, dry_run=True)
        assert "20 CPUs, and pve1 has 16" in facts["warnings"][0]


@pytest.mark.parametrize("vmid", [STOPPED_VM, STOPPED_CT])
async def test_a_lost_answer_is_settled_by_looking_at_the_configuration(tmp_path, vmid):
    async with rig(tmp_path, faults=["drop:after:PUT:/nodes/*/*/*/config"]) as quorate:
        facts = await quorate.facts("guest_configure", guest=vmid, cores=4, tags=["b", "a"], description="x")
        assert "effect was found" in facts["note"]
        assert guest(quorate, vmid).config["cores"] == 4
        assert len(quorate.writes) == 1


async def test_a_write_that_never_arrived_is_not_called_done(tmp_path):
    async with rig(tmp_path, faults=["drop:before:PUT:/nodes/*/*/*/config"]) as quorate:
        assert "not known whether" in await quorate.refusal("guest_configure", guest=STOPPED_VM, cores=4)


async def test_a_dry_run_shows_the_call_and_changes_nothing(tmp_path):
    async with rig(tmp_path, access=Access.OPERATE) as quorate:
        facts = await quorate.facts("guest_configure", guest=STOPPED_VM, cores=4, dry_run=True)
        assert "cores=4" in facts["steps"][0]["call"]
        assert quorate.writes == []


@pytest.mark.parametrize("version", ["8.4", "9.2"])
async def test_both_versions_take_the_change(tmp_path, version):
    async with rig(tmp_path, version=version) as quorate:
        await quorate.facts("guest_configure", guest=VM, agent=True, memory="6G", add_tags=["v"], cores=2)
        assert guest(quorate, VM).pending["memory"] == "6144"


@pytest.mark.parametrize("arguments", [{"tags": ["a b"]}, {"add_tags": ["a,b"]}, {"remove_tags": ["a;b"]}])
async def test_a_tag_with_a_separator_in_it_is_refused_and_not_split(tmp_path, arguments):
    async with rig(tmp_path) as quorate:
        before = quorate.writes
        text = await quorate.refusal("guest_configure", guest=CT, **arguments)
        assert "cannot be a tag" in text
        assert "letters, digits" in text
        assert '["a", "b"]' in text
        assert quorate.writes == before


ROOT_ONLY = [
    (STOPPED_VM, {"args": "-device x"}),
    (STOPPED_VM, {"lock": "backup"}),
    (STOPPED_VM, {"hookscript": "local:snippets/x.pl"}),
    (STOPPED_VM, {"hugepages": "2"}),
    (STOPPED_VM, {"affinity": "0-1"}),
    (STOPPED_VM, {"serial1": "/dev/ttyS0"}),
    (STOPPED_VM, {"parallel0": "/dev/parport0"}),
    (STOPPED_VM, {"usb3": "host=1234:5678"}),
    (STOPPED_VM, {"hostpci1": "0000:01:00.0"}),
    (CT, {"hookscript": "local:snippets/x.pl"}),
    (CT, {"dev0": "/dev/ttyS0"}),
    (CT, {"features": "nesting=1,keyctl=1"}),
]


@pytest.mark.parametrize("dry_run", [True, False])
@pytest.mark.parametrize(("vmid", "options"), ROOT_ONLY)
async def test_what_only_root_may_set_is_refused_to_a_token_before_it_is_sent(tmp_path, vmid, options, dry_run):
    async with rig(tmp_path) as quorate:
        before = quorate.writes
        text = await quorate.refusal("guest_configure", guest=vmid, options=options, dry_run=dry_run)
        assert f"may not set {next(iter(options))}" in text
        assert "only root@pam logged in with a password" in text
        assert f"set {vmid} --{next(iter(options))}" in text
        assert quorate.writes == before


async def test_removing_what_only_root_may_set_is_refused_as_well(tmp_path):
    async with rig(tmp_path) as quorate:
        guest(quorate, STOPPED_VM).config["args"] = "-device x"
        assert "only root@pam" in await quorate.refusal("guest_configure", guest=STOPPED_VM, unset=["args"])


@pytest.mark.parametrize("options", [{"serial1": "socket"}, {"usb3": "spice"}, {"vga": "serial0"}])
async def test_devices_that_are_not_of_the_node_are_for_all(tmp_path, options):
    async with rig(tmp_path) as quorate:
        assert (await quorate.facts("guest_configure", guest=STOPPED_VM, options=options))["result"] == "done"


async def test_root_itself_sets_what_only_root_may(tmp_path):
    async with rig(tmp_path) as quorate:
        quorate.sim.world.access.users["root@pam"].password = "quorate"
        login = Password("root@pam", Secret("quorate"))
        settings = replace(quorate.app.settings, clusters=(pointed_at(quorate.sim, credentials=login),))
        app = build(settings, clock=DrivenTime(quorate.clock))
        async with Client(app.server()) as client:
            answer = await client.call_tool("guest_configure", {"guest": STOPPED_VM, "options": {"args": "-S"}})
        await app.close()
        assert not answer.is_error, answer.content
        assert guest(quorate, STOPPED_VM).config["args"] == "-S"
