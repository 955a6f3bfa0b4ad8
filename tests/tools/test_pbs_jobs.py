"""Jobs of Proxmox Backup Servers: an approval covers the job and the removals it showed, and rules protect both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mcp.types import ElicitResult

from quorate.config import Access, Approval
from quorate.config.policy import Policy, Rule
from quorate.pipeline.approval import READING_SECONDS
from tests.rigs.backup_server import OWNER, BackupRig, backup_rig

pytestmark = pytest.mark.anyio

PRUNE = {"id": "old", "store": "store1", "schedule": "daily", "keep-last": 1}
MIRROR = {"id": "mirror", "store": "archive", "remote-store": "store1", "remove-vanished": True}


def add_jobs(quorate: BackupRig) -> None:
    """A prune job of store1, and a job that makes archive a mirror of it; archive has what store1 has."""
    assert quorate.pbs is not None
    quorate.pbs.sections["prune"]["old"] = dict(PRUNE)
    quorate.pbs.sections["sync"]["mirror"] = dict(MIRROR)
    for namespace, group in list(quorate.store.everything()):
        for snapshot in group.in_order():
            copied = quorate.pbs.datastores["archive"].add(replace(snapshot), owner=OWNER, namespace=namespace)
            copied.protected = False


def count_backups(quorate: BackupRig, store: str) -> int:
    assert quorate.pbs is not None
    return sum(len(group.snapshots) for _, group in quorate.pbs.datastores[store].everything())


def add_newer(quorate: BackupRig) -> None:
    newest = quorate.store.namespaces[""]["vm", "100"].newest()
    quorate.store.add(replace(newest, time=newest.time + 3600), owner=OWNER)


def keep_less(quorate: BackupRig) -> None:
    assert quorate.pbs is not None
    quorate.pbs.sections["prune"]["old"] |= {"keep-last": 2}


def lose_at_source(quorate: BackupRig) -> None:
    group = quorate.store.namespaces[""]["vm", "100"]
    quorate.store.remove("", group, group.newest(), quorate.clock.now())


def mirror_another(quorate: BackupRig) -> None:
    assert quorate.pbs is not None
    quorate.pbs.add_datastore("empty")
    quorate.pbs.sections["sync"]["mirror"] |= {"remote-store": "empty"}


@pytest.mark.parametrize(
    ("kind", "job", "word", "change", "why"),
    [
        ("prune", "old", "vault/store1", add_newer, "The backups have changed since this was planned"),
        ("prune", "old", "vault/store1", keep_less, "The prune job old has changed since this was planned"),
        ("sync", "mirror", "vault/archive", lose_at_source, "The backups have changed since this was planned"),
        ("sync", "mirror", "vault/archive", mirror_another, "The sync job mirror has changed since this was planned"),
    ],
)
async def test_a_job_is_not_run_if_it_would_remove_other_backups_than_the_question_showed(
    tmp_path: Path, kind: str, job: str, word: str, change: Callable[[BackupRig], None], why: str
) -> None:
    started: list[BackupRig] = []

    async def answer(context: Any, params: Any) -> ElicitResult:
        change(started[0])
        await started[0].clock.advance(READING_SECONDS)
        return ElicitResult(action="accept", content={"typed": word})

    async with backup_rig(tmp_path, approval=Approval.ASK, elicitation=answer, mode="legacy") as quorate:
        started.append(quorate)
        add_jobs(quorate)
        before = count_backups(quorate, "archive")
        text = await quorate.refusal("pbs_job_run", kind=kind, job=job)
        assert count_backups(quorate, "archive") == before
        assert len(quorate.store.namespaces[""]["vm", "100"].snapshots) >= 2
    assert why in text


@pytest.mark.parametrize(
    ("kind", "job", "change"),
    [("prune", "old", add_newer), ("prune", "old", keep_less), ("sync", "mirror", lose_at_source)],
)
async def test_the_token_of_a_dry_run_covers_only_the_removals_that_it_showed(
    tmp_path: Path, kind: str, job: str, change: Callable[[BackupRig], None]
) -> None:
    async with backup_rig(tmp_path, approval=Approval.TOKEN) as quorate:
        add_jobs(quorate)
        arguments: dict[str, Any] = {"kind": kind, "job": job}
        await quorate.refusal("pbs_job_run", **arguments)
        token = (await quorate.facts("pbs_job_run", **arguments, dry_run=True))["plan_token"]
        change(quorate)
        assert "plan token" in await quorate.refusal("pbs_job_run", **arguments, plan_token=token)
        token = (await quorate.facts("pbs_job_run", **arguments, dry_run=True))["plan_token"]
        assert (await quorate.facts("pbs_job_run", **arguments, plan_token=token))["result"] == "done"


async def test_a_sync_that_removes_what_vanished_names_it_first(tmp_path: Path) -> None:
    async with backup_rig(tmp_path) as quorate:
        add_jobs(quorate)
        assert "may_remove" not in await quorate.facts("pbs_job_run", kind="sync", job="mirror", dry_run=True)
        lose_at_source(quorate)
        planned = await quorate.facts("pbs_job_run", kind="sync", job="mirror", dry_run=True)
        before = count_backups(quorate, "archive")
        await quorate.facts("pbs_job_run", kind="sync", job="mirror")
        assert [name[:7] for name in planned["may_remove"]] == ["vm/100/"]
        assert count_backups(quorate, "archive") == before - 1


async def test_a_sync_from_a_remote_may_remove_everything_that_is_not_protected(tmp_path: Path) -> None:
    async with backup_rig(tmp_path) as quorate:
        add_jobs(quorate)
        assert quorate.pbs is not None
        quorate.pbs.sections["sync"]["mirror"] |= {"store": "store1", "remote": "far", "remote-store": "x"}
        facts = await quorate.facts("pbs_job_run", kind="sync", job="mirror", dry_run=True)
    assert len(facts["may_remove"]) == 5  # all but the protected one in prod


async def test_only_prune_jobs_can_be_disabled_as_pbs_has_it(tmp_path: Path) -> None:
    async with backup_rig(tmp_path) as quorate:
        add_jobs(quorate)
        text = await quorate.refusal("pbs_job_set", kind="sync", job="mirror", datastore="archive", enabled=False)
        assert "enabled does not apply to a sync job" in text
        facts = await quorate.facts("pbs_job_set", kind="prune", job="old", datastore="store1", enabled=False)
        assert facts["before"] == {"disable": ""}


async def test_a_sync_that_removes_is_not_changed_without_access_admin(tmp_path: Path) -> None:
    async with backup_rig(tmp_path, access=Access.OPERATE) as quorate:
        add_jobs(quorate)
        arguments = {"kind": "sync", "job": "mirror", "datastore": "archive"}
        assert "it removes backups" in await quorate.refusal("pbs_job_set", **arguments, schedule="hourly")
        assert "it removes backups" in await quorate.refusal("pbs_job_run", kind="sync", job="mirror")
        assert (await quorate.facts("pbs_job_set", **arguments, comment="nightly"))["result"] == "done"


async def test_a_job_is_not_changed_if_someone_else_changed_it_since(tmp_path: Path) -> None:
    async with backup_rig(tmp_path, approval=Approval.TOKEN) as quorate:
        add_jobs(quorate)
        arguments: dict[str, Any] = {"kind": "prune", "job": "old", "datastore": "store1", "schedule": "hourly"}
        token = (await quorate.facts("pbs_job_set", **arguments, dry_run=True))["plan_token"]
        keep_less(quorate)
        assert "plan token" in await quorate.refusal("pbs_job_set", **arguments, plan_token=token)


async def test_a_namespace_is_not_deleted_if_one_was_created_in_it_since(tmp_path: Path) -> None:
    async with backup_rig(tmp_path, approval=Approval.TOKEN) as quorate:
        quorate.store.namespaces["prod"]["ct", "102"].in_order()[0].protected = False
        arguments: dict[str, Any] = {"namespace": "prod", "datastore": "store1", "with_backups": True}
        token = (await quorate.facts("pbs_namespace_delete", **arguments, dry_run=True))["plan_token"]
        newest = quorate.store.namespaces[""]["vm", "100"].newest()
        quorate.store.add(replace(newest, id="555"), owner=OWNER, namespace="prod/web")
        assert "plan token" in await quorate.refusal("pbs_namespace_delete", **arguments, plan_token=token)
        assert "prod/web" in quorate.store.namespaces


# -- rules -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", ["store1", "store1/prod"])
@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("pbs_job_set", {"kind": "verify", "job": "weekly", "datastore": "store1", "schedule": "daily"}),
        ("pbs_job_set", {"kind": "verify", "job": "weekly", "datastore": "archive", "schedule": "daily"}),
        ("pbs_job_set", {"kind": "prune", "job": "old", "datastore": "archive", "keep": "last=9"}),
        ("pbs_job_set", {"kind": "prune", "job": "new", "datastore": "store1", "keep": "last=9"}),
        ("pbs_job_run", {"kind": "verify", "job": "weekly"}),
        ("pbs_job_run", {"kind": "prune", "job": "old"}),
        ("pbs_verify", {"datastore": "store1"}),
        ("pbs_api", {"method": "DELETE", "path": "/config/prune/old"}),
        ("pbs_api", {"method": "POST", "path": "/admin/prune/old/run"}),
    ],
)
async def test_a_rule_about_a_datastore_protects_its_jobs(
    tmp_path: Path, pattern: str, tool: str, arguments: dict[str, Any]
) -> None:
    policy = Policy((Rule("cold", allows=False, level="change", datastores=(pattern,)),))
    async with backup_rig(tmp_path, more={"policy": policy}) as quorate:
        add_jobs(quorate)
        assert quorate.pbs is not None
        quorate.pbs.sections["verify"]["weekly"] = {"id": "weekly", "store": "store1", "schedule": "sun 03:00"}
        quorate.pbs.sections["prune"]["old"] |= {"keep-last": 9}
        text = await quorate.refusal(tool, **arguments)
    assert "is refused by the rule 'cold'" in text


async def test_a_job_of_a_datastore_that_is_offline_can_be_changed(tmp_path: Path) -> None:
    async with backup_rig(tmp_path) as quorate:
        assert quorate.pbs is not None
        quorate.pbs.datastores["archive"].config["maintenance-mode"] = "offline"
        quorate.pbs.sections["verify"]["weekly"] = {"id": "weekly", "store": "archive", "schedule": "sun 03:00"}
        facts = await quorate.facts(
            "pbs_job_set", kind="verify", job="weekly", datastore="archive", comment="until the disks are here"
        )
    assert facts["result"] == "done"


# -- prune -------------------------------------------------------------------------------------------------------------


async def test_a_prune_of_one_backup_is_refused_because_it_would_prune_all_of_the_guest(tmp_path: Path) -> None:
    async with backup_rig(tmp_path) as quorate:
        newest = quorate.store.namespaces[""]["vm", "100"].newest().name
        text = await quorate.refusal("pbs_prune", keep="last=1", datastore="store1", backup=newest)
        assert len(quorate.store.namespaces[""]["vm", "100"].snapshots) == 3
    assert "a retention applies to all of vm/100" in text
    assert "pbs_backup_delete" in text


# -- the raw API -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "params", "change"),
    [
        ("/admin/prune/old/run", {}, keep_less),
        ("/admin/prune/old/run", {}, add_newer),
        ("/admin/sync/mirror/run", {}, mirror_another),
        ("/admin/sync/mirror/run", {}, lose_at_source),
        ("/admin/datastore/store1/prune-datastore", {"keep-last": 1}, add_newer),
        ("/admin/datastore/store1/prune", {"backup-type": "vm", "backup-id": "100", "keep-last": 1}, add_newer),
    ],
)
async def test_a_raw_call_that_removes_is_bound_to_the_backups_and_the_job_that_it_was_planned_on(
    tmp_path: Path, path: str, params: dict[str, Any], change: Callable[[BackupRig], None]
) -> None:
    async with backup_rig(tmp_path, approval=Approval.TOKEN) as quorate:
        add_jobs(quorate)
        arguments: dict[str, Any] = {"method": "POST", "path": path, "params": params}
        token = (await quorate.facts("pbs_api", **arguments, dry_run=True))["plan_token"]
        change(quorate)
        assert "plan token" in await quorate.refusal("pbs_api", **arguments, plan_token=token)
        token = (await quorate.facts("pbs_api", **arguments, dry_run=True))["plan_token"]
        assert (await quorate.facts("pbs_api", **arguments, plan_token=token))["result"] == "done"


async def test_a_task_is_not_stopped_by_a_raw_call_because_its_id_can_be_forged(tmp_path: Path) -> None:
    async with backup_rig(tmp_path) as quorate:
        assert quorate.pbs is not None
        task = quorate.pbs.tasks.start("backup", "store1:vm/100", "root@pam", lambda _: None, 3600.0)
        forged = f"{':'.join(task.upid.split(':')[:6])}:verify:store1:root@pam:"
        text = await quorate.refusal("pbs_api", method="DELETE", path=f"/nodes/localhost/tasks/{forged}")
        assert task.end is None
    assert "pbs_task_stop" in text
