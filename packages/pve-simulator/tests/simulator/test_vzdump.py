"""Backups: selection, logs, leftovers and pruning."""

from __future__ import annotations

import re

import pytest

from pve_simulator.api_client import Api
from pve_simulator.storage import retention
from pve_simulator.storage.storages import Storage, StorageSpace, Volume

_VZDUMP = "/nodes/pve1/vzdump"


async def _lines(api: Api, upid: str) -> list[str]:
    return [line["t"] for line in (await api.log(upid, limit=0)).data]


async def test_a_running_vm_is_backed_up_while_it_runs(api: Api) -> None:
    guest = api.cluster.world.guests[102]
    reply = await api.post(
        _VZDUMP, vmid=102, storage="nas", compress="zstd", **{"notes-template": "{{guestname}} on {{node}}"}
    )
    assert reply.data.split(":")[5:7] == ["vzdump", "102"]
    await api.clock.advance(3)
    assert guest.lock == "backup"
    assert guest.running
    assert await api.finish_task(reply) == "OK"
    assert guest.lock is None
    lines = await _lines(api, reply.data)
    assert lines[0] == (
        "INFO: starting new backup job: vzdump 102 --storage nas --compress zstd"
        " --notes-template '{{guestname}} on {{node}}' --node pve1"
    )
    assert "INFO: status = running" in lines
    assert "INFO: include disk 'scsi0' 'tank:vm-102-disk-0' 100G" in lines
    percentages = [int(match[1]) for match in map(re.compile(r"INFO: +(\d+)% ").match, lines) if match]
    assert percentages == sorted(percentages)
    assert percentages[-1] == 100
    assert lines[-2:] == ["INFO: Backup job finished successfully", "TASK OK"]
    row = (await api.get("/nodes/pve1/storage/nas/content", content="backup", vmid=102)).data[0]
    assert row["volid"] == "nas:backup/vzdump-qemu-102-2026_01_15-08_00_00.vma.zst"
    assert (row["notes"], row["format"], row["subtype"]) == ("docker01 on pve1", "vma.zst", "qemu")


async def test_stopping_for_a_backup_starts_the_guest_again(api: Api) -> None:
    guest = api.cluster.world.guests[200]
    reply = await api.post(_VZDUMP, vmid=200, storage="nas", mode="stop")
    await api.clock.advance(2.5)
    assert not guest.running
    assert await api.finish_task(reply) == "OK"
    assert guest.running
    lines = await _lines(api, reply.data)
    assert lines.index("INFO: stopping virtual guest") < lines.index("INFO: restarting vm")
    vm = await api.post(_VZDUMP, vmid=102, storage="nas", mode="stop")
    assert await api.finish_task(vm) == "OK"
    assert api.cluster.world.guests[102].running


async def test_containers_without_snapshots_are_suspended(api: Api) -> None:
    snapshot = await api.post(_VZDUMP, vmid=200, storage="nas")
    assert await api.finish_task(snapshot) == "OK"
    assert "INFO: create storage snapshot 'vzdump'" in await _lines(api, snapshot.data)
    world = api.cluster.world
    world.guests[200].config["mp0"] = "nas:200/vm-200-disk-0.raw,mp=/data,backup=1,size=1G"
    suspended = await api.post(_VZDUMP, vmid=200, storage="nas")
    assert await api.finish_task(suspended) == "OK"
    lines = await _lines(api, suspended.data)
    assert "INFO: trying 'suspend' mode instead" in lines
    assert "INFO: backup mode: suspend" in lines
    assert not world.guests[200].paused


async def test_several_guests_one_after_the_other_and_errors_of_one_stop_none(api: Api) -> None:
    reply = await api.post(_VZDUMP, vmid="999,108,103", storage="nas")
    assert reply.data.split(":")[6] == ""
    assert await api.finish_task(reply) == "job errors"
    lines = await _lines(api, reply.data)
    assert "INFO: skip external VMs: 103" in lines
    assert "ERROR: Backup of VM 999 failed - unable to find VM '999'" in lines
    assert any(line.startswith("INFO: Finished Backup of VM 108") for line in lines)


