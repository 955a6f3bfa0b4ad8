"""What has happened since a time, in few words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Any

from msgspec import Meta

from quorate.hints import FINDING_LIST, TASK_LIST, see
from quorate.homelab.homelab import Homelab
from quorate.operations.registry import Risk, Table, operation, page
from quorate.operations.reports.node_health import has_failed
from quorate.operations.units import When, moment, parse_moment
from quorate.operations.watch.visibility import Visibility
from quorate.problems import Problem
from quorate.state.events import Event, Events
from quorate.state.findings import Finding, Findings
from quorate.state.watchers import Watchers

COLUMNS = ("time", "cluster", "event", "what")
MOST_EVENTS = 2000
_TASKS = {
    "qmcreate": "created", "vzcreate": "created", "qmclone": "created", "vzclone": "created", "qmrestore": "created",
    "vzrestore": "created", "qmdestroy": "gone", "vzdestroy": "gone", "qmigrate": "moved", "vzmigrate": "moved",
    "qmstart": "started", "vzstart": "started", "qmstop": "stopped", "vzstop": "stopped", "qmshutdown": "stopped",
    "vzshutdown": "stopped", "qmconfig": "changed", "vzconfig": "changed", "qmtemplate": "changed",
}  # fmt: skip
"""What a task of PVE did to its guest."""


@operation(
    risk=Risk.READ,
    search_words=(
        "what changed happened news since yesterday overnight last night while away history events recently new guests "
        "deleted moved migrated failed tasks morning report summary catch up"
    ),
)
async def changes_since(
    homelab: Homelab,
    since: When = "1d",
    cluster: str | None = None,
    limit: Annotated[int, Meta(ge=1, le=200)] = 40,
    offset: Annotated[int, Meta(ge=0)] = 0,
) -> Table:
    """What happened since a time, newest first: guests created, changed, moved, gone; failed tasks; findings opened and
    resolved. Call this first."""
    now = homelab.clock.time()
    begin = parse_moment(since, now=now)
    sees = await Visibility.of(homelab)
    events = [one for event in await Events(homelab.store).since(begin, MOST_EVENTS) if (one := sees.event(event))]
    watchers = Watchers(homelab.store)
    gaps = {pve.name: await watchers.watched_from(pve.name, begin) for pve in homelab.clusters}
    silent = {}
    for pve in homelab.clusters:
        watched = gaps[pve.name]
        if watched is None or watched > begin:
            try:
                events += _from_tasks(pve.name, await pve.get("/cluster/tasks"), begin, watched or now)
            except Problem as problem:
                silent[pve.name] = str(problem)
    events += await _of_findings(homelab, sees, begin)
    wanted = sorted(
        (one for one in events if cluster is None or one.cluster == cluster), key=lambda one: (-one.time, one.says)
    )
    rows = [[moment(one.time), one.cluster, one.kind, one.says] for one in wanted]
    table = page(COLUMNS, rows, limit=limit, offset=offset)
    count = Counter(one.kind for one in wanted)
    table.facts = {"since": moment(begin), "events": dict(sorted(count.items())) or "none"}
    if any(watched is None or watched > begin for watched in gaps.values()):
        table.facts["not_watched"] = _describe_gaps(gaps, begin)
    if silent:
        table.facts["no_answer"] = silent
    table.note = see("See what is open, and the tasks", FINDING_LIST, TASK_LIST(status="failed"))
    return table


def _describe_gaps(gaps: dict[str, float | None], begin: float) -> str:
    parts = [
        f"{name} was not watched" + ("" if watched is None else f" before {moment(watched)}")
        for name, watched in gaps.items()
        if watched is None or watched > begin
    ]
    return f"{', '.join(parts)}: for that time, what PVE's recent tasks show is listed, but no changed configuration"


def _from_tasks(cluster: str, tasks: list[dict[str, Any]], begin: float, end: float) -> Iterator[Event]:
    for task in tasks:
        time = float(task.get("endtime") or 0)
        if begin <= time < end:
            for kind, summary in _describe_task(task):
                target = str(task.get("id") or "")
                yield Event(cluster, time, kind, f"guest {target}" if target.isdecimal() else "", summary)


def _describe_task(task: dict[str, Any]) -> Iterator[tuple[str, str]]:
    what = f"{task.get('type')} {task.get('id') or ''} on {task.get('node')}".replace("  ", " ")
    if has_failed(task):
        yield "task-failed", f"{what}: {str(task.get('status', ''))[:200]}"
    elif kind := _TASKS.get(str(task.get("type"))):
        yield kind, f"guest {task.get('id')} on {task.get('node')} ({task.get('type')} by {task.get('user')})"


async def _of_findings(homelab: Homelab, sees: Visibility, begin: float) -> list[Event]:
    findings = Findings(homelab.store)
    opened = [found for one in await findings.opened_since(begin) if (found := sees.finding(one))]
    resolved = [found for one in await findings.resolved_since(begin) if (found := sees.finding(one))]
    return [
        *(Event(one.cluster, one.opened, f"{one.severity} opened", "", _finding(one)) for one in opened),
        *(Event(one.cluster, one.resolved or 0.0, "resolved", "", _finding(one)) for one in resolved),
    ]


def _finding(finding: Finding) -> str:
    return f"{finding.seen_as.what} ({finding.id})"
