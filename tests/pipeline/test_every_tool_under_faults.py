"""Whatever goes wrong between Quorate and PVE: every tool ends, says so clearly, does nothing twice and is recorded."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quorate.operations.registry import TOOLSETS, Operation, operations
from quorate.pve.connection import Limits
from tests.generators import examples
from tests.generators.population import CONTENT, populate
from tests.generators.read_arguments import read_arguments
from tests.rigs.mcp_session import Rig, pointed_at, rig, second_server, text_of

pytestmark = [pytest.mark.anyio, pytest.mark.thorough]

FAULTS = {
    "the connection is cut before": ["drop:before"],
    "the connection is cut after": ["drop:after"],
    "the answer is cut in its middle": ["drop:mid"],
    "answers are late": ["latency:40"],
    "the token is refused": ["401"],
    "the rights are refused": ["403"],
    "an error": ["500:something broke"],
    "no such method": ["501"],
    "the node has no route": ["595"],
    "the node times out": ["596"],
    "the node times out but works": ["596:after"],
    "answers are no JSON": ["garbage:json"],
    "a proxy answers": ["garbage:html"],
    "tasks fail": ["task-fails:*:it broke"],
    "tasks vanish": ["500:no such task:GET:/nodes/*/tasks/*"],
    "writes are cut after": ["drop:after:POST:*", "drop:after:PUT:*", "drop:after:DELETE:*"],
    "writes are garbled": ["garbage:json:POST:*", "garbage:json:PUT:*", "garbage:json:DELETE:*"],
    "a node goes away midway": ["595:GET:/nodes/*/tasks/*"],
    "a node is offline": ["node-offline:pve2"],
    "the quorum is lost": ["no-quorum"],
}
LONGEST = 600.0
"""Seconds of driven time in which a call has to end, whatever it meets."""
INSIDE: dict[str, dict[str, Any]] = {
    "guest_exec": {"guest": 104, "command": ["true"]},
    "guest_file_write": {"guest": 104, "path": "/tmp/x", "content": "hello"},
    "guest_job": {"action": "stop", "job": "agent:pve1:104:4711"},
    "guest_service_control": {"guest": 104, "service": "ssh", "action": "restart"},
}
OUR_DEFECT = ("failed inside Quorate", "Traceback", "object at 0x")


@pytest.mark.parametrize("faults", FAULTS.values(), ids=FAULTS)
async def test_every_tool_ends_with_a_clear_answer(tmp_path: Path, faults: list[str]) -> None:
    async with rig(tmp_path) as quorate:
        await populate(quorate)
        calls = list(one_call_each(quorate))
        for fault in faults:
            quorate.sim.faults.add(fault)
        late = faults[0].startswith("latency")  # then every request meets its time limit, which is in real seconds
        limits = Limits(request_seconds=0.02, total_seconds=0.05) if late else Limits()
        target = pointed_at(quorate.sim, limits=limits)
        async with second_server(quorate, tmp_path / "second.jsonl", clusters=(target,)) as asked:
            for operation, arguments in calls:
                await ends_clearly(asked, operation, arguments)


async def test_every_tool_says_that_nobody_answers(tmp_path: Path) -> None:
    async with rig(tmp_path) as quorate:
        await populate(quorate)
        calls = list(one_call_each(quorate))
        nowhere = pointed_at(quorate.sim, endpoints=("https://127.0.0.1:1",))
        async with second_server(quorate, tmp_path / "second.jsonl", clusters=(nowhere,)) as alone:
            for operation, arguments in calls:
                answer = await ends_clearly(alone, operation, arguments)
                said = answer is None or "127.0.0.1:1" in answer or operation.name in BY_OWN_RECORDS
                assert said, operation.name


BY_OWN_RECORDS = {"change_undo", "run_control", "run_get", "run_return", "run_wait"}
"""They find what they are about in our own store, before the cluster is asked."""


def one_call_each(quorate: Rig) -> Iterator[tuple[Operation, dict[str, Any]]]:
    """Each operation with arguments that would work if all were well."""
    image = quorate.audit_file.with_name("tiny.iso")
    image.write_bytes(CONTENT)
    for operation in operations(TOOLSETS).values():
        if operation.toolset == "inside" and operation.changes:
            yield operation, INSIDE[operation.name]
        elif operation.changes:
            yield operation, next(examples(operation, quorate.sim.world, image))
        else:
            yield from ((operation, arguments) for arguments in read_arguments(operation, quorate.sim.world))


async def ends_clearly(quorate: Rig, operation: Operation, arguments: dict[str, Any]) -> str | None:
    """The text of the answer if it is a refusal."""
    mark, entries, begun = len(quorate.sim.requests), len(quorate.audit()), quorate.clock.now()
    async with asyncio.timeout(60):
        answer = await quorate.call(operation.name, **arguments)
    where = f"{operation.name} {arguments}: {text_of(answer)}"
    assert quorate.clock.now() - begun < LONGEST, where
    assert not any(word in text_of(answer) for word in OUR_DEFECT), where
    assert text_of(answer).strip(), where
    writes = Counter(one for one in quorate.requests_since(mark) if one[0] != "GET")
    assert not operation.changes or len(quorate.audit()) == entries + 1 or not writes, where
    repeated = [one for one, times in writes.items() if times > allowed(one)]
    assert not repeated, f"{repeated}: {where}"
    return text_of(answer) if answer.is_error else None


def allowed(write: tuple[str, str]) -> int:
    """How often one call may make the same write: a command through the agent may take several."""
    return 10 if "/agent/" in write[1] else 1
