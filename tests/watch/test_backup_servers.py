"""Backup servers under watch: they answer and have room, backups are verified, jobs and garbage collection run."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pve_simulator.pbs.datastores import with_key
from quorate.config.policy import Policy, Rule
from quorate.config.watch import WatchSettings
from tests.rigs.backup_server import DAY, KEY, OWNER, BackupRig, add_token, backup_rig

pytestmark = pytest.mark.anyio

OPTIONS: dict[str, Any] = {"toolsets": ("all", "homelab"), "in_memory": True}


@pytest.fixture
async def quorate(tmp_path: Path) -> AsyncIterator[BackupRig]:
    async with backup_rig(tmp_path, more={"watch": WatchSettings()}, **OPTIONS) as started:
        make_healthy(started)
        yield started


def make_healthy(quorate: BackupRig) -> None:
    """Everything is verified, collected and recent."""
    assert quorate.pbs is not None
    now = quorate.pbs.clock.now()
    for store in quorate.pbs.datastores.values():
        task = quorate.pbs.tasks.record("garbage_collection", store.name, "root@pam")
        store.gc.upid = task.upid
        for _, group in store.everything():
            for snapshot in group.in_order():
                snapshot.damaged = frozenset()
                snapshot.verification = {"upid": task.upid, "state": "ok"}
    old = quorate.store.namespaces[""]["host", "nas"]
    for time in list(old.snapshots):
        snapshot = old.snapshots.pop(time)
        snapshot.time = int(now) - DAY
        old.snapshots[snapshot.time] = snapshot


async def cycle(quorate: BackupRig, seconds: float = 600.0) -> dict[str, str]:
    """Let time pass and look; what is found about backup servers, by kind."""
    assert quorate.app.watch is not None
    await quorate.clock.advance(seconds)
    await quorate.app.watch.cycle({"homelab"})
    return {finding.kind: finding.seen_as.what for finding in await quorate.app.watch.findings()}


async def test_a_healthy_server_has_no_findings(quorate: BackupRig) -> None:
    assert await cycle(quorate) == {}
    assert await cycle(quorate, 3600) == {}


async def test_a_failed_verification_is_found_and_resolved(quorate: BackupRig) -> None:
    snapshot = quorate.store.namespaces[""]["vm", "101"].in_order()[0]
    snapshot.verification["state"] = "failed"
    assert "backup-damaged" in await cycle(quorate)
    (row,) = await quorate.rows("finding_list", kind="backup-damaged")
    assert row["finding"] == "1 backup in vault/store1 failed verification: guest 101"
    assert row["next"].startswith("pbs_backup_list only=failed")
    snapshot.verification["state"] = "ok"
    assert "backup-damaged" not in await cycle(quorate)


async def test_backups_without_a_verification_are_found_after_a_week(quorate: BackupRig) -> None:
    for snapshot in quorate.store.namespaces[""]["vm", "100"].in_order():
        snapshot.verification = None
    findings = await cycle(quorate)
    assert findings == {"backup-unproven": "No backup of guest 100 in vault/store1 was verified within 30 days"}
    await quorate.facts("pbs_verify", datastore="store1", backup="vm/100")
    assert await cycle(quorate) == {}


async def test_a_new_guest_has_a_week_until_its_first_verification(quorate: BackupRig) -> None:
    quorate.store.namespaces[""]["vm", "101"].in_order()[0].verification = None
    assert await cycle(quorate) == {}
    assert "backup-unproven" in await cycle(quorate, 6 * DAY)


async def test_a_full_datastore_and_one_that_fills_are_found(quorate: BackupRig) -> None:
    assert quorate.pbs is not None
    quorate.pbs.disk_used = int(quorate.pbs.disk_total * 0.9)
    quorate.store.full_at = quorate.pbs.clock.now() + 3 * DAY
    findings = await cycle(quorate)
    assert findings["storage-full"].endswith("is 90% full")
    assert findings["storage-filling"].startswith("Datastore vault/store1 will be full in 2d 23h")


async def test_a_datastore_in_maintenance_is_found(quorate: BackupRig) -> None:
    assert quorate.pbs is not None
    quorate.pbs.datastores["archive"].config["maintenance-mode"] = 'offline,message="new disks"'
    assert "new disks" in (await cycle(quorate))["storage-away"]


async def test_a_datastore_that_cannot_be_read_is_named_and_the_others_are_still_checked(quorate: BackupRig) -> None:
    assert quorate.pbs is not None
    snapshot = quorate.store.namespaces["prod"]["ct", "102"].in_order()[0]
    snapshot.verification["state"] = "failed"
    broken = quorate.pbs.add_datastore("broken")
    broken.gc.upid = quorate.pbs.tasks.record("garbage_collection", "broken", "root@pam").upid
    broken.add(dataclasses.replace(snapshot), owner=OWNER).verification = dict(snapshot.verification)
    await cycle(quorate)
    assert len(await quorate.rows("finding_list", kind="backup-damaged")) == 2
    broken.broken = "unable to open chunk store 'broken': Input/output error (os error 5)"
    found = await cycle(quorate)
    assert "Datastore vault/broken is not available" in found["storage-away"]
    assert "Could not read the backups in vault/broken" in found["unchecked"]
    assert len(await quorate.rows("finding_list", kind="backup-damaged")) == 2  # nobody knows that it is repaired
    broken.broken = ""
    broken.namespaces[""].clear()
    found = await cycle(quorate)
    assert {*found} == {"backup-damaged"}
    assert "vault/store1/prod" in found["backup-damaged"]


async def test_late_garbage_collection_is_found(quorate: BackupRig) -> None:
    assert quorate.pbs is not None
    quorate.pbs.datastores["archive"].gc.upid = None
    assert await cycle(quorate) == {
        "pbs-gc-late": "The garbage of vault/archive was never collected, and no schedule does it"
    }


async def test_a_job_that_fails_or_points_at_nothing_is_found(quorate: BackupRig) -> None:
    assert quorate.pbs is not None
    quorate.pbs.sections["prune"]["old"] = {"id": "old", "store": "gone", "schedule": "daily", "keep-last": 3}
    assert await cycle(quorate) == {
        "pbs-job-failing": "The prune job old of vault is for the datastore gone, which does not exist"
    }
    quorate.pbs.sections["prune"].clear()
    assert await cycle(quorate) == {}


async def test_a_server_that_does_not_answer_is_found_in_the_second_cycle_and_resolved(
    quorate: BackupRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert quorate.pbs is not None
    assert await cycle(quorate) == {}

    (server,) = quorate.app.homelab.backup_servers
    url = server.client._connection.endpoints[0]
    monkeypatch.setattr(server.client, "_endpoints_by_preference", lambda: ["https://127.0.0.1:1"])
    assert await cycle(quorate) == {}
    findings = await cycle(quorate, 60)
    assert findings["pbs-unreachable"].startswith("Backup server vault does not answer: No connection to")
    monkeypatch.setattr(server.client, "_endpoints_by_preference", lambda: [url])
    assert await cycle(quorate, 60) == {}


async def test_a_rule_that_hides_a_datastore_hides_its_findings(tmp_path: Path) -> None:
    hidden = Policy((Rule("private", allows=False, level="read", datastores=("archive",)),))
    more = {"watch": WatchSettings(), "policy": hidden}
    async with backup_rig(tmp_path, more=more, **OPTIONS) as quorate:
        make_healthy(quorate)
        assert quorate.pbs is not None
        quorate.pbs.datastores["archive"].gc.upid = None
        assert "pbs-gc-late" in await cycle(quorate)
        assert await quorate.rows("finding_list", kind="pbs-gc-late") == []


def connect_storage(quorate: BackupRig, **settings: Any) -> None:
    """Let the storage `pbs` of the cluster be store1 on the server, as a user that may only make backups."""
    assert quorate.pbs is not None
    add_token(quorate.pbs, "pve", store1="DatastoreBackup")
    storage = quorate.sim.world.storages["pbs"]
    storage.config |= {"fingerprint": quorate.pbs.fingerprint, "datastore": "store1", "username": "pve@pbs!mcp"}
    storage.config |= settings


async def test_encrypted_backups_without_the_key_on_their_storage_are_found(quorate: BackupRig) -> None:
    connect_storage(quorate)
    with_key(quorate.store.namespaces[""]["vm", "100"].newest(), KEY)
    assert await cycle(quorate) == {"backup-locked": "Storage pbs lacks the key of encrypted backups of 1 guest: 100"}
    quorate.sim.world.storages["pbs"].config["encryption-key"] = KEY
    assert await cycle(quorate) == {}
    quorate.sim.world.storages["pbs"].config["encryption-key"] = KEY.replace("36", "37")
    assert "backup-locked" in await cycle(quorate)


async def test_a_retention_that_the_user_of_the_storage_may_not_carry_out_is_found(quorate: BackupRig) -> None:
    connect_storage(quorate, **{"prune-backups": "keep-last=3"})
    assert await cycle(quorate) == {
        "backup-unpruned": "Storage pbs never removes old backups: pve@pbs!mcp may not prune /datastore/store1 on "
        "vault, although the storage sets a retention"
    }
    rows = (await quorate.facts("cluster_health", limit=200))["rows"]
    assert [row for row in rows if "never removes old backups" in str(row)]
    assert quorate.pbs is not None
    add_token(quorate.pbs, "pve", store1="DatastorePowerUser")
    assert await cycle(quorate) == {}


async def test_a_storage_that_keeps_all_needs_no_rights_to_prune(quorate: BackupRig) -> None:
    connect_storage(quorate, **{"prune-backups": "keep-all=1"})
    assert await cycle(quorate) == {}
