"""Whatever goes wrong between Quorate and PVE: every tool ends, says so clearly, does nothing twice and is recorded."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quorate.operations.registry import TOOLSETS, Operation, operations
from quorate.pve.connection import Limits
from tests.generators import examples
from tests.generators.combined_arguments import combined_arguments
from tests.generators.population import CONTENT, populate
from tests.generators.read_arguments import read_arguments
from tests.oracle.state import State, differences, state_of
from tests.rigs.mcp_session import Rig, pointed_at, rig, second_server, text_of
from tests.rigs.simulator import ask_all

pytestmark = pytest.mark.anyio

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
    "a node dies": ["node-dead:pve2"],
    "a node died minutes ago": ["node-dead:pve2"],
    "a node died, and with it the quorum": ["node-dead:pve2", "no-quorum"],
    "the quorum is lost": ["no-quorum"],
}
AGO = {"a node died minutes ago": 240.0}
"""Seconds since then: PVE's view of the cluster has forgotten the node's guests and storages."""
LONGEST = 600.0
"""Seconds of driven time in which a call has to end, whatever it meets."""
INSIDE: dict[str, dict[str, Any]] = {
    "guest_exec": {"guest": 104, "command": ["true"]},
    "guest_file_write": {"guest": 104, "path": "/tmp/x", "content": "hello"},
    "guest_job": {"action": "stop", "job": "agent:pve1:104:4711"},
    "guest_service_control": {"guest": 104, "service": "ssh", "action": "restart"},
}
OUR_DEFECT = ("failed inside Quorate", "Traceback", "object at 0x")


@pytest.mark.thorough
@pytest.mark.parametrize("what", FAULTS)
async def test_every_tool_ends_with_a_clear_answer(tmp_path: Path, what: str) -> None:
    faults = FAULTS[what]
    async with rig(tmp_path) as quorate:
        await populate(quorate)
        calls = list(one_call_each(quorate))
        for fault in faults:
            quorate.sim.faults.add(fault)
        await quorate.clock.advance(AGO.get(what, 0.0))
        late = faults[0].startswith("latency")  # then every request meets its time limit, which is in real seconds
        limits = Limits(request_seconds=0.02, total_seconds=0.05) if late else Limits()
        target = pointed_at(quorate.sim, limits=limits)
        waits = faults[0] in ("node-dead:pve2", "no-quorum")  # PVE itself, for an answer or a lock: in simulated time
        async with second_server(quorate, tmp_path / "second.jsonl", in_memory=waits, clusters=(target,)) as asked:
            for operation, arguments in calls:
                await ends_clearly(asked, operation, arguments)


@pytest.mark.thorough
async def test_every_tool_says_that_nobody_answers(tmp_path: Path) -> None:
    async with rig(tmp_path) as quorate:
        await populate(quorate)
        calls = list(one_call_each(quorate))
        nowhere = pointed_at(quorate.sim, endpoints=("https://127.0.0.1:1",))
        async with second_server(quorate, tmp_path / "second.jsonl", clusters=(nowhere,)) as alone:
            for operation, arguments in calls:
                answer = await ends_clearly(alone, operation, arguments)
                is_explained = answer is None or "127.0.0.1:1" in answer or operation.name in BY_OWN_RECORDS
                assert is_explained, operation.name


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
    writes = Counter(request for request in quorate.requests_since(mark) if request[0] != "GET")
    assert not operation.changes or len(quorate.audit()) == entries + 1 or not writes, where
    repeated = [request for request, times in writes.items() if times > allowed(request)]
    assert not repeated, f"{repeated}: {where}"
    return text_of(answer) if answer.is_error else None


def allowed(write: tuple[str, str]) -> int:
    """How often one call may make the same write: a command through the agent may take several."""
    return 10 if "/agent/" in write[1] else 1


# -- what is claimed, and what the world shows -------------------------------------------------------------------------

WRITES = ("POST", "PUT", "DELETE")
MAY_BE_EMPTY = ("/cluster/firewall/ipset", "/cluster/firewall/groups", "/nodes/pve1/qemu/102/firewall/ipset")
NEVER_ARRIVES = "drop:before"
DONE_WHERE_POSSIBLE = re.compile(r"result: (\d*[1-9]) of \d+ done\b")
"""An error, because some targets were refused before; the journal has only what was sent."""
LOST_ANSWERS = ["drop:after", "drop:mid", "596:after", "garbage:json"]
NEAR = {"rule": "near", "kind": "nodes", "guests": [101], "nodes": ["pve1"]}
RESTART = {"node": "pve1", "service": "pvestatd", "action": "restart"}
TELLING: list[tuple[str, dict[str, Any]]] = [
    ("ha_rule_set", {**NEAR, "nodes": ["pve1", "pve2"], "strict": True}),
    ("node_service_control", RESTART),
    ("node_service_control", {**RESTART, "action": "reload"}),
    ("cloudinit_set", {"guest": 102, "regenerate": True}),
    ("guest_power", {"guest": 104, "action": "reset"}),
    ("guest_configure", {"guest": 204, "memory": 2048}),
    (
        "api_call",
        {"method": "PUT", "path": "/cluster/ha/rules/near", "params": {"type": "node-affinity", "comment": "x"}},
    ),
    ("api_call", {"method": "POST", "path": "/nodes/pve1/services/pvestatd/restart"}),
    ("pool_set", {"pool": "media", "comment": "films"}),
    ("pool_set", {"pool": "production/web", "comment": "nested", "add_guests": [204]}),
]
"""Calls whose result looks much like what was there before: each of them was, or could be, taken for done."""


async def test_what_never_arrived_is_never_called_done(tmp_path: Path) -> None:
    async with rig(tmp_path) as quorate:
        await quorate.facts("ha_rule_set", **NEAR)
        for tool, arguments in TELLING:
            await claims_only_what_is_so(quorate, tool, arguments, NEVER_ARRIVES)


async def test_what_was_done_is_found_and_never_called_not_done(tmp_path: Path) -> None:
    async with rig(tmp_path) as quorate:
        await quorate.facts("ha_rule_set", **NEAR)
        for tool, arguments in TELLING:
            await claims_only_what_is_so(quorate, tool, arguments, "drop:after")


@pytest.mark.thorough
@pytest.mark.parametrize("fault", [NEVER_ARRIVES, *LOST_ANSWERS])
async def test_no_tool_claims_what_the_world_does_not_show(tmp_path: Path, fault: str) -> None:
    async with rig(tmp_path) as quorate:
        await populate(quorate)
        for tool, arguments in list(all_changes(quorate)):
            await claims_only_what_is_so(quorate, tool, arguments, fault)


@pytest.mark.thorough
async def test_a_write_that_comes_late_is_not_called_not_done(tmp_path: Path) -> None:
    """PVE handles it only after Quorate has given up; the effect may be there before Quorate has looked, or after."""
    async with rig(tmp_path, limits=Limits(request_seconds=1.0)) as quorate:
        await quorate.facts("ha_rule_set", **NEAR)
        for tool, arguments in TELLING:
            await claims_only_what_is_so(quorate, tool, arguments, "latency:2")


def all_changes(quorate: Rig) -> Iterator[tuple[str, dict[str, Any]]]:
    image = quorate.audit_file.with_name("tiny.iso")
    image.write_bytes(CONTENT)
    known = combined_arguments(quorate.sim.world, image)
    for operation in operations(TOOLSETS).values():
        if operation.toolset == "inside" and operation.changes:
            yield operation.name, INSIDE[operation.name]
        elif operation.changes:
            for arguments in known.get(operation.name) or [next(examples(operation, quorate.sim.world, image))]:
                yield operation.name, arguments


async def claims_only_what_is_so(quorate: Rig, tool: str, arguments: dict[str, Any], fault: str) -> None:
    """The claim of the answer, compared with the world before and after."""
    await quorate.clock.advance(5)  # what earlier calls started ends
    before, tasks, mark = await look_at(quorate), all_tasks(quorate), len(quorate.sim.requests)
    added = [quorate.sim.faults.add(f"{fault}:{method}:/*") for method in WRITES]
    async with asyncio.timeout(60):
        answer = await quorate.call(tool, **arguments)
    for placed in added:
        quorate.sim.faults.remove(placed)
    if all(method == "GET" for method, _ in quorate.requests_since(mark)):
        return
    claim, where = claim_of(answer, quorate), f"{tool} {arguments} under {fault}: {text_of(answer)}"
    changed, started = differences(before, await look_at(quorate)), all_tasks(quorate) - tasks
    if claim == "done":
        assert fault != NEVER_ARRIVES, where
        assert changed or started, where
    elif claim == "not done":
        assert not started, f"{started}: {where}"
        assert not changed, f"{[str(difference) for difference in changed[:5]]}: {where}"


async def look_at(quorate: Rig) -> State:
    """Everything that the world holds, and the names of what may be empty."""
    names = await ask_all(quorate.sim, *MAY_BE_EMPTY)
    return {**state_of(quorate.sim.world), ("names",): str(names)}


def claim_of(answer: Any, quorate: Rig) -> str:
    """done, failed, not done or unknown, by the entry and the answer: both have to say the same."""
    if "The task failed" in text_of(answer):  # it was found, and did what it could
        return "failed"
    outcome = quorate.audit()[-1]["outcome"]
    refused = answer.is_error and not DONE_WHERE_POSSIBLE.match(text_of(answer))
    verdict = "unknown" if "not known" in text_of(answer) else "not done" if refused else "done"
    if outcome in ("done", "done with warnings"):
        assert verdict == "done", text_of(answer)
        return "done"
    return "unknown" if verdict == "unknown" or outcome in ("unknown", "running", "partly done") else verdict


def all_tasks(quorate: Rig) -> Counter[str]:
    world = quorate.sim.world
    return Counter(str(task.upid) for node in world.nodes for task in world.tasks.newest_first(node))
