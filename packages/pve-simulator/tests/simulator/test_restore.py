"""Restoring guests from backups: to new vmids, over existing guests, and refusals."""

from __future__ import annotations

import re

import pytest

from pve_simulator.api_client import Api

_VM = "nas:backup/vzdump-qemu-108-2026_01_15-08_00_00.vma.zst"
_CT = "nas:backup/vzdump-lxc-206-2026_01_15-08_00_00.tar.zst"
_MAC = re.compile(r"BC:24:11:[0-9A-F:]{8}")


async def _back_up_vm(api: Api) -> None:
    done = await api.finish_task(await api.post("/nodes/pve1/vzdump", vmid=108, storage="nas", compress="zstd"))
    assert done == "OK"


async def _back_up_container(api: Api) -> None:
    done = await api.finish_task(await api.post("/nodes/pve3/vzdump", vmid=206, storage="nas", compress="zstd"))
    assert done == "OK"


def _space_usage(api: Api, storage: str, node: str) -> int:
    return api.cluster.world.storages[storage].space(node).used


async def test_a_vm_is_restored_to_another_vmid(api: Api) -> None:
    await _back_up_vm(api)
    before = _space_usage(api, "local-lvm", "pve1")
    reply = await api.post("/nodes/pve1/qemu", vmid=120, archive=_VM, storage="local-lvm", unique=1)
    assert reply.data.split(":")[5:7] == ["qmrestore", "120"]
    assert api.cluster.world.guests[120].lock == "create"
    assert await api.finish_task(reply) == "OK"
    config = (await api.get("/nodes/pve1/qemu/120/config")).data
    original = (await api.get("/nodes/pve1/qemu/108/config")).data
    assert config["name"] == "test-vm"
    assert config["scsi0"] == "local-lvm:vm-120-disk-0,size=8G"
    assert "lock" not in config
    assert "parent" not in config
    assert _MAC.findall(config["net0"]) != _MAC.findall(original["net0"])
    assert config["smbios1"] != original["smbios1"]
    assert config["vmgenid"] != original["vmgenid"]
    assert _space_usage(api, "local-lvm", "pve1") > before
    lines = [line["t"] for line in (await api.log(reply.data)).data]
    assert lines[0].startswith("restore vma archive: zstd -q -d -c /mnt/pve/nas/dump/vzdump-qemu-108-")
    assert "new volume ID is 'local-lvm:vm-120-disk-0'" in lines
    assert any(line.startswith("progress 100% (read 8589934592 bytes") for line in lines)


async def test_without_unique_the_network_card_stays_the_same(api: Api) -> None:
    await _back_up_vm(api)
    reply = await api.post("/nodes/pve1/qemu", vmid=120, archive=_VM, name="twin", start=1, pool="lab")
    assert await api.finish_task(reply) == "OK"
    world = api.cluster.world
    assert world.guests[120].config["net0"] == world.guests[108].config["net0"]
    assert world.guests[120].name == "twin"
    assert world.guests[120].running
    assert world.access.pool_of(120) == "lab"


async def test_an_existing_vm_is_replaced_only_by_force_and_never_while_it_runs(api: Api) -> None:
    await _back_up_vm(api)
    plain = await api.post("/nodes/pve1/qemu", vmid=108, archive=_VM)
    assert plain.reason == "unable to restore VM 108 - VM 108 already exists on node 'pve1'"
    other = await api.post("/nodes/pve1/qemu", vmid=103, archive=_VM, force=1)
    assert other.reason == "unable to restore VM 103 - VM 103 already exists on node 'pve2'"
    running = await api.post("/nodes/pve1/qemu", vmid=102, archive=_VM, force=1)
    assert await api.finish_task(running) == "unable to restore VM 102 - vm is running"
    assert api.cluster.world.guests[102].name == "docker01"
    before = _space_usage(api, "local-lvm", "pve1")
    guest = api.cluster.world.guests[108]
    guest.config["name"] = "changed"
    forced = await api.post("/nodes/pve1/qemu", vmid=108, archive=_VM, force=1)
    assert await api.finish_task(forced) == "OK"
    assert guest.name == "test-vm"
    assert guest.config["scsi0"] == "local-lvm:vm-108-disk-0,size=8G"
    assert guest.snapshots == {}
    assert _space_usage(api, "local-lvm", "pve1") <= before


async def test_a_protected_vm_is_not_replaced(api: Api) -> None:
    guest = api.cluster.world.guests[109]
    guest.stop_running()
    archive = "nas:backup/vzdump-qemu-109-2025_12_31-02_00_01.vma.zst"
    reply = await api.post("/nodes/pve3/qemu", vmid=109, archive=archive, force=1)
    assert await api.finish_task(reply) == "unable to restore VM 109 - protection mode enabled"
    assert str(guest.config["scsi0"]).startswith("local-lvm:vm-109-disk-0")


@pytest.mark.parametrize(
    ("archive", "text"),
    [
        ("nas:backup/vzdump-qemu-1-2020_01_01-00_00_00.vma.zst", "volume '{}' does not exist"),
        (
            "nas:iso/virtio-win-0.1.271.iso",
            "unable to use volume {} - content type needs to be 'backup'",
        ),
        ("nas:backup/what", "unable to parse directory volume name 'backup/what'"),
        ("nope:backup/x.vma", "storage 'nope' does not exist"),
        ("-", "pipe requires cli environment"),
        (
            "/etc/passwd",
            "Only root can pass arbitrary filesystem paths. at /usr/share/perl5/PVE/Storage.pm line 651.",
        ),
    ],
)
async def test_invalid_archives_are_refused_at_once(api: Api, archive: str, text: str) -> None:
    reply = await api.post("/nodes/pve1/qemu", vmid=120, archive=archive)
    assert (reply.status, reply.reason) == (500, text.format(archive))
    assert 120 not in api.cluster.world.guests


