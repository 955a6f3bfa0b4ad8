"""Looking at runs and controlling them."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta

from quorate.config import Access
from quorate.hints import Advice, tools
from quorate.operations.plan import Action, ActionResult, Call, Plan, StepContext, Target
from quorate.operations.registry import NEEDED, IllustratedFacts, Risk, Table, find_operation, operation, page
from quorate.problems import Refused
from quorate.pve.cluster import Cluster, OtherCluster
from quorate.pve.tasks import Report
from quorate.runs.start import OTHER_CLUSTER, closed_clusters, is_visible, run_here, runs_of, worker_command
from quorate.runs.store import ACTIVE, ENDED, Bound, Run, RunState
from quorate.units import duration, moment

COLUMNS = ("run", "kind", "state", "what", "started", "now")
WAIT_INTERVAL = 1.0
WAITS_FOR_WORKER = "waiting for a worker"
OUTPUT = "output"
"""The key of command output in the report of a run."""
_NOT_SHOWN = Advice("It is not shown here", tools.run_get(inside=True))

RunRef = Annotated[str, Meta(description="Id of the run")]
Lines = Annotated[int, Meta(ge=0, le=1000, description="Last lines of its log")]


@operation(
    toolset="runs",
    risk=Risk.READ,
    search_words="runs jobs multi-step progress paused failed maintenance evacuation drill update",
)
async def run_list(
    pve: Cluster,
    other_cluster: OtherCluster,
    state: Literal["active", "paused", "ended", "all"] = "active",
    limit: Annotated[int, Meta(ge=1, le=200)] = 20,
) -> Table:
    """Runs, newest first."""
    states = {"active": ACTIVE, "paused": (RunState.PAUSED,), "ended": ENDED, "all": tuple(RunState)}[state]
    blank, store = await pve.blanker(), runs_of(pve)
    moves = await store.list(states, cluster=pve.name, kind="remote_move", limit=1000)
    closed = await closed_clusters(moves, other_cluster)

    def shows(run: Run) -> bool:
        return is_visible(run, pve, blank) and run.scope.get(OTHER_CLUSTER) not in closed

    runs = await store.list(states, cluster=pve.name, limit=limit, shows=shows)
    activities = [
        WAITS_FOR_WORKER if await runs_of(pve).lacks_worker(run) else blank(describe_progress(run)) for run in runs
    ]
    rows = [
        [run.id, run.kind, run.state.value, blank(run.title), moment(run.created), activity]
        for run, activity in zip(runs, activities, strict=True)
    ]
    table = page(COLUMNS, rows, limit=limit, offset=0)
    table.keys = [-run.created for run in runs]
    return table


@operation(
    toolset="runs",
    risk=Risk.LOOK_INSIDE,
    least=Risk.READ,
    risk_of=lambda arguments: Risk.LOOK_INSIDE if arguments.get("inside") else Risk.READ,
    search_words="run status log report result what is left why paused",
)
async def run_get(
    pve: Cluster,
    run: RunRef,
    other_cluster: OtherCluster,
    lines: Lines = 20,
    inside: Annotated[bool, Meta(description="Also output of commands and screenshots")] = False,
) -> dict[str, Any] | IllustratedFacts:
    """State, log and report of a run, with what it saw inside guests if requested."""
    stored = await run_here(pve, run, other_cluster)
    facts = await _visible(pve, stored, lines, await pve.blanker(), inside=inside)
    pictures = (
        tuple(base64.b64decode(picture) for picture in stored.memory.get("pictures", {}).values()) if inside else ()
    )
    return IllustratedFacts(facts, pictures) if pictures else facts


@operation(toolset="runs", risk=Risk.READ, search_words="wait for run to finish follow progress done yet")
async def run_wait(
    pve: Cluster,
    run: RunRef,
    report: Report,
    other_cluster: OtherCluster,
    wait: Annotated[float, Meta(ge=0, le=50, description="Maximum seconds to follow it")] = 45,
    lines: Lines = 10,
) -> dict[str, Any]:
    """Follow a run until it ends or pauses; call again if it continues."""
    deadline = pve.clock.monotonic() + wait
    blank, seen = await pve.blanker(), 0.0
    while True:
        stored = await run_here(pve, run, other_cluster)
        if stored.changed > seen and stored.log:
            seen = stored.changed
            await report(0.0, None, blank(stored.log[-1].text))
        if stored.state.has_ended or stored.state is RunState.PAUSED or pve.clock.monotonic() >= deadline:
            return await _visible(pve, stored, lines, blank)
        await pve.clock.sleep(WAIT_INTERVAL)


@operation(
    toolset="runs",
    risk=Risk.CHANGE,
    plans_later=True,
    search_words="pause resume continue stop abort cancel run",
    shown_by=("run_get", "run"),
)
async def run_control(
    pve: Cluster, run: RunRef, action: Literal["pause", "resume", "abort"], other_cluster: OtherCluster
) -> Plan:
    """Pause, resume or abort a run. Its current step is always finished; resuming may need approval."""
    runs = runs_of(pve)
    stored = await run_here(pve, run, other_cluster)
    requested = tuple(stored.request) if action == "resume" else ()
    blank = await pve.blanker()

    async def perform(context: StepContext) -> ActionResult:
        if action != "pause":
            _require_access(stored, context.origin)
        if action == "pause":
            changed = await runs.pause(stored.id, context.by)
        elif action == "abort":
            changed = await runs.abort(stored.id, context.by, origin=context.origin)
        else:
            changed = await runs.resume(stored.id, context.by, requested, context.origin["risk"], origin=context.origin)
        return ActionResult(
            {"run": changed.id},
            next_step=None if action == "pause" else Advice("Follow it", tools.run_wait(run=changed.id)),
        )

    async def read_again() -> dict[str, Any]:
        changed = await runs.get(stored.id)
        return {"state": changed.state.value, "reason": blank(changed.reason)}

    allowed = [blank(str(bound)) for bound in requested]
    adopts = stored.orphaned and action != "pause"
    step = Action(
        f"{action.capitalize()} the run {stored.id}",
        f"{action} run {stored.id}: {stored.title}" + (f"; also allow {', '.join(allowed)}" if allowed else ""),
        perform,
        None,
        tuple(as_call(bound) for bound in requested if bound.method != "RUN"),
        risk=_risk_of(stored)
        if adopts
        else Risk.DESTROY
        if any(bound.method == "RUN" for bound in requested)
        else None,
        risk_because="The run will act for the person who takes it over" if adopts else "",
        later=True,
    )
    return Plan(
        f"{action.capitalize()} the run {stored.id}: {stored.title}",
        (step,),
        facts={
            "state": stored.state.value,
            "reason": blank(stored.reason),
            **({"also_allows": allowed} if allowed else {}),
        },
        after=read_again,
        about=(Target("run", stored.id),),
    )


def _require_access(run: Run, origin: Mapping[str, Any]) -> None:
    """Stopping is easy; what may destroy something continues, or cleans up, only for someone who could start it."""
    needed = NEEDED[_risk_of(run) or Risk.CHANGE]
    if not Access(origin["access"]).allows(needed):
        raise Refused(
            f"The run {run.id} may destroy something, so it is resumed or aborted only with access {needed}",
            why=f"This call has access {origin['access']}",
            next_step="It stays as it is; pausing it is possible",
        )


def _risk_of(run: Run) -> Risk | None:
    """What the run may do at most: the access and the approval of a caller who is gone are not passed on."""
    started = find_operation(run.tool)
    destroys = (started is not None and started.risk is Risk.DESTROY) or any(
        bound.risk == Risk.DESTROY.value for bound in run.bounds
    )
    return Risk.DESTROY if destroys else None


def as_call(bound: Bound) -> Call:
    """The call that was refused because it is outside the bounds."""
    name = bound.target if bound.target != "*" else ""
    params = {key: values[0] for key, values in bound.params.items()}
    parts = bound.path.split("/")
    guest = len(parts) > 4 and parts[3] in ("qemu", "lxc")
    target = Target("vm" if parts[3] == "qemu" else "ct", parts[4], name, parts[2]) if guest else None
    return Call(f"{bound.method} {bound.path}", bound.method, bound.path, params, target)


def describe(run: Run, lines: int, *, lacks_worker: bool) -> dict[str, Any]:
    """A run as its readers see it."""
    left = len(run.log) - lines
    return {
        "run": run.id,
        "kind": run.kind,
        "state": run.state.value,
        "what": run.title,
        **({"reason": run.reason} if run.reason else {}),
        "started": moment(run.created),
        **({"took": duration(run.ended - run.created)} if run.ended else {}),
        **({"starts": moment(run.starts)} if run.starts and run.state is RunState.WAITING else {}),
        **({"window": run.window} if run.window else {}),
        **({"approval": run.approval} if run.approval else {}),
        **({"now": f"{WAITS_FOR_WORKER}: a server, or {worker_command(run.tool)}"} if lacks_worker else {}),
        **({"current": [step.says for step in run.current.values()]} if run.current else {}),
        **({"asks_for": [str(bound) for bound in run.request]} if run.request else {}),
        **({"report": run.report} if run.report else {}),
        "log": [f"{moment(line.time)} {line.text}" for line in run.log[-lines:]] if lines else [],
        **({"earlier_lines": left} if left > 0 else {}),
        **(
            {
                "next": Advice(
                    "Fix the reason, then resume it, or abort it", tools.run_control(run=run.id, action="resume")
                )
            }
            if run.state is RunState.PAUSED
            else {}
        ),
    }


async def _visible(
    pve: Cluster, run: Run, lines: int, blank: Callable[[str], str], *, inside: bool = False
) -> dict[str, Any]:
    """Without words about guests that are hidden from the caller: a run may be older than the rule that hides them.

    What commands printed is shown to callers who may look inside.
    """

    def blank_all(value: Any) -> Any:
        if isinstance(value, dict):
            return {
                blank(key): blank_all(item if inside or key != OUTPUT else _NOT_SHOWN) for key, item in value.items()
            }
        if isinstance(value, list):
            return [blank_all(item) for item in value]
        return blank(value) if isinstance(value, str) else value

    facts = describe(run, lines, lacks_worker=await runs_of(pve).lacks_worker(run))
    return {name: blank_all(value) for name, value in facts.items()}


def describe_progress(run: Run) -> str:
    """What a run does or waits for, in one line; may be empty."""
    if run.current:
        return "; ".join(step.says for step in run.current.values())
    if run.state is RunState.WAITING:
        when = [f"from {moment(run.starts)}"] if run.starts else []
        return "; ".join([*when, *([f"only {run.window}"] if run.window else [])])
    return run.reason or (run.log[-1].text if run.log else "")
