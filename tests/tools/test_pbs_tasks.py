"""Tasks of Proxmox Backup Servers: found by any of their types, and judged by what the server says they are."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from quorate.config import Access
from quorate.config.policy import Policy, Rule
from tests.rigs.backup_server import BackupRig, backup_rig

pytestmark = pytest.mark.anyio

HOUR = 3600.0


@pytest.fixture
async def quorate(tmp_path: Path) -> AsyncIterator[BackupRig]:
    async with backup_rig(tmp_path) as started:
        yield started


def start(quorate: BackupRig, kind: str, worker_id: str) -> str:
    """A task that runs for an hour."""
    assert quorate.pbs is not None
    return quorate.pbs.tasks.start(kind, worker_id, "root@pam", lambda _: None, HOUR).upid


def is_running(quorate: BackupRig, upid: str) -> bool:
    assert quorate.pbs is not None
    return quorate.pbs.tasks.find_running(upid) is not None


@pytest.mark.parametrize(
    ("word", "types"),
    [
        ("verify", {"verify", "verify_group", "verificationjob"}),
        ("prune", {"prune", "prunejob"}),
        ("sync", {"sync", "syncjob"}),
        ("gc", {"garbage_collection"}),
        ("garbage", {"garbage_collection"}),
        ("restore", {"reader"}),
        ("prunejob", {"prunejob"}),
        ("backup", {"backup"}),
    ],
)
async def test_tasks_of_jobs_are_found_by_the_word_for_what_they_do(
    quorate: BackupRig, word: str, types: set[str]
) -> None:
    assert quorate.pbs is not None
    for kind, worker_id in (
        ("verify", "store1"),
        ("verify_group", "store1:/vm/100"),
        ("verificationjob", "store1:weekly"),
        ("prune", "store1:prod"),
        ("prunejob", "store1:old"),
        ("sync", "store1"),
        ("syncjob", "-:archive:store1::mirror"),
        ("garbage_collection", "store1"),
        ("reader", "store1:vm/100/67748580"),
        ("backup", "store1:vm/100"),
    ):
        quorate.pbs.tasks.record(kind, worker_id, "root@pam")
    assert {row["type"] for row in await quorate.rows("pbs_task_list", type=word)} == types


@pytest.mark.parametrize(
    ("kind", "worker_id", "allowed"),
    [
        ("verify", "store1", True),
        ("verificationjob", "store1:weekly", True),
        ("prunejob", "store1:old", True),
        ("syncjob", "-:archive:store1::mirror", True),
        ("garbage_collection", "store1", True),
        ("backup", "store1:vm/100", False),
        ("reader", "store1:vm/100/67748580", False),
        ("tape-backup", "store1:pool:drive", False),
    ],
)
async def test_only_a_task_that_can_be_started_again_is_stopped_without_access_admin(
    tmp_path: Path, kind: str, worker_id: str, allowed: bool
) -> None:
    async with backup_rig(tmp_path, access=Access.OPERATE) as quorate:
        upid = start(quorate, kind, worker_id)
        answer = await quorate.call("pbs_task_stop", task=upid)
        assert is_running(quorate, upid) is not allowed
    assert answer.is_error is not allowed


@pytest.mark.parametrize("part", [":verify:store1:", ":garbage_collection:archive:"])
async def test_a_task_id_with_another_type_or_subject_is_refused(tmp_path: Path, part: str) -> None:
    """PBS would stop the backup: it looks only at the process and the number in the id."""
    policy = Policy((Rule("keep 100", allows=False, level="change", vmids=(range(100, 101),)),))
    async with backup_rig(tmp_path, more={"policy": policy}) as quorate:
        upid = start(quorate, "backup", "store1:vm/100")
        fields = upid.split(":")
        forged = ":".join(fields[:6]) + part + ":".join(fields[8:])
        text = await quorate.refusal("pbs_task_stop", task=forged)
        assert is_running(quorate, upid)
        honest = await quorate.refusal("pbs_task_stop", task=upid)
    assert "vault lists no task" in text
    assert "is refused by the rule 'keep 100'" in honest


async def test_a_task_that_never_existed_is_not_reported_as_ended(quorate: BackupRig) -> None:
    text = await quorate.refusal(
        "pbs_task_stop", task="UPID:pbs:00000FA1:000186A1:00000001:6723A1B2:verify:store1:root@pam:"
    )
    assert "vault lists no task" in text


async def test_a_rule_about_a_datastore_protects_the_tasks_of_its_jobs(tmp_path: Path) -> None:
    policy = Policy((Rule("cold", allows=False, level="change", datastores=("store1",)),))
    async with backup_rig(tmp_path, more={"policy": policy}) as quorate:
        refused = [
            await quorate.refusal("pbs_task_stop", task=start(quorate, kind, worker_id))
            for kind, worker_id in (
                ("syncjob", "far:tank:store1:prod:mirror"),
                ("verificationjob", "store1:weekly"),
                ("verify_snapshot", "store1:ns/prod/ct/102/67748580"),
            )
        ]
        await quorate.facts("pbs_task_stop", task=start(quorate, "syncjob", "far:store1:archive::mirror"))
    assert all("is refused by the rule 'cold'" in text for text in refused)