async def test_the_target_storage_must_hold_disks(api: Api) -> None:
    await _back_up_vm(api)
    reply = await api.post("/nodes/pve1/qemu", vmid=120, archive=_VM, storage="local")
    assert reply.errors == {"storage": "storage 'local' does not support vm images"}
    await _back_up_container(api)
    container = await api.post("/nodes/pve3/lxc", vmid=220, ostemplate=_CT, restore=1, storage="local")
    assert container.errors == {"storage": "storage 'local' does not support container directories"}


async def test_a_storage_without_room_leaves_a_vm_without_disks_and_no_container(api: Api) -> None:
    await _back_up_vm(api)
    await _back_up_container(api)
    world = api.cluster.world
    for node in ("pve1", "pve3"):
        space = world.storages["local-lvm"].space(node)
        space.base_used = space.total
    vm = await api.post("/nodes/pve1/qemu", vmid=120, archive=_VM)
    assert "insufficient free space" in await api.finish_task(vm)
    assert world.guests[120].config == {}
    archive = _CT.replace("08_00_00", "08_02_00")
    container = await api.post("/nodes/pve3/lxc", vmid=220, ostemplate=archive, restore=1, storage="local-lvm")
    ending = await api.finish_task(container)
    assert ending.startswith("unable to restore CT 220 - lvcreate 'pve/vm-220-disk-0' error: ")
    assert 220 not in world.guests


async def test_a_container_is_restored(api: Api) -> None:
    await _back_up_container(api)
    path = "/nodes/pve3/lxc"
    reply = await api.post(path, vmid=220, ostemplate=_CT, restore=1, storage="local-lvm", hostname="again")
    assert reply.data.split(":")[5:7] == ["vzrestore", "220"]
    assert await api.finish_task(reply) == "OK"
    config = (await api.get(f"{path}/220/config")).data
    assert config["hostname"] == "again"
    assert config["rootfs"] == "local-lvm:vm-220-disk-0,size=8G"
    lines = [line["t"] for line in (await api.log(reply.data)).data]
    assert lines[0] == f"recovering backed-up configuration from '{_CT}'"
    assert "merging backed-up and given configuration.." in lines
    refused = await api.post(path, vmid=220, ostemplate=_CT, restore=1, storage="local-lvm")
    assert refused.reason == "CT 220 already exists on node 'pve3'"
    running = await api.post(path, vmid=204, ostemplate=_CT, restore=1, force=1, storage="local-lvm")
    assert running.reason == "can't overwrite running container"
    missing = _CT.replace("206", "777")
    lost = await api.post(path, vmid=221, ostemplate=missing, restore=1, storage="local-lvm")
    assert await api.finish_task(lost) == f"unable to restore CT 221 - volume '{missing}' does not exist"


async def test_backups_from_before_and_from_a_backup_server_can_be_restored(api: Api) -> None:
    archive = "pbs:backup/vm/102/2026-01-14T01:00:05Z"
    reply = await api.post("/nodes/pve2/qemu", vmid=121, archive=archive, storage="local-lvm", unique=1)
    assert await api.finish_task(reply) == "OK"
    config = (await api.get("/nodes/pve2/qemu/121/config")).data
    assert config["name"] == "docker01"
    assert config["scsi0"] == "local-lvm:vm-121-disk-0,size=100G"


async def test_a_template_is_restored_as_a_template(api: Api) -> None:
    await api.finish_task(await api.post("/nodes/pve1/vzdump", vmid=9000, storage="nas"))
    archive = "nas:backup/vzdump-qemu-9000-2026_01_15-08_00_00.vma"
    assert await api.finish_task(await api.post("/nodes/pve1/qemu", vmid=9002, archive=archive)) == "OK"
    config = api.cluster.world.guests[9002].config
    assert config["template"] == 1
    assert str(config["scsi0"]).startswith("local-lvm:base-9002-disk-0")
    assert config["ide2"] == "local-lvm:vm-9002-cloudinit,media=cdrom"


async def test_restoring_over_a_guest_needs_only_the_privileges_to_back_it_up_and_to_use_its_bridges(api: Api) -> None:
    await _back_up_vm(api)
    access = api.cluster.world.access
    access.grant("/storage/nas", "PVEDatastoreUser", "bob@pve")
    access.grant("/storage/local-lvm", "PVEDatastoreUser", "bob@pve")
    access.custom_roles["Backup"] = frozenset({"VM.Backup", "VM.Audit"})
    access.grant("/vms/108", "Backup", "bob@pve")
    bob = await api.as_user("bob@pve", "bob-looks-around")
    refused = await bob.post("/nodes/pve1/qemu", vmid=130, archive=_VM)
    assert (refused.status, refused.reason) == (403, "Permission check failed")
    begun = await bob.post("/nodes/pve1/qemu", vmid=108, archive=_VM, force=1)
    missing = "403 Permission check failed (/sdn/zones/localnetwork/vmbr0, SDN.Use)"
    assert await api.finish_task(begun) == missing
    access.grant("/sdn/zones/localnetwork", "PVESDNUser", "bob@pve")
    allowed = await bob.post("/nodes/pve1/qemu", vmid=108, archive=_VM, force=1)
    assert await api.finish_task(allowed) == "OK"