async def test_all_but_some_and_whole_pools(api: Api) -> None:
    everything = await api.post(_VZDUMP, exclude="100,102", storage="nas")
    await api.finish_task(everything, 600)
    lines = await _lines(api, everything.data)
    begun = {int(line.split()[5]) for line in lines if line.startswith("INFO: Starting Backup of VM ")}
    assert begun == {101, 108, 200, 201, 9000, 9001}
    pool = await api.post(_VZDUMP, pool="lab", storage="nas")
    assert pool.data.split(":")[6] == "108"


async def test_a_backup_of_only_guests_on_other_nodes_starts_no_task(api: Api) -> None:
    assert (await api.post(_VZDUMP, vmid=103, storage="nas")).data == "OK"


@pytest.mark.parametrize(
    ("storage", "ending"),
    [
        ("nope", "storage 'nope' does not exist"),
        ("local-lvm", "can't use storage 'local-lvm' for backups - wrong content type"),
    ],
)
async def test_a_storage_without_backups_fails_in_the_task(api: Api, storage: str, ending: str) -> None:
    reply = await api.post(_VZDUMP, vmid=100, storage=storage)
    assert (await api.finish_task(reply)).endswith(f"could not get storage information for '{storage}': {ending}")


async def test_an_interrupted_backup_leaves_no_file_and_no_lock(api: Api) -> None:
    reply = await api.post(_VZDUMP, vmid=102, storage="nas", mode="stop")
    await api.clock.advance(5)
    await api.delete(f"/nodes/pve1/tasks/{reply.data}")
    assert (await api.task(reply.data))["exitstatus"] == "interrupted by signal"
    guest = api.cluster.world.guests[102]
    assert guest.lock is None
    assert guest.running
    assert (await api.get("/nodes/pve1/storage/nas/content", content="backup", vmid=102)).data == []


async def test_a_locked_guest_is_not_backed_up(api: Api) -> None:
    api.cluster.world.guests[108].config["lock"] = "snapshot"
    reply = await api.post(_VZDUMP, vmid=108, storage="nas")
    assert await api.finish_task(reply) == "job errors"
    assert "ERROR: Backup of VM 108 failed - VM is locked (snapshot)" in await _lines(api, reply.data)


async def test_one_backup_at_a_time_on_a_node(api: Api) -> None:
    first = await api.post(_VZDUMP, vmid=102, storage="nas")
    second = await api.post(_VZDUMP, vmid=108, storage="nas")
    await api.clock.advance(4)
    assert await _lines(api, second.data) == ["INFO: trying to get global lock - waiting..."]
    assert await api.finish_task(first) == "OK"
    assert await api.finish_task(second) == "OK"
    assert "INFO: got global lock" in await _lines(api, second.data)


async def test_a_full_storage_ends_the_backup_with_an_error(api: Api) -> None:
    space = api.cluster.world.storages["nas"].space("pve1")
    space.base_used = space.total
    reply = await api.post(_VZDUMP, vmid=102, storage="nas")
    assert await api.finish_task(reply) == "job errors"
    lines = await _lines(api, reply.data)
    assert "ERROR: Backup of VM 102 failed - vma_queue_write: write error - Broken pipe" in lines


async def test_backups_of_named_guests_need_the_right_to_them(api: Api) -> None:
    access = api.cluster.world.access
    access.grant("/storage/nas", "PVEDatastoreUser", "alice@pve")
    alice = api.as_token("alice@pve!cli")
    allowed = await alice.post(_VZDUMP, vmid=108, storage="nas")
    assert await api.finish_task(allowed) == "OK"
    refused = await alice.post(_VZDUMP, vmid=100, storage="nas")
    assert await api.finish_task(refused) == "403 Permission check failed (/vms/100, VM.Backup)"
    storage = await alice.post(_VZDUMP, vmid=108, storage="local")
    assert storage.reason == "Permission check failed (/storage/local, Datastore.AllocateSpace)"
    speed = await alice.post(_VZDUMP, vmid=108, storage="nas", bwlimit=10)
    assert speed.reason == "Permission check failed (/, Sys.Modify)"


async def test_a_backup_server_gets_snapshots_and_old_ones_are_pruned(api: Api) -> None:
    params = {"vmid": 108, "storage": "pbs", "prune-backups": "keep-last=1", "protected": 0}
    first = await api.post(_VZDUMP, **params)
    assert await api.finish_task(first) == "OK"
    second = await api.post(_VZDUMP, **params)
    assert await api.finish_task(second) == "OK"
    assert "INFO: pruned 1 backup(s) not covered by keep-retention policy" in await _lines(api, second.data)
    rows = (await api.get("/nodes/pve1/storage/pbs/content", vmid=108)).data
    assert [row["volid"] for row in rows] == ["pbs:backup/vm/108/2026-01-15T08:02:00Z"]


