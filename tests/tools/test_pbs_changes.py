"""Changes on Proxmox Backup Servers: what is planned is what is done, and what protects backups needs approval."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mcp.types import ElicitResult

from pve_simulator.clock import ManualClock
from quorate.config import Access, Approval
from quorate.config.policy import Policy, Rule
from quorate.pipeline.approval import READING_SECONDS
from tests.rigs.backup_server import BackupRig, add_token, backup_rig, settings_of

pytestmark = pytest.mark.anyio


@pytest.fixture
async def quorate(tmp_path: Path) -> AsyncIterator[BackupRig]:
    async with backup_rig(tmp_path) as started:
        yield started


async def names(quorate: BackupRig, **arguments: object) -> list[str]:
    return [row["backup"] for row in await quorate.rows("pbs_backup_list", **arguments)]


def writes(quorate: BackupRig, since: int) -> list[tuple[str, str]]:
    assert quorate.pbs is not None
    return [(method, path) for method, path in quorate.pbs.requests[since:] if method != "GET"]


# -- verification ------------------------------------------------------------------------------------------------------


async def test_a_guests_backups_are_verified_and_the_task_is_followed(quorate: BackupRig) -> None:
    facts = await quorate.facts("pbs_verify", datastore="store1", backup="vm/100")
    assert facts["result"] == "done"
    assert ":verify_group:" in facts["task"]
    rows = await quorate.rows("pbs_backup_list", guest=100)
    assert {row["verified"][:2] for row in rows} == {"ok"}


async def test_a_damaged_backup_is_named_by_a_failed_verification(quorate: BackupRig) -> None:
    text = await quorate.refusal("pbs_verify", datastore="store1")
    assert "verification failed" in text
    assert "vm/101/" in text
    assert [name[:7] for name in await names(quorate, only="failed")] == ["vm/101/"]


async def test_a_backup_that_does_not_exist_is_not_verified(quorate: BackupRig) -> None:
    assert "There is no backup vm/999" in await quorate.refusal("pbs_verify", datastore="store1", backup="vm/999")


async def test_a_change_is_in_the_audit_trail_with_its_request(quorate: BackupRig) -> None:
    await quorate.facts("pbs_verify", datastore="store1", backup="vm/100")
    (entry,) = quorate.audit()
    assert entry["tool"] == "pbs_verify"
    assert entry["calls"] == [
        "vault: POST /admin/datastore/store1/verify backup-type=vm backup-id=100 ignore-verified=1"
    ]
    assert entry["outcome"] == "done"


# -- garbage collection ------------------------------------------------------------------------------------------------


async def test_garbage_collection_reports_what_it_freed(quorate: BackupRig) -> None:
    facts = await quorate.facts("pbs_gc", datastore="store1")
    assert facts["result"] == "done"
    assert facts["on_disk"] > 0
    (row,) = [row for row in await quorate.rows("pbs_status") if row["datastore"] == "store1"]
    assert row["last_gc"]
    assert row["dedup"] > 1


# -- prune -------------------------------------------------------------------------------------------------------------


async def test_a_dry_run_of_a_prune_names_every_backup_and_removes_none(quorate: BackupRig) -> None:
    before = await names(quorate)
    facts = await quorate.facts("pbs_prune", datastore="store1", keep="last=1", dry_run=True)
    assert [name[:7] for name in facts["removes"]] == ["vm/100/", "vm/100/"]
    assert facts["keeps"] == 3
    assert await names(quorate) == before


async def test_a_prune_removes_what_its_dry_run_named(quorate: BackupRig) -> None:
    planned = await quorate.facts("pbs_prune", datastore="store1", keep="last=1", dry_run=True)
    before = await names(quorate)
    facts = await quorate.facts("pbs_prune", datastore="store1", keep="last=1")
    assert facts["removed"] == 2
    assert {*before} - {*await names(quorate)} == {*planned["removes"]}


async def test_protected_backups_survive_a_prune(quorate: BackupRig) -> None:
    oldest = (await names(quorate, guest=100))[-1]
    await quorate.facts("pbs_backup_update", backup=oldest, datastore="store1", protected=True)
    facts = await quorate.facts("pbs_prune", datastore="store1", keep="last=1", backup="vm/100")
    assert facts["protected"] == 1
    assert oldest in await names(quorate)


async def test_a_retention_that_prunes_nothing_is_neither_taken_nor_suggested(quorate: BackupRig) -> None:
    for tool, place in (("pbs_prune", {"datastore": "store1"}), ("backup_prune", {"storage": "nas"})):
        assert "Keeping all removes nothing" in await quorate.refusal(tool, keep="all", **place)
        assert "or all" not in await quorate.refusal(tool, keep="some", **place)
    assert "or all" in await quorate.refusal("backup_job_set", schedule="02:00", storage="nas", keep="some", pool="lab")


async def test_a_prune_that_keeps_everything_does_nothing(quorate: BackupRig) -> None:
    facts = await quorate.facts("pbs_prune", datastore="store1", keep="last=9")
    assert facts["result"] == "nothing to do"


@pytest.mark.parametrize(
    ("keep", "message"),
    [("all", "Keeping all removes nothing"), ("newest=3", "is not a retention"), ("last=0", "keeps nothing")],
)
async def test_a_retention_that_makes_no_sense_is_refused(quorate: BackupRig, keep: str, message: str) -> None:
    assert message in await quorate.refusal("pbs_prune", datastore="store1", keep=keep)


async def test_a_prune_warns_of_the_last_verified_backup(quorate: BackupRig) -> None:
    oldest = (await names(quorate, guest=100))[-1]
    await quorate.facts("pbs_verify", datastore="store1", backup=oldest)
    facts = await quorate.facts("pbs_prune", datastore="store1", keep="last=1", dry_run=True)
    assert facts["warnings"] == ["vm/100 keeps no backup in vault/store1 that was verified"]


async def test_a_token_that_may_not_prune_learns_which_role_it_lacks(tmp_path: Path) -> None:
    async with backup_rig(
        tmp_path, connect=lambda pbs: (settings_of(pbs, credentials=add_token(pbs, "reader", _="Audit")),)
    ) as quorate:
        text = await quorate.refusal("pbs_prune", datastore="store1", keep="last=1")
    assert "Datastore.Modify|Datastore.Prune" in text
    assert "proxmox-backup-manager acl update /datastore/store1 DatastoreAdmin --auth-id 'reader@pbs!mcp'" in text


# -- deleting and updating ---------------------------------------------------------------------------------------------


async def test_one_backup_is_deleted(quorate: BackupRig) -> None:
    newest, *others = await names(quorate, guest=100)
    facts = await quorate.facts("pbs_backup_delete", backup=newest, datastore="store1")
    assert facts["removes"] == [newest]
    assert await names(quorate, guest=100) == others


async def test_all_backups_of_a_guest_are_deleted_with_a_warning(quorate: BackupRig) -> None:
    facts = await quorate.facts("pbs_backup_delete", backup="vm/100", datastore="store1")
    assert facts["warnings"] == ["vm/100 has no other backup in vault/store1"]
    assert await names(quorate, guest=100) == []


async def test_a_protected_backup_is_named_before_anything_is_deleted(quorate: BackupRig) -> None:
    since = len(quorate.pbs.requests) if quorate.pbs else 0
    text = await quorate.refusal("pbs_backup_delete", backup="ct/102", datastore="store1", namespace="prod")
    assert "is protected" in text
    assert "pbs_backup_update protected=false" in text
    assert writes(quorate, since) == []


async def test_the_others_of_a_guest_are_deleted_if_the_protected_ones_may_stay(quorate: BackupRig) -> None:
    newest, *_ = await names(quorate, guest=100)
    await quorate.facts("pbs_backup_update", backup=newest, datastore="store1", protected=True)
    await quorate.facts("pbs_backup_delete", backup="vm/100", datastore="store1", keep_protected=True)
    assert await names(quorate, guest=100) == [newest]


async def test_notes_and_protection_are_set_once(quorate: BackupRig) -> None:
    newest, *_ = await names(quorate, guest=100)
    arguments: dict[str, Any] = {"backup": newest, "datastore": "store1", "notes": "golden\nimage", "protected": True}
    assert (await quorate.facts("pbs_backup_update", **arguments))["result"] == "done"
    shown = await quorate.facts("pbs_backup_get", backup=newest, datastore="store1")
    assert (shown["notes"], shown["protected"]) == ("golden\nimage", True)
    assert (await quorate.facts("pbs_backup_update", **arguments))["result"] == "nothing to do"


async def test_the_owner_of_a_guests_backups_is_changed(quorate: BackupRig) -> None:
    assert quorate.pbs is not None
    add_token(quorate.pbs, "other")
    await quorate.facts("pbs_backup_update", backup="vm/100", datastore="store1", owner="other@pbs")
    assert {row["owner"] for row in await quorate.rows("pbs_backup_list", guest=100)} == {"other@pbs"}


async def test_an_owner_that_does_not_exist_is_refused_in_the_words_of_the_server(quorate: BackupRig) -> None:
    text = await quorate.refusal("pbs_backup_update", backup="vm/100", datastore="store1", owner="nobody@pbs")
    assert "user 'nobody@pbs' is inactive or non-existent" in text


async def test_the_protection_of_a_whole_guest_is_refused(quorate: BackupRig) -> None:
    text = await quorate.refusal("pbs_backup_update", backup="vm/100", datastore="store1", protected=True)
    assert "Name one with its time" in text


# -- namespaces --------------------------------------------------------------------------------------------------------


async def test_a_namespace_is_created_with_its_parents_and_deleted(quorate: BackupRig) -> None:
    await quorate.facts("pbs_namespace_create", datastore="archive", namespace="a/b")
    assert "a/b" in (await quorate.facts("pbs_status", datastore="archive"))["namespaces"]
    again = await quorate.facts("pbs_namespace_create", datastore="archive", namespace="a/b")
    assert again["result"] == "nothing to do"
    await quorate.facts("pbs_namespace_delete", datastore="archive", namespace="a")
    assert list((await quorate.facts("pbs_status", datastore="archive"))["namespaces"]) == ["(root)"]


async def test_a_namespace_with_backups_is_deleted_only_on_request_and_without_protection(quorate: BackupRig) -> None:
    arguments: dict[str, Any] = {"datastore": "store1", "namespace": "prod"}
    assert "has 1 backup" in await quorate.refusal("pbs_namespace_delete", **arguments)
    assert "are protected" in await quorate.refusal("pbs_namespace_delete", **arguments, with_backups=True)
    (backup,) = await names(quorate, namespace="prod")
    await quorate.facts("pbs_backup_update", backup=backup, **arguments, protected=False)
    facts = await quorate.facts("pbs_namespace_delete", **arguments, with_backups=True)
    assert facts["removed_backups"] == 1


# -- jobs and tasks ----------------------------------------------------------------------------------------------------


async def test_a_verify_job_is_created_changed_and_run(quorate: BackupRig) -> None:
    arguments: dict[str, Any] = {"kind": "verify", "job": "weekly", "datastore": "archive"}
    await quorate.facts("pbs_job_set", **arguments, schedule="sun 03:00", again_after=30)
    (row,) = await quorate.rows("pbs_job_list", kind="verify")
    assert (row["schedule"], row["what"]) == ("sun 03:00", "again after 30 days")
    same = await quorate.facts("pbs_job_set", **arguments, schedule="sun 03:00")
    assert same["result"] == "nothing to do"
    changed = await quorate.facts("pbs_job_set", **arguments, schedule="sat 04:00")
    assert changed["before"] == {"schedule": "sun 03:00"}
    assert (await quorate.facts("pbs_job_run", kind="verify", job="weekly"))["result"] == "done"


async def test_a_prune_job_shows_what_it_would_remove_now(quorate: BackupRig) -> None:
    facts = await quorate.facts("pbs_job_set", kind="prune", job="old", datastore="store1", keep="last=1", dry_run=True)
    assert len(facts["now_removes"]) == 2
    await quorate.facts("pbs_job_set", kind="prune", job="old", datastore="store1", keep="last=1")
    facts = await quorate.facts("pbs_job_run", kind="prune", job="old")
    assert len(facts["removes"]) == 2
    assert len(await names(quorate, guest=100)) == 1


async def test_a_job_for_a_datastore_or_remote_that_does_not_exist_is_refused(quorate: BackupRig) -> None:
    text = await quorate.refusal("pbs_job_set", kind="verify", job="weekly", datastore="tank")
    assert "no datastore 'tank'" in text
    text = await quorate.refusal(
        "pbs_job_set", kind="sync", job="off", datastore="store1", remote="far", remote_datastore="x"
    )
    assert "no remote 'far'" in text


async def test_a_schedule_that_cannot_be_parsed_is_refused_in_the_words_of_the_server(quorate: BackupRig) -> None:
    text = await quorate.refusal("pbs_job_set", kind="verify", job="weekly", datastore="store1", schedule="often")
    assert "unable to parse calendar event" in text


async def test_an_argument_of_another_kind_of_job_is_refused(quorate: BackupRig) -> None:
    text = await quorate.refusal("pbs_job_set", kind="verify", job="weekly", datastore="store1", keep="last=1")
    assert "keep does not apply to a verify job" in text


async def test_the_schedule_of_garbage_collection_is_set(quorate: BackupRig) -> None:
    await quorate.facts("pbs_job_set", kind="gc", datastore="archive", schedule="sat 05:00")
    rows = {row["datastore"]: row["schedule"] for row in await quorate.rows("pbs_job_list", kind="gc")}
    assert rows == {"archive": "sat 05:00", "store1": "daily"}


async def test_a_job_that_points_at_nothing_is_not_run(quorate: BackupRig) -> None:
    assert quorate.pbs is not None
    quorate.pbs.sections["prune"]["old"] = {"id": "old", "store": "gone", "schedule": "daily", "keep-last": 3}
    assert "its datastore does not exist" in await quorate.refusal("pbs_job_run", kind="prune", job="old")


async def test_a_running_task_is_stopped(quorate: BackupRig) -> None:
    assert quorate.pbs is not None
    task = quorate.pbs.tasks.start("verify", "store1", "root@pam", lambda _: None, 3600)
    facts = await quorate.facts("pbs_task_stop", task=task.upid)
    assert facts["exit"] == "task aborted"
    again = await quorate.facts("pbs_task_stop", task=task.upid)
    assert again["result"] == "nothing to do"


# -- risk, rules, approval ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tool", "arguments", "allowed"),
    [
        ("pbs_verify", {"backup": "vm/100"}, True),
        ("pbs_gc", {}, True),
        ("pbs_prune", {"keep": "last=1"}, False),
        ("pbs_backup_delete", {"backup": "vm/100"}, False),
        ("pbs_backup_update", {"backup": "vm/100", "notes": "x"}, True),
        ("pbs_backup_update", {"backup": "vm/100", "owner": "root@pam"}, False),
        ("pbs_job_set", {"kind": "verify", "job": "weekly", "schedule": "daily"}, True),
        ("pbs_job_set", {"kind": "prune", "job": "old", "keep": "last=1"}, False),
        ("pbs_job_set", {"kind": "gc", "schedule": "sat 05:00"}, True),
        ("pbs_job_set", {"kind": "gc", "schedule": ""}, False),
        ("pbs_namespace_create", {"namespace": "x"}, True),
    ],
)
async def test_what_deletes_or_weakens_needs_access_admin(
    tmp_path: Path, tool: str, arguments: dict[str, Any], allowed: bool
) -> None:
    async with backup_rig(tmp_path, access=Access.OPERATE) as quorate:
        answer = await quorate.call(tool, datastore="store1", **arguments, dry_run=True)
    assert answer.is_error is not allowed
    if not allowed:
        assert "refused at access level operate" in str(answer)


async def test_a_rule_about_a_guest_protects_its_backups(tmp_path: Path) -> None:
    policy = Policy((Rule("keep 100", allows=False, level="destroy", vmids=(range(100, 101),)),))
    async with backup_rig(tmp_path, more={"policy": policy}) as quorate:
        refused = [
            await quorate.refusal("pbs_backup_delete", backup="vm/100", datastore="store1"),
            await quorate.refusal("pbs_prune", keep="last=1", datastore="store1"),
            await quorate.refusal("pbs_job_set", kind="prune", job="old", keep="last=1", datastore="store1"),
        ]
        await quorate.facts("pbs_backup_delete", backup="vm/101", datastore="store1")
    assert all("is refused by the rule 'keep 100'" in text for text in refused)


async def test_a_rule_by_tag_protects_the_backups_of_a_namespace(tmp_path: Path) -> None:
    async with backup_rig(tmp_path) as quorate:
        rows = await quorate.rows("guest_list")
        tags = next(row["tags"] for row in rows if row["vmid"] == 102 and row["tags"])
    tag = tags if isinstance(tags, str) else tags[0]
    policy = Policy((Rule("tagged", allows=False, level="destroy", tags=(tag.split(";")[0].split(",")[0],)),))
    async with backup_rig(tmp_path / "2", more={"policy": policy}) as quorate:
        quorate.store.namespaces["prod"]["ct", "102"].in_order()[0].protected = False
        text = await quorate.refusal("pbs_namespace_delete", datastore="store1", namespace="prod", with_backups=True)
    assert "is refused by the rule 'tagged'" in text


@pytest.mark.parametrize("pattern", ["store1", "vault/store1", "vault/*", "store1/prod", "*/prod"])
async def test_a_rule_about_a_datastore_protects_what_is_in_it(tmp_path: Path, pattern: str) -> None:
    policy = Policy((Rule("cold", allows=False, level="change", datastores=(pattern,)),))
    async with backup_rig(tmp_path, more={"policy": policy}) as quorate:
        text = await quorate.refusal("pbs_verify", datastore="store1", namespace="prod")
        await quorate.facts("pbs_backup_list", datastore="store1")
    assert "is refused by the rule 'cold'" in text


async def test_a_deletion_waits_for_a_person_and_is_void_if_the_backups_change(tmp_path: Path) -> None:
    async with backup_rig(tmp_path, approval=Approval.TOKEN) as quorate:
        arguments: dict[str, Any] = {"backup": "vm/100", "datastore": "store1"}
        await quorate.refusal("pbs_backup_delete", **arguments)
        token = (await quorate.facts("pbs_backup_delete", **arguments, dry_run=True))["plan_token"]
        newest = quorate.store.namespaces[""]["vm", "100"].in_order()[-1]
        quorate.store.add(replace(newest, time=newest.time + 3600), owner="root@pam!backup")
        refused = await quorate.refusal("pbs_backup_delete", **arguments, plan_token=token)
        assert len(await names(quorate, guest=100)) == 4
        token = (await quorate.facts("pbs_backup_delete", **arguments, dry_run=True))["plan_token"]
        await quorate.facts("pbs_backup_delete", **arguments, plan_token=token)
        assert await names(quorate, guest=100) == []
    assert "plan token" in refused


@pytest.mark.parametrize(
    ("tool", "arguments", "word", "shown"),
    [
        ("pbs_backup_delete", {"backup": "vm/100"}, "vault/store1:vm/100", "target: vm 100"),
        ("pbs_backup_delete", {"backup": "vm/999"}, "vault/store1:vm/999", "target: guest 999"),
        ("pbs_backup_delete", {"backup": "host/nas"}, "vault/store1:host/nas", "no other backup"),
        ("pbs_prune", {"keep": "last=1"}, "vault/store1:vm/100", "removes: vm/100/"),
        ("pbs_job_set", {"kind": "prune", "job": "old", "keep": "last=1"}, "vault/store1", "target: guest 100"),
        ("pbs_namespace_delete", {"namespace": "prod", "with_backups": True}, "vault/store1/prod", "target: guest 102"),
    ],
)
async def test_a_person_sees_what_is_deleted_and_types_its_name(
    tmp_path: Path, tool: str, arguments: dict[str, Any], word: str, shown: str
) -> None:
    questions: list[str] = []
    clocks: list[ManualClock] = []

    async def answer(context: Any, params: Any) -> ElicitResult:
        questions.append(params.message)
        await clocks[0].advance(READING_SECONDS)
        return ElicitResult(action="accept", content={"typed": word})

    async with backup_rig(tmp_path, approval=Approval.ASK, elicitation=answer) as quorate:
        clocks.append(quorate.clock)
        quorate.store.namespaces["prod"]["ct", "102"].in_order()[0].protected = False
        newest = quorate.store.namespaces[""]["vm", "100"].in_order()[-1]
        quorate.store.add(replace(newest, id="999"), owner="root@pam!backup")
        facts = await quorate.facts(tool, datastore="store1", **arguments)
    assert facts["result"] == "done"
    assert shown in questions[0]
    assert "This cannot be undone" in questions[0]


async def test_a_server_that_breaks_off_leaves_the_outcome_unknown(quorate: BackupRig, monkeypatch: Any) -> None:
    assert quorate.pbs is not None
    original = quorate.pbs._answer

    async def answer(request: Any, path: str, *, as_extjs: bool) -> Any:
        if request.method == "PUT":
            request.transport.abort()
        return await original(request, path, as_extjs=as_extjs)

    monkeypatch.setattr(quorate.pbs, "_answer", answer)
    newest, *_ = await names(quorate, guest=100)
    text = await quorate.refusal("pbs_backup_update", backup=newest, datastore="store1", notes="x")
    assert "It is not known whether PUT" in text
    assert "pbs_task_list" in text
