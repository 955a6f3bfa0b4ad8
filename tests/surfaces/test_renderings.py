"""What people and models read: no Python in it, no doubled phrase, right plurals, for every tool."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from quorate.operations.registry import Operation
from tests.generators.population import populate
from tests.pipeline.test_every_tool_under_faults import one_call_each
from tests.rigs.mcp_session import Rig, rig, text_of

pytestmark = pytest.mark.anyio

FAULTS = {
    "a value of Python": r"\bNone\b(?! of)|\bTrue\b|\bFalse\b| object at 0x|<class |Ellipsis",
    "a list or mapping of Python": r"\[(?:'[^']*'(?:, |\]))|\{'[^']*': ",
    "a plural for one": r"(?<![\w.:/-])1 (?:guests|nodes|disks|snapshots|backups|tasks|volumes|steps|files|hosts|runs"
    r"|rules|privileges|packages|updates|storages|jobs|bytes|lines|devices|services|tools|things|times|days|resources)\b",
    "a float in full": r"\b\d+\.\d{5,}",
    "a phrase twice": r"\b(?P<phrase>(?:vm|ct) \d+ [\w.-]+|(?:on|in) [\w-]{4,}),? (?:in |on |of )?(?P=phrase)\b",
    "a path for a name": r"\bnode=/|\bguest=/|\bstorage=/",
    "what exists twice": r"There is no .*\. There is none",
}
FOREIGN = {"inventory_export", "log_read", "api_call", "guest_file_read", "task_get"}
"""Their answers contain texts of others."""


def faults_in(text: str) -> list[str]:
    return [f"{fault}: {match[0]!r}" for fault, pattern in FAULTS.items() if (match := re.search(pattern, text))]


async def read_all(quorate: Rig, operation: Operation, arguments: dict[str, Any]) -> list[str]:
    """The faults in what a tool answers; that of a change also when it is dry, and when it is repeated."""
    times = [{"dry_run": True}, {}, {}] if operation.changes else [{}]
    texts = [text_of(await quorate.call(operation.name, **{**arguments, **more})) for more in times]
    foreign = operation.name in FOREIGN
    return [
        f"{operation.name} {arguments}: {fault}\n{text}" for text in texts if not foreign for fault in faults_in(text)
    ]


async def test_no_answer_of_any_tool_contains_python_or_says_something_twice(tmp_path: Path) -> None:
    async with rig(tmp_path, in_memory=True) as quorate:
        await populate(quorate)
        found = [await read_all(quorate, *each) for each in list(one_call_each(quorate))]
        assert not (faults := [fault for each in found for fault in each]), "\n\n".join(faults)


@pytest.mark.parametrize(
    "text",
    [
        "now: None", "tags: ['a', 'b']", "was: {'a': 1}", "Snapshot 1 guests", "load: 0.123456",
        "Write 3 bytes to /x on vm 102 docker01 in vm 102 docker01", "node_updates_refresh node=/nodes/pve1",
        "<ssl.SSLContext object at 0x7f>",
    ],
)  # fmt: skip
def test_the_sweep_sees_each_fault(text: str) -> None:
    assert faults_in(text)
