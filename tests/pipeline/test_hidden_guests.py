"""A guest that a rule hides from reading is not revealed by anything: a canary in every place where PVE mentions it."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp.shared.exceptions import MCPError
from mcp.types import PromptReference, ResourceTemplateReference

from pve_schema.schema import Facts
from pve_simulator.builder import Builder
from quorate.operations.registry import TOOLSETS, Risk, operations
from quorate.surfaces.compat import SYSTEMS
from tests.generators.population import populate
from tests.generators.read_arguments import read_arguments
from tests.pipeline.test_policy import policy
from tests.rigs.mcp_session import Rig, rig, second_server, text_of

pytestmark = pytest.mark.anyio

VMID, NAME, NODE = 7771, "obsidian-canary", "pve1"
MARKS = (NAME, "canary-notes", "canary-tag", "192.0.2.177", "canary-snapshot")
"""Words that nothing else in the cluster has."""
RULE = f"""
[[rules]]
name = "not for you"
deny = "read"
names = ["{NAME}"]
"""


@asynccontextmanager
async def canary(tmp_path: Path) -> AsyncIterator[tuple[Rig, Rig]]:
    """A server without rules, and one from which the guest is hidden, on the same cluster."""
    async with rig(tmp_path, in_memory=True) as free:
        builder = Builder(free.sim.world)
        builder.guest("qemu", VMID, NAME, NODE, cores=1, memory=512, disk=4, storage="local-lvm", tags="canary-tag")
        config = free.sim.world.guests[VMID].config
        config |= {"description": "canary-notes", "ipconfig0": "ip=192.0.2.177/24"}
        for tool, arguments in (
            ("snapshot_create", {"guest": VMID, "snapshot": "canary-snapshot"}),
            ("backup_create", {"guest": VMID, "storage": "nas", "notes": "canary-notes"}),
            ("backup_create", {"guest": VMID, "storage": "nas", "notes": "canary-notes"}),
            ("backup_create", {"guest": [100, VMID], "storage": "nas"}),
            ("backup_job_set", {"job": "canary", "guest": [100, VMID], "schedule": "03:00", "storage": "nas"}),
            ("ha_set", {"guest": VMID, "state": "started"}),
            ("pool_set", {"pool": "canaries", "add_guests": [VMID, 101], "move": True}),
            ("guest_power", {"guest": VMID, "action": "reboot"}),
        ):
            answer = await free.call(tool, **arguments)
            assert not answer.is_error, f"{tool}: {text_of(answer)}"
        dropped, *_ = await free.rows("backup_list", guest=VMID)
        await free.facts("volume_delete", volume=dropped["backup"])  # a task about 7771@nas
        await populate(free)
        async with second_server(free, tmp_path / "b.jsonl", in_memory=True, policy=policy(RULE)) as restricted:
            yield free, restricted


@pytest.fixture(scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Rig, Rig]]:
    async with canary(tmp_path_factory.mktemp("canary")) as both:
        yield both


@pytest.fixture
def free(shared: tuple[Rig, Rig]) -> Rig:
    """The server without rules, for tests that change nothing."""
    return shared[0]


@pytest.fixture
def restricted(shared: tuple[Rig, Rig]) -> Rig:
    """The server from which the guest is hidden."""
    shared[1].progress.clear()
    return shared[1]


def leaked_marks(text: str, *, asked: str = "") -> list[str]:
    """What of the canary a text contains, except for what the caller asked for."""
    marks = [mark for mark in MARKS if mark in text]
    marks += [f"{VMID}"] if re.search(rf"(?<![\d.]){VMID}(?![\d.])", text) else []
    return [mark for mark in marks if mark != asked]


def everything(quorate: Rig, answer: Any) -> str:
    lines = [str(line) for _, _, line in quorate.progress]
    return "\n".join([text_of(answer), str(answer.structured_content), *lines])


@pytest.fixture(scope="module")
def read_calls(shared: tuple[Rig, Rig]) -> list[tuple[str, dict[str, Any]]]:
    """Return calls of every tool that reads; made once, because some of them wait until no task is running any more."""
    reads = [
        operation for operation in operations(TOOLSETS).values() if operation.risk in (Risk.READ, Risk.LOOK_INSIDE)
    ]
    world = shared[0].sim.world
    return [(operation.name, arguments) for operation in reads for arguments in read_arguments(operation, world)]


@pytest.mark.parametrize("part", range(3))
async def test_no_tool_that_reads_mentions_it(
    free: Rig, restricted: Rig, read_calls: list[tuple[str, dict[str, Any]]], part: int
) -> None:
    seen, leaks = 0, []
    for tool, arguments in read_calls[part::3]:
        seen += bool(leaked_marks(everything(free, await free.call(tool, **arguments))))
        if marks := leaked_marks(everything(restricted, await restricted.call(tool, **arguments))):
            leaks.append((tool, arguments, marks))
    assert not leaks, "\n".join(map(str, leaks))
    assert seen > 5  # without the rule it is shown


@pytest.mark.thorough
async def test_no_path_of_the_api_mentions_it(free: Rig, restricted: Rig) -> None:
    facts: Facts = await next(iter(free.app.pipeline.sites)).cluster.facts()
    values = {"node": NODE, "vmid": "100", "storage": "nas", "poolid": "canaries", "id": "canary"}
    values |= {"sid": "vm:100", "type": "qemu", "rule": "apart", "group": "all"}
    seen, leaks = 0, []
    for endpoint in facts.endpoints():
        names = re.findall(r"{([^}]+)}", endpoint.template)
        if endpoint.method != "GET" or not set(names) <= set(values):
            continue
        for node in ("pve1", "pve2", "localhost") if "node" in names else ("",):
            path = endpoint.template.format(**{**values, "node": node})
            request = {"method": "GET", "path": path, "limit": 200}
            plain = await free.call("api_call", **request)
            seen += bool(leaked_marks(text_of(plain)))
            answer = await restricted.call("api_call", **request)
            if marks := leaked_marks(text_of(answer)):
                where = re.search("|".join(marks), text_of(answer))
                assert where is not None
                leaks.append((path, marks, text_of(answer)[max(0, where.start() - 150) : where.end() + 50]))
    assert not leaks, "\n".join(map(str, leaks))
    assert seen > 10


async def test_notes_about_the_cluster_and_its_nodes_do_not_mention_it(free: Rig, restricted: Rig) -> None:
    """Only the configuration of a visible guest is shown as it is: changes send parts of it back."""
    notes = {"description": f"{NAME} is vm {VMID}"}
    for path in (f"/nodes/{NODE}/config", "/cluster/options"):
        await free.facts("api_call", method="PUT", path=path, params=notes)
        assert leaked_marks(text_of(await free.call("api_call", method="GET", path=path)))
        assert not leaked_marks(text_of(await restricted.call("api_call", method="GET", path=path))), path


async def test_no_log_of_a_task_mentions_it(free: Rig, restricted: Rig) -> None:
    world = free.sim.world
    tasks = [str(task.upid) for node in world.nodes for task in world.tasks.newest_first(node)]
    seen = 0
    for task in tasks:
        for tool, arguments in (
            ("task_get", {"task": task, "log_lines": 200}),
            ("task_wait", {"task": task, "wait": 0}),
        ):
            if str(VMID) in task:
                continue
            seen += bool(leaked_marks(text_of(await free.call(tool, **arguments))))
            text = everything(restricted, await restricted.call(tool, **arguments))
            assert not leaked_marks(text), text
    assert seen


@pytest.mark.thorough
async def test_refusals_reveal_nothing_that_was_not_asked_for(restricted: Rig) -> None:
    mark, leaks = len(restricted.sim.requests), []
    for operation in operations(TOOLSETS).values():
        properties = operation.schema()["properties"]
        name = next((word for word in ("guest", "guests", "of") if word in properties), None)
        if name is None:
            continue
        for ref in (VMID, NAME, f"{NODE}/{NAME}", f"{NODE}/{VMID}", NAME[:-1], NAME.upper(), str(VMID)[:-1] + "0"):
            several = properties[name].get("type") == "array"
            required = {
                argument: _something(properties[argument]) for argument in operation.schema().get("required", ())
            }
            more = {"scope": "guest"} if name == "of" else {}
            answer = await restricted.call(operation.name, **{**required, **more, name: [ref] if several else ref})
            asked = NAME if NAME in str(ref) else str(VMID) if str(VMID) in str(ref) else ""
            if marks := leaked_marks(everything(restricted, answer), asked=asked):
                leaks.append((operation.name, ref, marks, text_of(answer)[:300]))
    assert not leaks, "\n".join(map(str, leaks))
    assert all(method == "GET" for method, _ in restricted.requests_since(mark))


def _something(part: dict[str, Any]) -> Any:
    choices = part.get("enum") or [choice["const"] for choice in part.get("anyOf", ()) if "const" in choice]
    if choices:
        return choices[0]
    kinds = {part.get("type"), *(choice.get("type") for choice in part.get("anyOf", ()))}
    return 1 if "integer" in kinds else ["x"] if "array" in kinds else {} if kinds == {"object"} else "x"


@pytest.mark.parametrize(
    ("method", "path", "params"),
    [
        ("POST", f"/nodes/{NODE}/qemu/{VMID}/status/stop", {}),
        ("POST", f"/nodes/{NODE}/stopall", {}),
        ("POST", f"/nodes/{NODE}/vzdump", {"all": 1}),
        ("POST", f"/nodes/{NODE}/vzdump", {"pool": "canaries"}),
        ("POST", f"/nodes/{NODE}/qemu", {"vmid": VMID}),
        ("POST", f"/nodes/{NODE}/qemu/100/clone", {"newid": VMID}),
        ("DELETE", "/pools/canaries", {}),
        ("PUT", "/pools/canaries", {"vms": str(VMID), "delete": 1}),
        ("DELETE", f"/cluster/ha/resources/vm:{VMID}", {}),
        ("DELETE", f"/nodes/{NODE}/storage/local-lvm/content/vm-{VMID}-disk-0", {}),
    ],
)
async def test_refused_changes_tell_nothing_that_was_not_asked_for(
    restricted: Rig, method: str, path: str, params: dict[str, Any]
) -> None:
    for dry_run in (True, False):
        answer = await restricted.call("api_call", method=method, path=path, params=params, dry_run=dry_run)
        asked = str(VMID) if str(VMID) in f"{path}{params}" else ""
        assert answer.is_error or dry_run, text_of(answer)
        assert not leaked_marks(everything(restricted, answer), asked=asked)


async def test_completions_resources_and_prompts_do_not_know_it(restricted: Rig) -> None:
    client, texts = restricted.client, []
    prompt = PromptReference(type="ref/prompt", name="diagnose_guest")
    template = ResourceTemplateReference(type="ref/resource", uri="pve://guests/{guest}")
    for reference in (prompt, template):
        for name, typed in (("guest", ""), ("guest", "obs"), ("guest", "77"), ("task", "")):
            texts += [str(await client.complete(reference, {"name": name, "value": typed}))]
    for uri in ("pve://cluster", f"pve://nodes/{NODE}", "pve://storage/local-lvm", "pve://storage/nas"):
        texts += [str(await client.read_resource(uri))]
    for name, arguments in (
        ("diagnose_guest", {"guest": "100"}),
        ("review_capacity", {}),
        ("plan_upgrade", {}),
        ("explain_task", {}),
        ("review_backups", {}),
    ):
        try:
            texts.append(str(await client.get_prompt(name, arguments)))
        except MCPError as error:
            texts.append(str(error))
    assert not [(marks, text[:500]) for text in texts if (marks := leaked_marks(text))]
    for uri, asked in (
        (f"pve://guests/{VMID}", str(VMID)),
        (f"pve://guests/{NAME}", NAME),
        ("pve://guests/obsidian", ""),
    ):
        with pytest.raises(MCPError) as refused:
            await client.read_resource(uri)
        assert not leaked_marks(str(refused.value), asked=asked)


@pytest.mark.parametrize("surface", SYSTEMS)
async def test_tools_of_other_servers_do_not_tell_of_it(tmp_path: Path, free: Rig, surface: str) -> None:
    async with second_server(free, tmp_path / "c.jsonl", policy=policy(RULE), surfaces=(surface,)) as restricted:
        leaks, answered = [], 0
        for tool in (await restricted.client.list_tools()).tools:
            if not tool.annotations or not tool.annotations.read_only_hint:
                continue
            usual = {
                "node": NODE,
                "vmid": 100,
                "vm_id": 100,
                "storage": "nas",
                "hostname": "nas",
                "name": NAME[:-1],
            }
            required = tool.input_schema.get("required", ())
            properties = tool.input_schema["properties"]
            arguments = {argument: usual.get(argument, _something(properties[argument])) for argument in required}
            answer = await restricted.call(tool.name, **arguments)
            answered += not answer.is_error
            if marks := leaked_marks(everything(restricted, answer)):
                leaks.append((tool.name, arguments, marks, text_of(answer)[:300]))
        assert not leaks, "\n".join(map(str, leaks))
        assert answered


@pytest.mark.parametrize(
    "fault",
    [
        f"500:disk vm-{VMID}-disk-0 of {NAME} is in the way:POST:/nodes/*/status/start",
        f"task-fails:qmstart:VM {VMID} {NAME} holds the device",
    ],
)
async def test_errors_of_a_change_do_not_mention_it(free: Rig, restricted: Rig, fault: str) -> None:
    free.sim.faults.add(fault)
    answer = await restricted.call("guest_power", guest=107, action="start")
    free.sim.faults.clear()
    assert answer.is_error
    assert not leaked_marks(everything(restricted, answer))
    assert NAME in str(restricted.audit()[-1]["error"])  # the operator reads PVE's own words
