"""What has happened since a time, in few words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from msgspec import Meta

from quorate.hints import see, tools
from quorate.homelab.homelab import Homelab
from quorate.operations.registry import Risk, Table, operation, page
from quorate.problems import Problem
from quorate.pve.cluster import Cluster
from quorate.tools.backup_coverage import DrillCopy, read_drills
from quorate.tools.node_health import has_failed
from quorate.units import When, moment, parse_moment
from quorate.watch.finding_store import Event, Events, Finding, Findings
from quorate.watch.findings import Visibility
from quorate.watch.watchers import Watchers

COLUMNS = ("time", "cluster", "event", "what")
MOST_EVENTS = 2000
_TASKS = {
    "qmcreate": "created", "vzcreate": "created", "qmclone": "cloned", "vzclone": "cloned", "qmrestore": "restored",
    "vzrestore": "restored", "qmdestroy": "gone", "vzdestroy": "gone", "qmigrate": "moved", "vzmigrate": "moved",
    "qmstart": "started", "vzstart": "started", "qmstop": "stopped", "vzstop": "stopped", "qmshutdown": "stopped",
    "vzshutdown": "stopped", "qmconfig": "changed", "vzconfig": "changed", "qmtemplate": "changed",
}  # fmt: skip
"""What a task of PVE did to the guest in its id: a clone's is the source, a migration's node where the guest was."""

_EXPLAINED_BY = {"created": ("created", "restored")}


@operation(
    toolset="watch",
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
    visibility = await Visibility.of(homelab)
    recorded = await Events(homelab.store).since(begin, MOST_EVENTS)
    events = [event for event in map(visibility.event, recorded) if event is not None]
    watchers = Watchers(homelab.store)
    gaps = {pve.name: await watchers.watched_from(pve.name, begin) for pve in homelab.clusters}
    silent = {}
    for pve in homelab.clusters:
        watched = gaps[pve.name]
        if watched is None or watched > begin:
            try:
                copies = (await read_drills(pve)).copies
                shown = [*_from_tasks(pve, await pve.get("/cluster/tasks"), begin, watched or now, copies)]
                events += _without_recorded(shown, recorded)
            except Problem as problem:
                silent[pve.name] = str(problem)
    events += await _of_findings(homelab, visibility, begin)
    selected = sorted(
        (event for event in events if cluster is None or event.cluster == cluster),
        key=lambda event: (-event.time, event.says),
    )
    rows = [[moment(event.time), event.cluster, event.kind, event.says] for event in selected]
    table = page(COLUMNS, rows, limit=limit, offset=offset)
    count = Counter(event.kind for event in selected)
    table.facts = {"since": moment(begin), "events": dict(sorted(count.items())) or "none"}
    if any(watched is None or watched > begin for watched in gaps.values()):
        table.facts["not_watched"] = _describe_gaps(gaps, begin)
    if silent:
        table.facts["no_answer"] = silent
    table.note = see("See what is open, and the tasks", tools.finding_list, tools.task_list(status="failed"))
    return table


def _describe_gaps(gaps: dict[str, float | None], begin: float) -> str:
    parts = [
        f"{name} was not watched" + ("" if watched is None else f" before {moment(watched)}")
        for name, watched in gaps.items()
        if watched is None or watched > begin
    ]
    return f"{', '.join(parts)}: for that time, what PVE's recent tasks show is listed, but no changed configuration"


def _from_tasks(
    pve: Cluster, tasks: list[dict[str, Any]], begin: float, end: float, copies: Sequence[DrillCopy]
) -> Iterator[Event]:
    """What ended tasks show. Those of drills' own copies are left out."""
    for task in tasks:
        time = float(task.get("endtime") or 0)
        if begin <= time < end:
            about = str(task.get("id") or "")
            of_drill = any(about == str(copy.vmid) and copy.begun <= time <= copy.ended + 1 for copy in copies)
            for kind, summary in _describe_task(task):
                if of_drill and kind != "task-failed":
                    continue
                target = f"guest {about}" if about.isdecimal() else f"node {task.get('node')}"
                yield Event(pve.name, time, kind, target, summary)


def _describe_task(task: dict[str, Any]) -> Iterator[tuple[str, str]]:
    what = f"{task.get('type')} {task.get('id') or ''} on {task.get('node')}".replace("  ", " ")
    if has_failed(task):
        yield "task-failed", f"{what}: {str(task.get('status', ''))[:200]}"
    elif kind := _TASKS.get(str(task.get("type"))):
        where = {"cloned": "into a new guest, on", "moved": "away from"}.get(kind, "on")
        yield kind, f"guest {task.get('id')} {where} {task.get('node')} ({task.get('type')} by {task.get('user')})"


def _without_recorded(shown: Sequence[Event], recorded: Sequence[Event]) -> list[Event]:
    """The events that the watch did not record later, from what it found different after it had not looked.

    A recorded event stands for the last task that explains it. The task of a clone does not name the new guest.
    """
    left = sorted(shown, key=lambda event: event.time)
    for event in recorded:
        targets = {(kind, event.target) for kind in _EXPLAINED_BY.get(event.kind, (event.kind,))}
        earlier = [task for task in left if task.cluster == event.cluster and task.time <= event.time]
        explaining = [task for task in earlier if (task.kind, task.target) in targets]
        if event.kind == "created":
            explaining = explaining or [task for task in earlier if task.kind == "cloned"]
        if explaining:
            left.remove(explaining[-1])
    return left


async def _of_findings(homelab: Homelab, visibility: Visibility, begin: float) -> list[Event]:
    findings = Findings(homelab.store)
    opened = visibility.findings(await findings.opened_since(begin))
    resolved = visibility.findings(await findings.resolved_since(begin))
    return [
        *(_event(finding, finding.opened, f"{finding.severity} opened") for finding in opened),
        *(_event(finding, finding.resolved or 0.0, "resolved") for finding in resolved),
    ]


def _event(finding: Finding, time: float, kind: str) -> Event:
    return Event(finding.cluster, time, kind, "", f"{finding.seen_as.what} ({finding.id})")
