"""Resizing and moving disks."""

from __future__ import annotations

from typing import Any

import pytest

from pve_simulator.api_client import Api, Reply
from simulator.consistency import at_rest
from simulator.guest_steps import CT, VM, config, create_container, create_vm, log_of, put, user, volume

_TEST_VM = f"{VM}/108"


def _refusal(reply: Reply) -> Any:
    return reply.errors if reply.status == 400 else reply.reason


async def test_a_disk_of_a_vm_grows_by_or_to_a_size(api: Api) -> None:
    await create_vm(api, scsi0="nas:1,format=qcow2")
    grown = await put(api, f"{VM}/500/resize", disk="scsi0", size="+1G")
    assert await api.finish_task(grown) == "OK"
    assert log_of(api, grown) == ["Image resized.", "TASK OK"]
    assert (await config(api, f"{VM}/500"))["scsi0"] == "nas:500/vm-500-disk-0.qcow2,size=2G"
    same = await put(api, f"{VM}/500/resize", disk="scsi0", size="2G")
    assert await api.finish_task(same) == "OK"
    disk = volume(api, "nas:500/vm-500-disk-0.qcow2")
    assert disk is not None
    assert disk.size == 2 * 1024**3
    assert list(at_rest(api.cluster.world)) == []


@pytest.mark.parametrize(
    ("vmid", "disk", "size", "failed"),
    [
        (108, "scsi0", "1G", "shrinking disks is not supported"),
        (108, "scsi5", "+1G", "disk 'scsi5' does not exist"),
        (9000, "ide2", "+1G", "you can't resize a cdrom"),
        (999, "scsi0", "+1G", "Configuration file 'nodes/pve1/qemu-server/999.conf' does not exist"),
    ],
)
async def test_resizing_a_vm_fails_inside_the_task(api: Api, vmid: int, disk: str, size: str, failed: str) -> None:
    reply = await put(api, f"{VM}/{vmid}/resize", disk=disk, size=size)
    assert await api.finish_task(reply) == failed


async def test_a_disk_grows_only_where_the_storage_has_room(api: Api) -> None:
    del api.cluster.world.storages["tank"].config["sparse"]
    await create_vm(api, scsi0="tank:1")
    reply = await put(api, f"{VM}/500/resize", disk="scsi0", size="+90000G")
    full = "zfs error: cannot set property for 'tank/vm/vm-500-disk-0': size is greater than available space"
    assert await api.finish_task(reply) == full
    assert (await config(api, f"{VM}/500"))["scsi0"] == "tank:vm-500-disk-0,size=1G"


async def test_a_container_refuses_at_once_and_grows_in_a_task(api: Api) -> None:
    path = f"{CT}/200/resize"
    smaller = await put(api, path, disk="rootfs", size="1G")
    equal = await put(api, path, disk="rootfs", size="8G")
    absent = await put(api, path, disk="mp3", size="+1G")
    grown = await put(api, path, disk="rootfs", size="+1G")
    assert smaller.reason == "unable to shrink disk size"
    assert equal.reason == "disk is already at specified size"
    assert (absent.reason, set(absent.errors)) == ("format error", {"mp", "volume"})
    assert await api.finish_task(grown) == "OK"
    assert (await config(api, f"{CT}/200"))["rootfs"] == "local-lvm:vm-200-disk-0,size=9G"


@pytest.mark.parametrize(("delete", "kept"), [(0, True), (1, False)])
async def test_a_disk_moves_to_another_storage(api: Api, delete: int, kept: bool) -> None:
    await create_vm(api, scsi0="local-lvm:2,ssd=1")
    moved = await api.post(f"{VM}/500/move_disk", disk="scsi0", storage="nas", format="qcow2", delete=delete)
    assert await api.finish_task(moved) == "OK"
    stored = await config(api, f"{VM}/500")
    assert ":qmmove:500:" in moved.data
    assert stored["scsi0"] == "nas:500/vm-500-disk-0.qcow2,size=2G,ssd=1"
    assert (stored.get("unused0") == "local-lvm:vm-500-disk-0") is kept
    assert (volume(api, "local-lvm:vm-500-disk-0") is not None) is kept
    assert "transferred 2.0 GiB of 2.0 GiB (100.00%)" in log_of(api, moved)
    assert list(at_rest(api.cluster.world)) == []


@pytest.mark.parametrize(
    ("vmid", "options", "refused"),
    [
        (108, {"disk": "scsi5", "storage": "nas"}, "disk 'scsi5' does not exist"),
        (108, {"disk": "scsi0", "storage": "local-lvm"}, "you can't move to the same storage with same format"),
        (108, {"disk": "scsi0", "storage": "nas", "delete": "1"},
         "you can't move a disk with snapshots and delete the source"),
        (108, {"disk": "scsi0", "storage": "local"}, {"storage": "storage 'local' does not support vm images"}),
        (108, {"disk": "scsi0", "storage": "nope"}, "storage 'nope' does not exist"),
        (108, {"disk": "scsi0", "storage": "nas", "target-vmid": "100"},
         dict.fromkeys(("storage", "target-vmid"), "either set 'storage' or 'target-vmid', but not both")),
    ],
)  # fmt: skip
async def test_moves_that_are_refused(api: Api, vmid: int, options: dict[str, str], refused: Any) -> None:
    assert _refusal(await api.post(f"{VM}/{vmid}/move_disk", **options)) == refused


async def test_an_interrupted_move_leaves_the_old_disk_alone(api: Api) -> None:
    await create_vm(api, scsi0="local-lvm:2")
    moved = await api.post(f"{VM}/500/move_disk", disk="scsi0", storage="nas", delete=1)
    await api.clock.advance(0.5)
    await api.cluster.world.tasks.cancel(moved.data)
    assert (await config(api, f"{VM}/500"))["scsi0"] == "local-lvm:vm-500-disk-0,size=2G"
    assert volume(api, "nas:500/vm-500-disk-0.raw") is None
    assert list(at_rest(api.cluster.world)) == []


async def test_a_disk_can_be_handed_to_another_vm(api: Api) -> None:
    await create_vm(api, 500, scsi0="local-lvm:1", scsi1="local-lvm:2")
    await create_vm(api, 501, scsi0="local-lvm:1")
    options = {"disk": "scsi1", "target-vmid": "501", "target-disk": "scsi4"}
    moved = await api.post(f"{VM}/500/move_disk", **options)
    assert await api.finish_task(moved) == "OK"
    assert "scsi1" not in await config(api, f"{VM}/500")
    assert (await config(api, f"{VM}/501"))["scsi4"] == "local-lvm:vm-501-disk-1,size=2G"
    assert list(at_rest(api.cluster.world)) == []


async def test_a_volume_of_a_stopped_container_moves(api: Api) -> None:
    await create_container(api)
    moved = await api.post(f"{CT}/500/move_volume", volume="rootfs", storage="tank", delete=1)
    assert await api.finish_task(moved) == "OK"
    assert (await config(api, f"{CT}/500"))["rootfs"] == "tank:subvol-500-disk-0,size=4G"
    running = await api.post(f"{CT}/200/move_volume", volume="rootfs", storage="tank")
    assert running.reason == "cannot move volumes of a running container"
    assert list(at_rest(api.cluster.world)) == []


async def test_moving_needs_the_privilege_to_allocate_space_on_the_target(api: Api) -> None:
    eve = user(api, ("/vms/108", "PVEVMAdmin"))
    reply = await eve.post(f"{_TEST_VM}/move_disk", disk="scsi0", storage="nas")
    assert reply.reason == "Permission check failed (/storage/nas, Datastore.AllocateSpace)"
