"""Volumes on storages: allocating, reading, annotating, copying and deleting."""

from __future__ import annotations

import asyncio
from typing import Any

from pve_simulator.api_client import Api, Reply
from pve_simulator.guests.guest import GIB

_BACKUP = "nas:backup/vzdump-qemu-109-2025_12_31-02_00_01.vma.zst"


async def _allocate(api: Api, storage: str, **params: Any) -> Reply:
    return await api.post(f"/nodes/pve1/storage/{storage}/content", **{"vmid": 108, "size": "1G", **params})


async def test_an_allocated_disk_shows_up_and_can_be_deleted(api: Api) -> None:
    allocated = await _allocate(api, "nas", filename="vm-108-disk-5.qcow2")
    assert allocated.data == "nas:108/vm-108-disk-5.qcow2"
    row = (await api.get(f"/nodes/pve1/storage/nas/content/{allocated.data}")).data
    assert row["path"] == "/mnt/pve/nas/images/108/vm-108-disk-5.qcow2"
    assert row["size"] == GIB
    assert row["format"] == "qcow2"
    gone = await api.delete(f"/nodes/pve1/storage/nas/content/{allocated.data}")
    assert gone.data.split(":")[5:7] == ["imgdel", "108@nas"]
    assert await api.finish_task(gone) == "OK"
    missing = await api.get(f"/nodes/pve1/storage/nas/content/{allocated.data}")
    assert missing.reason == f"volume_size_info on '{allocated.data}' failed - no format"


async def test_names_and_formats_follow_the_type_of_storage(api: Api) -> None:
    assert (await _allocate(api, "local-lvm", filename="vm-108-disk-9")).data == "local-lvm:vm-108-disk-9"
    wrong = await _allocate(api, "local-lvm", filename="foo")
    assert wrong.reason == "illegal name 'foo' - should be 'vm-108-*'"
    file_name = await _allocate(api, "nas", filename="vm-108-disk-9")
    assert file_name.reason == "unable to parse volume filename 'vm-108-disk-9'"
    mixed = await _allocate(api, "nas", filename="vm-108-disk-9.raw", format="qcow2")
    assert mixed.errors == {"format": "different storage formats (qcow2 != raw)"}
    server = await _allocate(api, "pbs", filename="vm-108-disk-9.raw")
    assert server.reason == "can't allocate space in pbs storage"
    allocated = await _allocate(api, "local-lvm", filename="vm-108-disk-9")
    assert allocated.status == 500


async def test_space_is_accounted_for_and_runs_out(api: Api) -> None:
    await api.post("/storage", storage="thick", type="lvm", vgname="pve")
    before = (await api.get("/nodes/pve1/storage/thick/status")).data
    assert (await _allocate(api, "thick", filename="vm-108-disk-1", size="10G")).status == 200
    after = (await api.get("/nodes/pve1/storage/thick/status")).data
    assert after["used"] - before["used"] == 10 * GIB
    assert after["avail"] == after["total"] - after["used"]
    too_much = await _allocate(api, "thick", filename="vm-108-disk-2", size="99999G")
    assert too_much.status == 500
    assert (await api.get("/nodes/pve1/storage/thick/status")).data["used"] == after["used"]


async def test_a_missing_file_is_deleted_without_complaint_but_a_missing_logical_volume_is_not(api: Api) -> None:
    file = await api.delete("/nodes/pve1/storage/local/content/local:iso/nope.iso")
    assert await api.finish_task(file) == "OK"
    lines = [line["t"] for line in (await api.log(file.data)).data]
    assert lines[0] == "disk image '/var/lib/vz/template/iso/nope.iso' does not exist"
    volume = await api.delete("/nodes/pve1/storage/local-lvm/content/local-lvm:vm-100-disk-9")
    assert "Failed to find logical volume" in await api.finish_task(volume)


async def test_a_disk_in_use_cannot_be_deleted(api: Api) -> None:
    reply = await api.delete("/nodes/pve1/storage/local-lvm/content/local-lvm:vm-100-disk-0")
    assert "in use" in await api.finish_task(reply)


async def test_protected_backups_stay(api: Api) -> None:
    path = f"/nodes/pve3/storage/nas/content/{_BACKUP}"
    row = (await api.get(path)).data
    assert (row["protected"], row["notes"]) == (1, "legacy-db, before the move")
    refused = await api.finish_task(await api.delete(path))
    assert refused == f"cannot remove protected volume '{_BACKUP.partition(':')[2]}' on 'nas'"
    assert (await api.put(path, protected=0, notes="may go")).data is None
    assert (await api.get(path)).data["notes"] == "may go"
    assert await api.finish_task(await api.delete(path)) == "OK"


async def test_attributes_belong_to_backups_on_storages_that_have_them(api: Api) -> None:
    iso = "/nodes/pve1/storage/local/content/local:iso/debian-13.1.0-amd64-netinst.iso"
    assert (await api.put(iso, notes="x")).reason == "only backups can have notes"
    disk = "/nodes/pve1/storage/local-lvm/content/local-lvm:vm-100-disk-0"
    reply = await api.put(disk, notes="x")
    assert reply.reason == "attribute 'notes' is not supported for storage type 'lvmthin'"


async def test_names_that_no_volume_can_have_are_refused_per_type(api: Api) -> None:
    for storage, words in (("local", "directory"), ("local-lvm", "lvm"), ("tank", "zfs"), ("pbs", "PBS")):
        reply = await api.get(f"/nodes/pve1/storage/{storage}/content/{storage}:foo!")
        assert reply.reason == f"unable to parse {words} volume name 'foo!'"
    other = await api.get("/nodes/pve1/storage/local/content/nas:iso/x.iso")
    assert other.errors == {"volume": "storage ID mismatch (nas != local)\n"}


async def test_with_a_delay_the_answer_waits_for_the_end_of_the_task(api: Api) -> None:
    waiting = asyncio.ensure_future(api.delete(f"/nodes/pve3/storage/nas/content/{_BACKUP}?delay=5"))
    while not waiting.done():
        await asyncio.sleep(0.01)
        await api.clock.advance(1.0)
    reply = await waiting
    assert reply.reason.startswith("cannot remove protected volume")
    gone = asyncio.ensure_future(api.delete("/nodes/pve1/storage/local/content/iso/nope.iso?delay=5"))
    while not gone.done():
        await asyncio.sleep(0.01)
        await api.clock.advance(1.0)
    assert (await gone).data is None


async def test_only_root_itself_copies_volumes(api: Api) -> None:
    path = "/nodes/pve1/storage/nas/content/nas:iso/virtio-win-0.1.271.iso"
    assert (await api.post(path, target="nas:iso/copy.iso")).status == 403
    root = await api.as_user("root@pam", "simulated-root")
    reply = await root.post(path, target="nas:iso/copy.iso")
    assert await api.finish_task(reply) == "OK"
    assert (await api.get("/nodes/pve1/storage/nas/content/nas:iso/copy.iso")).status == 200


async def test_charts_of_a_storage_have_as_many_points_as_pve_draws(api: Api) -> None:
    rows = (await api.get("/nodes/pve1/storage/nas/rrddata", timeframe="hour")).data
    assert len(rows) == 60
    assert {"time", "total", "used"} <= set(rows[-1])