async def test_the_configuration_can_be_read_from_a_backup(api: Api) -> None:
    await api.finish_task(await api.post(_VZDUMP, vmid=108, storage="nas", compress="zstd"))
    volid = "nas:backup/vzdump-qemu-108-2026_01_15-08_00_00.vma.zst"
    text = (await api.get("/nodes/pve1/vzdump/extractconfig", volume=volid)).data
    assert "name: test-vm\n" in text
    assert "#qmdump#map:scsi0:drive-scsi0:local-lvm:raw:\n" in text
    assert "lock:" not in text
    missing = await api.get("/nodes/pve1/vzdump/extractconfig", volume=volid.replace("108", "107"))
    assert missing.reason == f"volume '{volid.replace('108', '107')}' does not exist"


async def test_defaults_follow_the_storage(api: Api) -> None:
    path = "/nodes/pve1/vzdump/defaults"
    assert (await api.get(path)).data["dumpdir"] == "/var/lib/vz/dump"
    assert (await api.get(path, storage="nas")).data["dumpdir"] == "/mnt/pve/nas/dump"
    assert "dumpdir" not in (await api.get(path, storage="pbs")).data
    wrong = await api.get(path, storage="local-lvm")
    assert wrong.reason == "can't use storage 'local-lvm' for backups - wrong content type"


def _storage_with_backups(*stamps: str) -> Storage:
    storage = Storage("s", "dir", ("backup",), spaces={"n": StorageSpace(10**12, 0)})
    for stamp in stamps:
        storage.add("n", Volume(f"s:backup/vzdump-qemu-100-{stamp}.vma.zst", "backup", "vma.zst", 1, 1, 0, vmid=100))
    return storage


def _backups_to_keep(storage: Storage, setting: str) -> list[str]:
    marks = retention.mark_backups(storage, "n", retention.parse(setting))
    return [volume.name[-27:-8] for volume, mark in marks if mark == "keep"]


def test_retention_keeps_the_newest_of_every_period() -> None:
    days = ("2026_01_01-02", "2026_01_01-14", "2026_01_02-02", "2026_01_09-02", "2026_02_01-02")
    storage = _storage_with_backups(*(f"{day}_00_00" for day in days))
    assert _backups_to_keep(storage, "keep-last=2") == ["2026_01_09-02_00_00", "2026_02_01-02_00_00"]
    assert _backups_to_keep(storage, "keep-daily=3") == [
        "2026_01_02-02_00_00",
        "2026_01_09-02_00_00",
        "2026_02_01-02_00_00",
    ]
    assert _backups_to_keep(storage, "keep-monthly=2") == ["2026_01_09-02_00_00", "2026_02_01-02_00_00"]
    assert _backups_to_keep(storage, "keep-last=1,keep-weekly=1") == ["2026_01_09-02_00_00", "2026_02_01-02_00_00"]
    assert len(_backups_to_keep(storage, "keep-all=1")) == 5


async def test_pruning_spares_protected_and_renamed_backups(api: Api) -> None:
    path = "/nodes/pve1/storage/nas/prunebackups"
    bare = await api.get(path)
    assert bare.reason == "no prune-backups options configured for storage 'nas'"
    rows = (await api.get(path, **{"prune-backups": "keep-last=1"})).data
    assert [row["mark"] for row in rows] == ["protected"]
    server = "/nodes/pve1/storage/pbs/prunebackups"
    marks = [row["mark"] for row in (await api.get(server, **{"prune-backups": "keep-last=1"})).data]
    assert marks == ["remove", "keep"] * 3
    pruning = await api.delete(f"{server}?prune-backups=keep-last%3D1&vmid=202")
    assert pruning.data.split(":")[5:7] == ["prunebackups", "202@pbs"]
    assert await api.finish_task(pruning) == "OK"
    assert len((await api.get("/nodes/pve1/storage/pbs/content", vmid=202)).data) == 1
    assert len((await api.get("/nodes/pve1/storage/pbs/content", vmid=203)).data) == 2
    wrong = await api.get("/nodes/pve1/storage/local-lvm/prunebackups")
    assert wrong.reason == "storage 'local-lvm' does not support backups"
