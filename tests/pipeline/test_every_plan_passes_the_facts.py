"""Whatever an operation plans, PVE 8.4 and 9.2 both take: every call of every plan is held against the API's facts."""

import re
from contextlib import AsyncExitStack

import pytest

from pve_schema.schema import facts
from quorate.operations.arguments import decode
from quorate.operations.plan import Plan
from quorate.operations.registry import OTHER_CLUSTER, SUPPLIED, TOOLSETS, Risk, operations
from quorate.pipeline.authorization import effect
from quorate.problems import BadArgument, Problem
from quorate.tools.safety_snapshots import after_snapshots
from tests.generators import examples
from tests.generators.population import CONTENT, populate
from tests.rigs.mcp_session import rig, text_of

pytestmark = pytest.mark.anyio

VERSIONS = {"8.4": "8.4.14", "9.2": "9.2.2"}
BETWEEN_CLUSTERS = {"run_remote_move", "guest_remote_migrate"}
"""They need a second cluster: their plans are made in tests/runs/test_remote_move.py."""
CHANGES = [
    operation.name
    for operation in operations(TOOLSETS).values()
    if operation.changes and operation.name not in BETWEEN_CLUSTERS
]
DRY_RUNS = 3

NO_PLAN = {("8.4", "ha_rule_set"): "PVE 8 has HA groups instead"}
"""Operations that cannot plan anything on a version, and why."""

RISKIER: dict[str, set[str]] = {"disk_change": {"options"}, "disk_add": {"options"}}
"""Arguments that may end the tool's exemption, as options that discard what is written to a disk do."""

NEVER_PLANNED = {
    ("8.4", "ha_remove"): {"rule": "PVE 8 has no HA rules"},
    ("8.4", "ha_rule_set"): dict.fromkeys(
        ("comment", "enabled", "guests", "kind", "nodes", "rule", "strict"), "PVE 8 has HA groups instead"
    ),
    ("8.4", "ha_set"): {"failback": "an option of PVE 9"},
    ("9.2", "ha_set"): {"group": "PVE 9 has HA rules instead"},
}
"""Parameters that no generated plan holds, and why."""


@pytest.fixture(scope="module")
async def populated(tmp_path_factory):
    """A cluster for each version that is asked for. Plans and dry runs leave it as it is, so all tests share it."""
    async with AsyncExitStack() as stack:
        clusters = {}

        async def start(version):
            if version not in clusters:
                folder = tmp_path_factory.mktemp("populated")
                clusters[version] = await stack.enter_async_context(rig(folder, version=version, in_memory=True))
                await populate(clusters[version])
            return clusters[version]

        yield start


@pytest.mark.parametrize("version", [pytest.param("8.4", marks=pytest.mark.thorough), "9.2"])
@pytest.mark.parametrize("name", CHANGES)
async def test_every_planned_call_is_one_that_the_api_takes(populated, version, name):
    quorate = await populated(VERSIONS[version])
    planned, calls = await every_plan(quorate, operations()[name], facts(version))
    assert (calls > 0) == ((version, name) not in NO_PLAN), f"{name}: {calls} calls on {version}"
    unplanned = set(operations()[name].schema()["properties"]) - planned - {"dry_run", "wait", "safely"}
    assert unplanned == set(NEVER_PLANNED.get((version, name), ())), name


async def every_plan(quorate, operation, table):
    """The parameters that took part in a plan, and the number of calls that were looked at."""
    planned, calls, shown = set(), 0, 0
    image = quorate.audit_file.with_name("tiny.iso")
    image.write_bytes(CONTENT)
    for arguments in examples(operation, quorate.sim.world, image):
        plan = await plan_of(quorate, operation, arguments)
        if plan is None or not plan.calls:
            continue
        risk = operation.risk if operation.risk_of is None else operation.risk_of(decode(operation, arguments))
        judged = await effect(operation, risk, plan, table, quorate.app.cluster)
        riskier = RISKIER.get(operation.name, set()) & arguments.keys()
        assert judged == (risk, "") or riskier, f"{operation.name} {arguments}: {judged}"
        if operation.inapplicable:
            with pytest.raises(Problem):
                await after_snapshots(quorate.app.cluster, plan)
        for call in plan.api_calls:
            problem = objection(table, call)
            assert problem is None, (
                f"{operation.name} {arguments}: {call.method} {call.path} {dict(call.params)}: {problem}"
            )
        planned |= set(arguments)
        calls += len(plan.calls)
        if shown < DRY_RUNS:
            shown += 1
            await is_shown(quorate, operation.name, arguments)
            await is_planned_alike_later(quorate, operation, arguments, plan)
    return planned, calls


async def other_cluster(name):
    raise BadArgument(f"There is no cluster {name!r}")


async def plan_of(quorate, operation, arguments):
    """What the operation would do; None if it says why not, or if the call is a mere read."""
    try:
        decoded = decode(operation, arguments)
        if operation.risk_of is not None and operation.risk_of(decoded) in (Risk.READ, Risk.LOOK_INSIDE):
            return None
        arguments = {name: value for name, value in decoded.items() if name not in ("dry_run", "wait", "safely")}
        values = {**SUPPLIED, OTHER_CLUSTER: other_cluster}
        arguments |= {name: values[kind] for name, kind in operation.supplied.items()}
        plan = await operation.run(quorate.app.cluster, **arguments)
    except Problem:
        return None
    finally:
        quorate.app.cluster.reserved_vmids.clear()
    assert isinstance(plan, Plan)
    return plan


def objection(table, call):
    match = table.find(call.method, call.path)
    if match is None:
        return "there is no such endpoint"
    return match.endpoint.check({**match.values, **call.params}) or None


async def is_shown(quorate, name, arguments):
    """A dry run passes parameters and privileges, too, and sends no write."""
    before = len(quorate.sim.requests)
    answer = await quorate.call(name, **arguments, dry_run=True)
    assert not answer.is_error, f"{name} {arguments}: {text_of(answer)}"
    assert re.match("dry run", answer.structured_content["result"])
    assert {method for method, _ in quorate.requests_since(before)} <= {"GET"}


async def is_planned_alike_later(quorate, operation, arguments, plan):
    """Else an approval that is given in the meantime could not be used: no name comes from the clock or from chance."""
    now = quorate.app.cluster.clock.time
    with pytest.MonkeyPatch.context() as patch:  # the simulator's own time ends the task that others want to stop
        patch.setattr(quorate.app.cluster.clock, "time", lambda: now() + 61)
        later = await plan_of(quorate, operation, arguments)
    assert later is not None, f"{operation.name} {arguments}"
    assert later.digest == plan.digest, f"{operation.name} {arguments}"


def test_the_list_of_operations_without_a_plan_stays_tiny():
    assert len(NO_PLAN) <= 2
    assert {name for _, name in NO_PLAN} <= set(CHANGES)
