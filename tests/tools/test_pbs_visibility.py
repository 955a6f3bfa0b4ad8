"""What rules hide of a backup server is not in any list, task, log or suggestion; what is broken hides nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from quorate.config.policy import Policy, Rule
from tests.rigs.backup_server import BackupRig, backup_rig

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def hiding(tmp_path: Path, **conditions: Any) -> AsyncIterator[BackupRig]:
    policy = Policy((Rule("private", allows=False, level="read", **conditions),))
    async with backup_rig(tmp_path, more={"policy": policy}) as quorate:
        fill(quorate)
        yield quorate


def fill(quorate: BackupRig) -> None:
    """Jobs and tasks of both datastores, of a namespace and of guests."""
    pbs = quorate.pbs
    assert pbs is not None
    pbs.sections["prune"]["thin"] = {"id": "thin", "store": "archive", "schedule": "daily", "keep-last": 3}
    pbs.sections["verify"]["weekly"] = {"id": "weekly", "store": "store1", "ns": "prod", "schedule": "sun 03:00"}
    pbs.sections["verify"]["daily"] = {"id": "daily", "store": "store1", "schedule": "daily"}
    pbs.sections["sync"]["copy"] = {"id": "copy", "store": "store1", "remote-store": "archive"}
    failed = "connection error"
    for kind, worker_id in (
        ("prunejob", "archive:thin"),
        ("syncjob", "-:archive:store1::copy"),
        ("garbage_collection", "store1"),
        ("verify_group", "store1:prod/ct/102"),
        ("backup", "store1:vm/100"),
        ("reader", "store1:vm/100/67748580"),
    ):
        lines = ("verify group store1:vm/100 (3 snapshots)", "verify group store1:vm/101 (1 snapshots)")
        pbs.tasks.record(kind, worker_id, "root@pam", lines=lines, status=failed)


def by_store(text: str) -> bool:
    return "archive" not in text


def by_namespace(text: str) -> bool:
    return "prod" not in text and "ct/102" not in text


def by_guest(text: str) -> bool:
    return "vm/100" not in text and "web01" not in text


HIDDEN: list[tuple[dict[str, Any], Callable[[str], bool]]] = [
    ({"datastores": ("archive",)}, by_store),
    ({"datastores": ("store1/prod",)}, by_namespace),
    ({"vmids": (range(100, 101),)}, by_guest),
]
CALLS: list[tuple[str, dict[str, Any]]] = [
    ("pbs_status", {}),
    ("pbs_status", {"datastore": "store1"}),
    ("pbs_backup_list", {}),
    ("pbs_job_list", {}),
    ("pbs_task_list", {}),
    ("pbs_task_list", {"datastore": "store1"}),
    ("pbs_status", {"datastore": "stor1"}),
    ("pbs_gc", {"datastore": "stor1"}),
    ("pbs_backup_list", {"datastore": "store1", "namespace": "other"}),
    ("pbs_backup_list", {"datastore": "other"}),
]


@pytest.mark.parametrize(("conditions", "shows_nothing"), HIDDEN, ids=["datastore", "namespace", "guest"])
async def test_what_a_rule_hides_is_in_no_answer(
    tmp_path: Path, conditions: dict[str, Any], shows_nothing: Callable[[str], bool]
) -> None:
    async with backup_rig(tmp_path / "all") as quorate:
        fill(quorate)
        open_answers = [str(await quorate.call(tool, **arguments)) for tool, arguments in CALLS]
    async with hiding(tmp_path / "some", **conditions) as quorate:
        answers = {f"{tool} {arguments}": str(await quorate.call(tool, **arguments)) for tool, arguments in CALLS}
    assert not all(shows_nothing(text) for text in open_answers)
    assert [call for call, text in answers.items() if not shows_nothing(text)] == []


async def test_a_hidden_datastore_is_as_unknown_as_one_that_does_not_exist(tmp_path: Path) -> None:
    async with hiding(tmp_path, datastores=("archive",)) as quorate:
        hidden = await quorate.refusal("pbs_backup_list", datastore="archive")
        missing = await quorate.refusal("pbs_backup_list", datastore="nowhere")
        job = await quorate.refusal("pbs_job_run", kind="prune", job="thin")
        source = await quorate.refusal("pbs_job_run", kind="sync", job="copy")
    assert hidden.replace("archive", "nowhere") == missing
    assert "has no prune job 'thin'" in job
    assert "has no sync job 'copy'" in source


async def test_the_task_and_the_log_of_a_hidden_guest_are_not_shown(tmp_path: Path) -> None:
    async with hiding(tmp_path, vmids=(range(100, 101),)) as quorate:
        assert quorate.pbs is not None
        tasks = {task.type: task.upid for task in quorate.pbs.tasks.all}
        assert "lists no task" in await quorate.refusal("pbs_task_get", task=tasks["backup"])
        assert "lists no task" in await quorate.refusal("pbs_task_stop", task=tasks["reader"])
        shown = await quorate.facts("pbs_task_get", task=tasks["garbage_collection"])
    assert [line for line in shown["log"] if line.startswith("verify")] == ["verify group store1:vm/101 (1 snapshots)"]


async def test_the_log_of_a_task_that_may_name_a_hidden_namespace_is_left_out(tmp_path: Path) -> None:
    async with hiding(tmp_path, datastores=("store1/prod",)) as quorate:
        assert quorate.pbs is not None
        tasks = {task.type: task.upid for task in quorate.pbs.tasks.all}
        assert "lists no task" in await quorate.refusal("pbs_task_get", task=tasks["verify_group"])
        shown = await quorate.facts("pbs_task_get", task=tasks["garbage_collection"])
        own = await quorate.facts("pbs_task_get", task=tasks["backup"])
    assert shown["log"] == ["The log is left out: it may name namespaces that rules hide"]
    assert "verify group store1:vm/101 (1 snapshots)" in own["log"]


async def test_the_tasks_of_a_datastore_include_restores_and_syncs_which_the_server_does_not_find_by_it(
    tmp_path: Path,
) -> None:
    async with backup_rig(tmp_path) as quorate:
        fill(quorate)
        rows = await quorate.rows("pbs_task_list", datastore="store1")
        none = await quorate.rows("pbs_task_list", datastore="archive")
    assert "reader" in {row["type"] for row in rows}
    assert {row["type"] for row in none} == {"prunejob"}


# -- a datastore that cannot be read -----------------------------------------------------------------------------------

BROKEN = "unable to open chunk store 'archive' at '/mnt/archive/.chunks' - Input/output error (os error 5)"


async def test_a_datastore_that_cannot_be_read_hides_no_other(tmp_path: Path) -> None:
    async with backup_rig(tmp_path) as quorate:
        assert quorate.pbs is not None
        quorate.pbs.datastores["archive"].broken = BROKEN
        rows = {row["datastore"]: row for row in await quorate.rows("pbs_status")}
        listed = await quorate.facts("pbs_backup_list")
        jobs = await quorate.rows("pbs_job_list", kind="gc")
        alone = await quorate.refusal("pbs_status", datastore="archive")
    assert BROKEN in rows["archive"]["error"]
    assert rows["store1"]["size"] == 252 << 30
    assert listed["backups"] == 6
    assert BROKEN in listed["not_read"]["vault/archive"]
    assert [job["datastore"] for job in jobs] == ["store1"]
    assert "Input/output error" in alone
