"""Starting a run: its plan, what approval covers, and when it begins."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from quorate.config import Access, ConfigError
from quorate.config.policy import parse_hours
from quorate.hints import OMITTED, Advice, Wording, tools
from quorate.operations.plan import Action, ActionResult, Call, Plan, StepContext, Target
from quorate.operations.registry import NEEDED, Risk, find_operation
from quorate.problems import BadArgument, Problem, Refused
from quorate.pve.cluster import Cluster, OtherCluster
from quorate.runs.store import Bound, Run, RunState, RunStore, no_run
from quorate.units import moment, parse_moment

OTHER_CLUSTER = "to"
"""In the scope of a run: the name of another cluster that it is about."""
MOST_DAYS = 30
"""How far ahead a run may be scheduled: what was approved should still be what is there."""
At = Annotated[str, Meta(description="Start then: 2026-01-31 22:00 (UTC), or in 2h. Default: now")]
Window = Annotated[
    str, Meta(description="Start steps only in these hours of the server's time zone: 22:00-05:00, Sat,Sun 00:00-24:00")
]


async def run_here(pve: Cluster, id: str, other_cluster: OtherCluster) -> Run:
    """The run, if it is one of this cluster: another cluster's access level and rules do not apply to it."""
    run = await runs_of(pve).get(id)
    if not is_visible(run, pve, await pve.blanker()) or await closed_clusters([run], other_cluster):
        raise no_run(id)
    return run


async def closed_clusters(runs: Iterable[Run], other_cluster: OtherCluster) -> set[str]:
    """The other clusters that these runs are about and that the caller must not know about."""
    closed = set()
    for name in {str(run.scope[OTHER_CLUSTER]) for run in runs if run.scope.get(OTHER_CLUSTER)}:
        try:
            await other_cluster(name)
        except (BadArgument, Refused):
            closed.add(name)
        except Problem:  # it does not answer now
            continue
    return closed


def is_visible(run: Run, pve: Cluster, blank: Callable[[str], str]) -> bool:
    """A run for certain guests is as hidden as they are; parts of others, such as an evacuation, are blanked."""
    return run.is_of(pve.name, pve.endpoints) and blank(run.title) == run.title


@dataclass(frozen=True, slots=True)
class Outline:
    """A run before it exists: what is shown, and what approval will cover."""

    kind: str
    tool: str
    title: str
    line: str
    """The run in one line, the same for the same targets: an approval is bound to it."""
    scope: Mapping[str, Any]
    bounds: Callable[[str], Sequence[Bound]]
    """The bounds, given the id of the run, which is part of the names of what it creates."""
    target: Target | None = None
    about: tuple[Target, ...] = ()
    """What it is about, if not `target`."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str | Wording, ...] = ()
    needs: tuple[Call, ...] = ()
    """Examples of its calls: checked against rules, privileges and facts before anyone is asked."""
    elsewhere: tuple[Action, ...] = ()
    """Steps in other clusters, before the run exists: what is judged there."""
    risk: Risk | None = None
    risk_because: str = ""
    """Why it has this risk, if not for commands on nodes."""
    destroys_only_its_own: bool = False


def start_plan(pve: Cluster, outline: Outline, at: str | None, window: str | None) -> Plan:
    starts = _parse_start(pve, at)
    _check_window(window)
    when = ([f"from {moment(starts)}"] if starts else []) + ([f"only {window}"] if window else [])

    started: dict[str, Any] = {}

    async def perform(context: StepContext) -> ActionResult:
        run = await runs_of(pve).add(_run(pve, outline, context, starts, window or ""))
        started.update(run=run.id, state=run.state.value, **({"starts": moment(starts)} if starts else {}))
        return ActionResult(
            started,
            begun=True,
            next_step=Advice(
                f"A server continues it in the background ({worker_command(outline.tool)} without one); follow it",
                tools.run_wait(run=run.id),
            ),
        )

    async def which_run() -> Mapping[str, Any]:
        return started

    line = "; ".join([outline.line, *when])
    action = Action(
        f"Start the run: {outline.title}",
        line,
        perform,
        outline.target,
        outline.needs,
        risk=outline.risk,
        risk_because=outline.risk_because,
        later=True,
    )
    return Plan(
        outline.title,
        (*outline.elsewhere, action),
        facts={**outline.facts, **({"starts": ", ".join(when)} if when else {})},
        warnings=outline.warnings,
        after=which_run if outline.elsewhere else None,  # facts of a single step are shown anyway
        risk=outline.risk,
        about=outline.about or ((outline.target,) if outline.target else ()),
        destroys_only_its_own=outline.destroys_only_its_own,
    )


def access_for(tool: str) -> Access:
    """The access level that continues a run of this tool."""
    operation = find_operation(tool)
    return NEEDED[Risk.CHANGE if operation is None else operation.risk]


def worker_command(tool: str) -> str:
    return f"`quorate runs work --access {access_for(tool)}`"


def runs_of(pve: Cluster) -> RunStore:
    return pve.attachment(RunStore)


def _run(pve: Cluster, outline: Outline, context: StepContext, starts: float, window: str) -> Run:
    name, origin = runs_of(pve).new_id(), context.origin
    now = pve.clock.time()
    run = Run(
        id=name,
        kind=outline.kind,
        cluster=pve.name,
        endpoints=list(pve.endpoints),
        tool=outline.tool,
        title=outline.title,
        created=now,
        caller=dict(origin),
        approval=str(origin.get("approval", "")),
        scope=dict(outline.scope),
        bounds=[msgspec.structs.replace(bound, risk=origin["risk"]) for bound in outline.bounds(name)],
        starts=starts,
        window=window,
        state=RunState.WAITING if starts or window else RunState.RUNNING,
    )
    run.say(now, f"Started by {context.by}: {outline.title}")
    return run


def _parse_start(pve: Cluster, at: str | None) -> float:
    if at is None:
        return 0.0
    now = pve.clock.time()
    start = parse_moment(at, now=now, ahead=True)
    if start <= now:
        raise BadArgument(
            f"{at} has passed",
            next_step=Advice(f"It is {moment(now)} now; leave `{{at}}` out to start at once", at=OMITTED),
        )
    if start > now + MOST_DAYS * 86_400:
        raise BadArgument(f"{at} is more than {MOST_DAYS} days ahead", next_step="Choose an earlier time")
    return start


def _check_window(window: str | None) -> None:
    if window is None:
        return
    try:
        parse_hours(window, None, "window")
    except ConfigError as error:
        raise BadArgument(str(error)) from None


def is_within(window: str, now: float) -> bool:
    return not window or parse_hours(window, None, "window").cover(now)


def number_lines(lines: Sequence[str]) -> list[str]:
    return [f"{number}. {line}" for number, line in enumerate(lines, 1)]
