"""Proxmox Backup Servers: what their datastores, backups, jobs and tasks look like, and why they refuse."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path

import pytest

from pve_simulator.pbs.datastores import vm_snapshot
from quorate.config.policy import Policy, Rule
from quorate.pve.connection import Secret, Token, Trust
from tests.rigs.backup_server import BackupRig, add_token, backup_rig, settings_of
from tests.rigs.mcp_session import rig

pytestmark = pytest.mark.anyio


@pytest.fixture
async def quorate(tmp_path: Path) -> AsyncIterator[BackupRig]:
    async with backup_rig(tmp_path) as started:
        yield started


async def test_the_status_shows_every_datastore_with_its_space(quorate: BackupRig) -> None:
    rows = {row["datastore"]: row for row in await quorate.rows("pbs_status")}
    assert set(rows) == {"store1", "archive"}
    assert rows["store1"]["size"] == 252 << 30
    assert 0 < rows["store1"]["share"] < 1


async def test_the_status_names_the_version_and_the_failed_tasks(quorate: BackupRig) -> None:
    assert quorate.pbs is not None
    quorate.pbs.tasks.record("verify", "store1", "root@pam", status="verification failed - please check the log")
    facts = await quorate.facts("pbs_status", server="vault")
    assert facts["versions"] == {"vault": "PBS 4.1.1"}
    assert [task["type"] for task in facts["failed_tasks_of_24_hours"]] == ["verify"]


async def test_a_datastore_that_is_offline_does_not_hide_the_others(quorate: BackupRig) -> None:
    assert quorate.pbs is not None
    quorate.pbs.datastores["archive"].config["maintenance-mode"] = 'offline,message="new disks"'
    rows = {row["datastore"]: row for row in await quorate.rows("pbs_status")}
    assert "offline maintenance mode: new disks" in rows["archive"]["error"]
    assert rows["store1"]["size"] == 252 << 30


async def test_a_datastore_is_described_with_the_verification_of_each_namespace(quorate: BackupRig) -> None:
    facts = await quorate.facts("pbs_status", datastore="store1")
    assert facts["namespaces"]["(root)"]["backups"] == 5
    assert facts["namespaces"]["(root)"]["never_verified"] == 5
    assert facts["namespaces"]["prod"]["protected"] == 1
    assert facts["gc"]["schedule"] == "daily"


async def test_backups_of_all_namespaces_are_listed_newest_first(quorate: BackupRig) -> None:
    rows = await quorate.rows("pbs_backup_list")
    assert len(rows) == 6
    assert [row["namespace"] for row in rows if row["backup"].startswith("ct/102/")] == ["prod"]
    assert rows[-1]["backup"].startswith("host/nas/")
    assert rows[-1]["encrypted"] is True


@pytest.mark.parametrize(
    ("arguments", "backups"),
    [
        ({"guest": 100}, 3),
        ({"guest": "host/nas"}, 1),
        ({"guest": "nas"}, 1),
        ({"namespace": "prod"}, 1),
        ({"namespace": ""}, 5),
        ({"only": "stale", "days": 30}, 1),
        ({"only": "protected"}, 1),
        ({"only": "unencrypted"}, 5),
        ({"only": "unverified"}, 6),
        ({"only": "failed"}, 0),
        ({"datastore": "archive"}, 0),
    ],
)
async def test_backups_can_be_narrowed(quorate: BackupRig, arguments: dict[str, object], backups: int) -> None:
    assert len(await quorate.rows("pbs_backup_list", **arguments)) == backups


async def test_a_guest_is_found_by_its_name(quorate: BackupRig) -> None:
    name = next(row["name"] for row in await quorate.rows("guest_list") if row["vmid"] == 100)
    rows = await quorate.rows("pbs_backup_list", guest=name)
    assert {row["backup"][:7] for row in rows} == {"vm/100/"}


async def test_a_backup_shows_the_configuration_of_its_guest_without_secrets(quorate: BackupRig) -> None:
    newest = (await quorate.rows("pbs_backup_list", guest=100))[0]
    facts = await quorate.facts("pbs_backup_get", backup=newest["backup"], datastore="store1")
    assert facts["configuration"]["name"] == "web01"
    assert "secret-of-the-guest" not in str(facts)
    assert facts["files"]["drive-scsi0.img.fidx"] == 64 << 20
    assert facts["verified"] == "never"


async def test_an_encrypted_backup_names_its_key(quorate: BackupRig) -> None:
    row = (await quorate.rows("pbs_backup_list", guest="host/nas"))[0]
    facts = await quorate.facts("pbs_backup_get", backup=row["backup"], datastore="store1")
    assert facts["encryption"] == "encrypted"
    assert facts["key"].startswith("36:3b:")


async def test_a_missing_backup_is_refused(quorate: BackupRig) -> None:
    text = await quorate.refusal("pbs_backup_get", backup="vm/100/2020-01-01T00:00:00Z", datastore="store1")
    assert "There is no backup vm/100/2020-01-01T00:00:00Z in vault/store1" in text


async def test_a_malformed_reference_is_refused(quorate: BackupRig) -> None:
    text = await quorate.refusal("pbs_backup_get", backup="web01", datastore="store1")
    assert "TYPE/ID/TIME" in text


async def test_a_datastore_must_be_named_where_there_are_several(quorate: BackupRig) -> None:
    text = await quorate.refusal("pbs_gc")
    assert "vault has 2 datastores" in text
    assert "archive, store1" in text


async def test_an_unknown_datastore_is_refused_with_those_that_exist(quorate: BackupRig) -> None:
    text = await quorate.refusal("pbs_backup_list", datastore="tank")
    assert "no datastore 'tank'" in text
    assert "It sees archive, store1" in text


async def test_jobs_show_their_state_and_what_stops_them(quorate: BackupRig) -> None:
    assert quorate.pbs is not None
    quorate.pbs.sections["verify"]["weekly"] = {"id": "weekly", "store": "store1", "schedule": "sun 03:00"}
    quorate.pbs.sections["prune"]["old"] = {"id": "old", "store": "gone", "schedule": "daily", "keep-last": 3}
    push = {"id": "off", "store": "store1", "remote": "b", "remote-store": "x", "sync-direction": "push"}
    quorate.pbs.sections["sync"]["off"] = push
    rows = {row["id"] or row["kind"]: row for row in await quorate.rows("pbs_job_list")}
    assert rows["weekly"]["what"] == "each backup once"
    assert rows["old"]["trouble"].startswith("its datastore does not exist")
    assert rows["off"]["what"] == "push to b:x"
    assert rows["gc"]["schedule"] == "daily"


async def test_tasks_are_listed_and_a_failed_one_says_why(quorate: BackupRig) -> None:
    assert quorate.pbs is not None
    lines = (
        "verify store1:vm/101",
        "Failed to verify the following snapshots/groups:",
        "\tvm/101/2025-01-01T00:00:00Z",
    )
    task = quorate.pbs.tasks.record("verify", "store1", "root@pam", lines=lines, status="verification failed")
    rows = await quorate.rows("pbs_task_list", status="failed")
    assert [row["task"] for row in rows] == [task.upid]
    facts = await quorate.facts("pbs_task_get", task=task.upid)
    assert facts["status"] == "failed"
    assert facts["cause"][1] == "vm/101/2025-01-01T00:00:00Z"
    assert facts["log"][0] == "verify store1:vm/101"


async def test_an_id_of_a_task_of_pve_is_refused(quorate: BackupRig) -> None:
    text = await quorate.refusal("pbs_task_get", task="UPID:pve1:00000504:1464B400:6AF9FEE0:aptupdate::root@pam:")
    assert "is not a task id of a backup server" in text


# -- connections and rights --------------------------------------------------------------------------------------------


async def test_a_token_without_rights_learns_which_role_it_lacks(tmp_path: Path) -> None:
    async with backup_rig(
        tmp_path, connect=lambda pbs: (settings_of(pbs, credentials=add_token(pbs, "blind")),)
    ) as quorate:
        text = await quorate.refusal("pbs_backup_list")
    assert "blind@pbs!mcp sees no datastore of vault" in text
    assert "proxmox-backup-manager acl update /datastore DatastoreAudit --auth-id 'blind@pbs!mcp'" in text


async def test_a_missing_privilege_is_named_with_its_command(tmp_path: Path) -> None:
    async with backup_rig(
        tmp_path,
        connect=lambda pbs: (settings_of(pbs, credentials=add_token(pbs, "maker", store1="DatastoreBackup")),),
    ) as quorate:
        text = await quorate.refusal("pbs_status", datastore="store1")
    assert "It needs the privilege Datastore.Audit on /datastore/store1" in text
    assert "acl update /datastore/store1 DatastoreAudit --auth-id 'maker@pbs'" in text


async def test_wrong_secrets_are_refused_in_the_words_of_the_server(tmp_path: Path) -> None:
    async with backup_rig(
        tmp_path, connect=lambda pbs: (settings_of(pbs, credentials=Token(pbs.token_id, Secret("wrong"))),)
    ) as quorate:
        text = await quorate.refusal("pbs_status")
    assert "authentication failed - invalid credentials" in text


async def test_another_certificate_is_not_trusted(tmp_path: Path) -> None:
    async with backup_rig(
        tmp_path, connect=lambda pbs: (settings_of(pbs, trust=Trust(fingerprint="ab" * 32)),)
    ) as quorate:
        text = await quorate.refusal("pbs_status")
    assert "is not the pinned one" in text
    assert "proxmox-backup-manager cert info" in text


async def test_a_server_that_is_offline_does_not_hide_the_others(tmp_path: Path) -> None:
    async with backup_rig(
        tmp_path,
        connect=lambda pbs: (settings_of(pbs), settings_of(pbs, "away", endpoints=("https://127.0.0.1:1",))),
    ) as quorate:
        facts = await quorate.facts("pbs_status")
        alone = await quorate.refusal("pbs_status", server="away")
    assert {row[0] for row in facts["rows"]} == {"vault"}
    assert "No connection to https://127.0.0.1:1" in facts["no_answer"]["away"]
    assert "No connection to https://127.0.0.1:1" in alone


async def test_the_secret_of_the_token_is_never_shown(quorate: BackupRig) -> None:
    assert quorate.pbs is not None
    quorate.store.namespaces[""]["vm", "100"].in_order()[-1].notes = f"token {quorate.pbs.token_secret}"
    answer = await quorate.call("pbs_backup_list", guest=100)
    assert quorate.pbs.token_secret not in str(answer)


async def test_without_a_backup_server_the_tools_say_how_to_add_one(tmp_path: Path) -> None:
    async with rig(tmp_path, toolsets=("pbs",)) as quorate:
        assert "[pbs.NAME]" in await quorate.refusal("pbs_status")


async def test_the_tools_are_listed_only_where_a_backup_server_is_configured(tmp_path: Path) -> None:
    async with rig(tmp_path / "a", toolsets=None) as without:
        assert not [tool.name for tool in (await without.client.list_tools()).tools if tool.name.startswith("pbs_")]
    async with backup_rig(tmp_path / "b", toolsets=None) as having:
        assert "pbs_status" in [tool.name for tool in (await having.client.list_tools()).tools]


async def test_backups_of_guests_that_a_rule_hides_are_not_listed(tmp_path: Path) -> None:
    policy = Policy((Rule("private", allows=False, level="read", vmids=(range(100, 101),)),))
    async with backup_rig(tmp_path, more={"policy": policy}) as quorate:
        rows = await quorate.rows("pbs_backup_list")
        text = await quorate.refusal("pbs_backup_get", backup="vm/100", datastore="store1")
    assert not [row for row in rows if row["backup"].startswith("vm/100/")]
    assert "is refused by the rule 'private'" in text


# -- the same backups as the cluster sees them -------------------------------------------------------------------------


async def test_a_backup_of_the_cluster_shows_what_its_backup_server_knows(quorate: BackupRig) -> None:
    assert quorate.pbs is not None
    storage = quorate.sim.world.storages["pbs"]
    storage.config |= {"fingerprint": quorate.pbs.fingerprint, "datastore": "store1"}
    row = next(row for row in await quorate.rows("backup_list", storage="pbs") if row["type"] == "vm")
    shown = await quorate.facts("backup_show", backup=row["backup"])
    assert "There is no backup" in shown["backup_server"]["not_read"]
    kind, vmid, when = row["backup"].rpartition("backup/")[2].split("/")
    time = int(datetime.strptime(when, "%Y-%m-%dT%H:%M:%S%z").timestamp())
    quorate.store.add(vm_snapshot(vmid, time, "name: web\n", {"drive-scsi0": 1 << 20}), owner="root@pam!backup")
    await quorate.facts("pbs_verify", datastore="store1", backup=f"{kind}/{vmid}/{when}")
    shown = await quorate.facts("backup_show", backup=row["backup"])
    assert shown["backup_server"]["server"] == "vault"
    assert shown["backup_server"]["verified"] == "ok"
    assert ":verify_snapshot:" in shown["backup_server"]["verified_by"]


async def test_the_lists_of_the_cluster_show_when_a_backup_was_verified_and_the_newest_good_one(
    quorate: BackupRig,
) -> None:
    await quorate.facts("backup_create", guest=102, storage="pbs")
    volumes = [volume for volume in quorate.sim.world.storages["pbs"].volumes("pve1") if volume.vmid == 102]
    newest, older = sorted(volumes, key=lambda volume: -volume.ctime)[:2]
    newest.verified, older.verified, newest.encrypted = False, True, "36:3b:aa"
    rows = {row["backup"]: row for row in await quorate.rows("backup_list", storage="pbs", guest=102)}
    assert rows[older.volid]["verified_at"]
    assert rows[older.volid]["verified"] == "ok"
    assert rows[newest.volid]["encrypted"] is True
    assert not rows[older.volid]["encrypted"]
    (row,) = [row for row in await quorate.rows("backup_coverage", all=True) if row["vmid"] == 102]
    assert row["verified"] == "failed"
    everywhere = await quorate.rows("backup_list", guest=102)
    assert row["newest_good"] == min(each["age"] for each in everywhere if each["verified"] == "ok") > row["newest"]


async def test_a_storage_elsewhere_is_not_taken_for_a_backup_server(quorate: BackupRig) -> None:
    row = next(row for row in await quorate.rows("backup_list", storage="pbs") if row["type"] == "vm")
    assert "backup_server" not in await quorate.facts("backup_show", backup=row["backup"])
