"""Changing the configuration of guests: at once, pending, reverted, refused."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pve_simulator.api_client import Api, Reply
from pve_simulator.cluster.datacenter import Datacenter
from pve_simulator.guests.guest import Guest
from pve_simulator.routes.replication import Replication, ReplicationJob
from simulator.consistency import at_rest
from simulator.guest_steps import CT, VM, config, create_container, create_vm, pending, put, role, user, volume

_TEST_VM = f"{VM}/108"  # stopped, one disk on local-lvm
_HOME = f"{VM}/101"  # running
_PIHOLE = f"{CT}/200"  # running


def _guest(api: Api, vmid: int) -> Guest:
    return api.cluster.world.guests[vmid]


def _refusal(reply: Reply) -> Any:
    return reply.errors if reply.status == 400 else reply.reason


async def test_a_stopped_vm_takes_everything_at_once(api: Api) -> None:
    before = (await config(api, _TEST_VM))["digest"]
    reply = await put(api, f"{_TEST_VM}/config", memory=4096, cores=3, description="new ", tags="B;a b")
    stored = await config(api, _TEST_VM)
    assert reply.body == {"data": None}
    assert (stored["memory"], stored["cores"]) == ("4096", 3)
    assert (stored["description"], stored["tags"]) == ("new", "a;b")
    assert stored["digest"] != before
    assert await pending(api, _TEST_VM) == {}


async def test_a_running_vm_keeps_what_it_cannot_change_pending_until_it_was_off(api: Api) -> None:
    await put(api, f"{_HOME}/config", memory=8192, name="new-name", delete="agent")
    waiting = await pending(api, _HOME)
    assert waiting["memory"] == {"key": "memory", "value": "4096", "pending": "8192"}
    assert waiting["agent"] == {"key": "agent", "value": "1", "delete": 1}
    assert "name" not in waiting
    assert (await config(api, _HOME))["memory"] == "8192"
    assert (await config(api, _HOME, current=1))["memory"] == "4096"
    _guest(api, 101).stop_running()
    stored = await config(api, _HOME, current=1)
    assert stored["memory"] == "8192"
    assert "agent" not in stored


async def test_a_pending_change_can_be_reverted(api: Api) -> None:
    await put(api, f"{_HOME}/config", memory=8192, delete="agent")
    reply = await put(api, f"{_HOME}/config", revert="memory,agent")
    assert reply.status == 200
    assert await pending(api, _HOME) == {}


@pytest.mark.parametrize(
    ("options", "waits"),
    [
        ({"scsi1": "local-lvm:1"}, False),
        ({"virtio1": "local-lvm:1"}, False),
        ({"ide3": "local-lvm:1"}, True),
        ({"net1": "virtio,bridge=vmbr0"}, False),
        ({"cpulimit": "1.5"}, False),
        ({"cores": "4"}, True),
        ({"bios": "seabios"}, True),
        ({"balloon": "1024"}, False),
        ({"balloon": "0"}, True),
        ({"ciuser": "me"}, False),
        ({"delete": "net0"}, False),
        ({"delete": "scsihw"}, True),
    ],
)
async def test_hotplug_decides_what_a_running_vm_takes(api: Api, options: dict[str, str], waits: bool) -> None:
    reply = await put(api, f"{_HOME}/config", **options)
    waiting = set(await pending(api, _HOME)) - {"boot"}
    assert reply.status == 200, reply.text
    assert bool(waiting) == waits


async def test_without_hotplug_everything_waits(api: Api) -> None:
    await put(api, f"{_HOME}/config", hotplug="0")
    await put(api, f"{_HOME}/config", scsi1="nas:1", net1="virtio,bridge=vmbr0")
    assert set(await pending(api, _HOME)) == {"scsi1", "net1"}
    await put(api, f"{_HOME}/config", revert="scsi1")
    stored = await config(api, _HOME)
    assert "scsi1" not in stored
    assert stored["unused0"] == "nas:101/vm-101-disk-1.raw"
    assert list(at_rest(api.cluster.world)) == []


async def test_a_bridge_that_is_not_there_cannot_be_plugged_in(api: Api) -> None:
    reply = await put(api, f"{_HOME}/config", net1="virtio,bridge=vmbr9")
    assert reply.errors == {"net1": "hotplug problem - bridge 'vmbr9' does not exist\n"}


async def test_a_detached_disk_stays_unused_until_it_is_destroyed(api: Api) -> None:
    await put(api, f"{_TEST_VM}/config", scsi1="local-lvm:0.2,cache=writeback")
    added = (await config(api, _TEST_VM))["scsi1"]
    await put(api, f"{_TEST_VM}/config", delete="scsi1")
    detached = await config(api, _TEST_VM)
    await put(api, f"{_TEST_VM}/config", delete="unused0")
    destroyed = await config(api, _TEST_VM)
    assert added == "local-lvm:vm-108-disk-1,cache=writeback,size=208M"
    assert "scsi1" not in detached
    assert detached["unused0"] == "local-lvm:vm-108-disk-1"
    assert "unused0" not in destroyed
    assert volume(api, "local-lvm:vm-108-disk-1") is None
    assert list(at_rest(api.cluster.world)) == []


async def test_force_removes_the_disk_together_with_the_drive(api: Api) -> None:
    await put(api, f"{_TEST_VM}/config", scsi1="local-lvm:1")
    await put(api, f"{_TEST_VM}/unlink", idlist="scsi1", force=1)
    stored = await config(api, _TEST_VM)
    assert "scsi1" not in stored
    assert "unused0" not in stored
    assert volume(api, "local-lvm:vm-108-disk-1") is None


async def test_a_disk_that_a_snapshot_needs_is_not_destroyed(api: Api) -> None:
    await put(api, f"{_TEST_VM}/config", delete="scsi0")
    reply = await put(api, f"{_TEST_VM}/config", delete="unused0")
    assert reply.reason == "unable to delete 'local-lvm:vm-108-disk-0' - volume is still in use (snapshot?)"


async def test_a_replaced_disk_stays_unused_and_can_come_back(api: Api) -> None:
    await put(api, f"{_TEST_VM}/config", scsi0="local-lvm:1")
    stored = await config(api, _TEST_VM)
    assert stored["scsi0"] == "local-lvm:vm-108-disk-1,size=1G"
    assert stored["unused0"] == "local-lvm:vm-108-disk-0"
    await put(api, f"{_TEST_VM}/config", scsi1="local-lvm:vm-108-disk-0")
    assert (await config(api, _TEST_VM))["scsi1"] == "local-lvm:vm-108-disk-0,size=8G"


async def test_the_boot_order_follows_the_drives(api: Api) -> None:
    await put(api, f"{_TEST_VM}/config", ide2="none,media=cdrom")
    with_cdrom = (await config(api, _TEST_VM))["boot"]
    await put(api, f"{_TEST_VM}/config", delete="scsi0")
    without_disk = (await config(api, _TEST_VM))["boot"]
    unknown = await put(api, f"{_TEST_VM}/config", boot="order=scsi7")
    assert with_cdrom == "order=scsi0;net0;ide2"
    assert without_disk == "order=net0;ide2"
    assert (unknown.status, unknown.reason) == (500, "invalid bootorder: device 'scsi7' does not exist'")


async def test_the_asynchronous_way_gives_a_task_or_waits_for_it(api: Api) -> None:
    reply = await api.post(f"{_TEST_VM}/config", cores=2, cipassword="secret123")
    assert ":qmconfig:108:" in reply.data
    assert await api.finish_task(reply) == "OK"
    log = [row["t"] for row in (await api.log(reply.data)).data]
    assert log[0] == "update VM 108: -cipassword <hidden> -cores 2"
    assert (await config(api, _TEST_VM))["cipassword"] == "**********"


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        ({}, "no options specified"),
        ({"delete": "nosuch"}, {"delete": "unknown option 'nosuch'"}),
        ({"revert": "nosuch"}, {"revert": "unknown option 'nosuch'"}),
        ({"delete": "scsi1", "scsi1": "local-lvm:1"},
         {"delete": "you can't use '-scsi1' and -delete scsi1' at the same time"}),
        ({"memory": "512", "digest": "0" * 40}, "checksum mismatch (file change by other user?)"),
        ({"memory": "512", "balloon": "1024"}, "balloon value too large (must be smaller than assigned memory)"),
        ({"args": "-foo"}, "only root can set 'args' config"),
        ({"serial0": "/dev/ttyS0"}, "only root can set 'serial0' config for real devices"),
        ({"hostpci0": "host=00:02"}, "only root can set 'hostpci0' config for non-mapped devices"),
        ({"memory": "512", "skiplock": "1"}, {"skiplock": "Only root may use this option."}),
        ({"ide2": "local:iso/nope.iso,media=cdrom"}, "volume 'local:iso/nope.iso' does not exist"),
        ({"scsi1": "local:8"}, {"storage": "storage 'local' does not support vm images"}),
        ({"virtio1": "none,media=cdrom"}, {"virtio1": "unable to parse drive options"}),
        ({"ide2": "none,media=cdrom,format=raw"}, {"ide2": "unable to parse drive options"}),
        ({"scsi1": "local-lvm:1,mbps=1,mbps_rd=1"}, {"scsi1": "unable to parse drive options"}),
        ({"scsi1": "local-lvm:1,mbps_max=1"}, {"scsi1": "unable to parse drive options"}),
        ({"hotplug": "disk,fan"}, {"hotplug": "invalid format - invalid hotplug feature 'fan'\n"}),
        ({"watchdog": "ib700,action=bark"},
         {"watchdog": "invalid format - format error\nwatchdog.action: value 'bark' does not have a value in the"
          " enumeration 'reset, shutdown, poweroff, pause, debug, none'\n"}),
    ],
)  # fmt: skip
async def test_changes_of_a_vm_that_are_refused(api: Api, options: dict[str, str], refused: Any) -> None:
    before = await config(api, _TEST_VM)
    assert _refusal(await put(api, f"{_TEST_VM}/config", **options)) == refused
    assert await config(api, _TEST_VM) == before
    assert list(at_rest(api.cluster.world)) == []


async def test_unset_options_can_be_deleted_without_effect(api: Api) -> None:
    assert (await put(api, f"{_TEST_VM}/config", delete="vga")).body == {"data": None}


async def test_locks_missing_guests_and_protection(api: Api) -> None:
    api.cluster.faults.lock(108, "backup")
    locked = await put(api, f"{_TEST_VM}/config", memory=512)
    api.cluster.faults.lock(200, "backup")
    container = await put(api, f"{_PIHOLE}/config", memory=512)
    missing = await put(api, f"{VM}/999/config", memory=512)
    protected = await put(api, "/nodes/pve3/qemu/109/config", delete="scsi0")
    assert locked.reason == "VM is locked (backup)"
    assert container.reason == "CT is locked (backup)"
    assert missing.reason == "Configuration file 'nodes/pve1/qemu-server/999.conf' does not exist"
    assert protected.reason == "can't remove drive 'scsi0' - protection mode enabled"


@pytest.mark.parametrize(
    ("privilege", "options"),
    [
        ("VM.Config.CPU", {"cores": "2"}),
        ("VM.Config.Memory", {"memory": "512"}),
        ("VM.Config.HWType", {"vga": "std"}),
        ("VM.Config.Options", {"name": "other"}),
        ("VM.Config.Options", {"tags": "x"}),
        ("VM.Config.Network", {"nameserver": "1.1.1.1"}),
        ("VM.Config.CDROM", {"ide2": "none,media=cdrom"}),
        ("VM.Config.Disk", {"delete": "scsi0"}),
    ],
)
async def test_every_option_has_its_privilege(api: Api, privilege: str, options: dict[str, str]) -> None:
    other = "VM.Config.Memory" if privilege == "VM.Config.CPU" else "VM.Config.CPU"
    eve = user(api, ("/vms/108", role(api, "Other", other)))
    refused = await put(eve, f"{_TEST_VM}/config", **options)
    api.cluster.world.access.grant("/vms/108", role(api, "Right", privilege), "eve@pve")
    allowed = await put(eve, f"{_TEST_VM}/config", **options)
    assert refused.status == 403
    assert allowed.status == 200, allowed.text


async def test_a_running_container_takes_memory_and_network_at_once(api: Api) -> None:
    reply = await put(api, f"{_PIHOLE}/config", memory=768, description="hello", net1="name=eth1,bridge=vmbr0,ip=dhcp")
    stored = await config(api, _PIHOLE)
    assert reply.body == {"data": None}
    assert (stored["memory"], stored["description"]) == (768, "hello\n")
    assert await pending(api, _PIHOLE) == {}
    assert {address.interface for address in _guest(api, 200).addresses} == {"eth0", "eth1"}


async def test_a_running_container_waits_with_the_rest(api: Api) -> None:
    await put(api, f"{_PIHOLE}/config", features="nesting=1,keyctl=0", tty=1)
    await put(api, f"{_PIHOLE}/config", mp0="local-lvm:1,mp=/data")
    assert set(await pending(api, _PIHOLE)) == {"tty"} | (
        {"features"} if (await config(api, _PIHOLE, current=1))["features"] == "nesting=1" else set()
    )
    assert (await config(api, _PIHOLE, current=1))["mp0"] == "local-lvm:vm-200-disk-1,mp=/data,size=1G"


async def test_a_removed_mount_point_leaves_its_volume_unused(api: Api) -> None:
    await create_container(api, mp0="local-lvm:1,mp=/data")
    await put(api, f"{CT}/500/config", delete="mp0")
    stored = await config(api, f"{CT}/500")
    assert stored["unused0"] == "local-lvm:vm-500-disk-1"
    await put(api, f"{CT}/500/config", delete="unused0")
    assert volume(api, "local-lvm:vm-500-disk-1") is None
    assert list(at_rest(api.cluster.world)) == []


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        ({}, "no options specified"),
        ({"delete": "rootfs"}, "unable to delete required option 'rootfs'"),
        ({"delete": "nosuch"}, {"delete": "unknown option 'nosuch'"}),
        ({"unprivileged": "0"}, "unable to modify read-only option: 'unprivileged'"),
        ({"memory": "512", "digest": "0" * 40},
         "detected modified configuration - file changed by other user? Try again."),
        ({"mp0": "local:1,mp=/x"}, "storage 'local' does not allow content type 'rootdir' (Container)"),
        ({"dev0": "/dev/ttyUSB0"},
         "Permission check failed (configuring device passthrough is only allowed for root@pam)"),
    ],
)  # fmt: skip
async def test_changes_of_a_container_that_are_refused(api: Api, options: dict[str, str], refused: Any) -> None:
    assert _refusal(await put(api, f"{_PIHOLE}/config", **options)) == refused
    assert list(at_rest(api.cluster.world)) == []


async def test_a_disc_gives_an_empty_vm_something_to_boot(api: Api) -> None:
    await create_vm(api, scsi0="local-lvm:1")
    assert not _guest(api, 500).system.obeys_shutdown
    await put(api, f"{VM}/500/config", ide2="local:iso/debian-13.1.0-amd64-netinst.iso,media=cdrom")
    assert _guest(api, 500).system.obeys_shutdown


async def test_waiting_for_the_task_gives_nothing_its_error_or_its_upid(api: Api) -> None:

    async def update_and_wait(**params: Any) -> Reply:
        call = asyncio.ensure_future(api.post(f"{_TEST_VM}/config", background_delay=5, **params))
        while not call.done():
            await asyncio.sleep(0.01)
            await api.clock.advance(0.5)
        return call.result()

    done = await update_and_wait(cores=2)
    failed = await update_and_wait(ide2="local:iso/nope.iso,media=cdrom")
    _guest(api, 108).lock_file_held = True
    busy = await update_and_wait(cores=3)
    assert done.body == {"data": None}
    assert failed.reason == "failed to update VM 108: volume 'local:iso/nope.iso' does not exist"
    assert ":qmconfig:108:" in busy.data


async def test_registered_tags_are_for_administrators(api: Api) -> None:
    api.cluster.world.part(Datacenter).options["registered-tags"] = "billing"
    eve = user(api, ("/vms/108", "PVEVMAdmin"))
    refused = await put(eve, f"{_TEST_VM}/config", tags="lab;billing")
    allowed = await put(eve, f"{_TEST_VM}/config", tags="lab;mine")
    assert refused.reason == "Permission check failed (/, Sys.Modify for modifying tag 'billing')"
    assert allowed.status == 200


async def test_a_cloudinit_drive_removed_from_a_running_vm_can_be_created_again(api: Api) -> None:
    await create_vm(api, ide2="local-lvm:cloudinit", net0="virtio,bridge=vmbr0")
    await api.finish_task(await api.post(f"{VM}/500/status/start"))
    await put(api, f"{VM}/500/config", delete="ide2")
    await api.finish_task(await api.post(f"{VM}/500/status/stop"))
    again = await put(api, f"{VM}/500/config", ide2="local-lvm:cloudinit")
    stored = await config(api, f"{VM}/500")
    assert again.status == 200, again.text
    assert stored["ide2"] == "local-lvm:vm-500-cloudinit,media=cdrom"
    assert not [key for key in stored if key.startswith("unused")]
    assert list(at_rest(api.cluster.world)) == []


async def test_a_replicated_vm_takes_only_disks_that_can_be_replicated(api: Api) -> None:
    path = "/nodes/pve1/qemu/102"
    api.cluster.world.part(Replication).add(ReplicationJob("102-0", 102, "pve2"))
    refused = await put(api, f"{path}/config", scsi1="local-lvm:1")
    excepted = await put(api, f"{path}/config", scsi1="local-lvm:1,replicate=0")
    replicated = await put(api, f"{path}/config", scsi2="tank:1")
    assert refused.reason == "cannot add non-replicatable volume to a replicated VM"
    assert (excepted.status, replicated.status) == (200, 200)
