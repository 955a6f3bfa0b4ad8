"""Tools for findings, and what of findings and events a caller may see: nothing that rules hide."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from quorate.config.clusters import HOMELAB, SERVER
from quorate.hints import see, tools
from quorate.homelab.homelab import Homelab
from quorate.operations.plan import Action, ActionResult, Plan, StepContext, Target
from quorate.operations.registry import Risk, Table, operation, page
from quorate.problems import Conflict, NotFound, Problem
from quorate.pve.cluster import Cluster
from quorate.pve.filtered_cluster import BLANK
from quorate.pve.lookup import View
from quorate.pve.targets import DATASTORE, Hides, Subject
from quorate.tools.health_findings import KINDS
from quorate.units import duration, moment, parse_span
from quorate.watch.finding_store import SEVERITIES, Event, Finding, Findings
from quorate.watch.watchers import Watchers

COLUMNS = ("id", "severity", "cluster", "kind", "finding", "open_for", "state", "next")


@dataclass(frozen=True, slots=True)
class _Filter:
    """What a caller sees of one cluster; `view` is None if that is everything."""

    view: View | None
    blank: Callable[[str], str]

    def shows(self, target: str) -> bool:
        kind, _, name = target.partition(" ")
        if self.view is None or kind not in ("guest", "node"):
            return True
        return name in self.view.nodes if kind == "node" else int(name) in self.view.by_vmid


async def _filter_of(cluster: Cluster) -> _Filter:
    """The caller's filter. If it is not known what to hide, everything about a single guest or node is hidden."""
    if cluster.original is cluster:
        return _Filter(None, str)
    try:
        return _Filter(await cluster.inventory.view(), await cluster.blanker())
    except Problem:
        return _Filter(View([]), lambda _: "(hidden: the cluster does not answer)")


class Visibility:
    def __init__(self, clusters: dict[str, _Filter], hosts: frozenset[str], hides: Hides | None) -> None:
        self._clusters = clusters
        self._hosts = hosts
        self._hides = hides

    @classmethod
    async def of(cls, homelab: Homelab) -> Visibility:
        filters = {}
        for cluster in homelab.clusters:
            filters[cluster.name] = await _filter_of(cluster)
        return cls(filters, frozenset(host.name for host in await homelab.hosts.all()), homelab.hides)

    def event(self, event: Event) -> Event | None:
        cluster_filter = self._clusters.get(event.cluster)
        if cluster_filter is None or not cluster_filter.shows(event.target):
            return None
        return replace(event, says=cluster_filter.blank(event.says))

    def findings(self, findings: Iterable[Finding]) -> list[Finding]:
        """The findings that the caller may see, without what is hidden."""
        return [visible for finding in findings if (visible := self.finding(finding))]

    def finding(self, finding: Finding) -> Finding | None:
        """The finding without what is hidden; None if it is about something hidden."""
        seen = finding.seen_as
        if finding.cluster == HOMELAB:
            kind, _, name = seen.target.partition(" ")
            name = name.split(":")[0]
            visible = self._shows_datastore(name) if kind == "pbs" else name in self._hosts
            return self._blank_finding(self._without_hidden(finding), *self._clusters.values()) if visible else None
        if finding.cluster == SERVER:
            about = seen.evidence.get("cluster")
            if about in (None, HOMELAB):
                return self._blank_finding(finding, *self._clusters.values())
            cluster_filter = self._clusters.get(str(about))
            return None if cluster_filter is None else self._blank_finding(finding, cluster_filter)
        cluster_filter = self._clusters.get(finding.cluster)
        if cluster_filter is None or not cluster_filter.shows(seen.target):
            return None
        subjects = tuple(subject for subject in seen.subjects if cluster_filter.shows(subject))
        if seen.subjects and not subjects:
            return None
        return self._blank_finding(
            replace(finding, seen_as=msgspec.structs.replace(seen, subjects=subjects)), cluster_filter
        )

    def _without_hidden(self, finding: Finding) -> Finding:
        """A backup server's finding without the guests that some cluster hides."""
        seen = finding.seen_as
        hidden = [
            subject for subject in seen.subjects if not all(each.shows(subject) for each in self._clusters.values())
        ]
        if not hidden or self._hides is None:
            return finding
        subjects = tuple(subject for subject in seen.subjects if subject not in hidden)
        return replace(finding, seen_as=msgspec.structs.replace(seen, subjects=subjects))

    def _shows_datastore(self, name: str) -> bool:
        return self._hides is None or self._hides(Subject(DATASTORE, name)) is None

    def _blank_finding(self, finding: Finding, *filters: _Filter) -> Finding:
        """The finding with hidden names blanked, in the note of its acknowledgment, too."""
        for cluster_filter in filters if any(cluster_filter.view is not None for cluster_filter in filters) else ():
            seen, blank = finding.seen_as, cluster_filter.blank
            visible = msgspec.structs.replace(
                seen,
                what=blank(seen.what),
                evidence=_blank_value(seen.evidence, blank),
                next=msgspec.structs.replace(seen.next, arguments=_blank_value(seen.next.arguments, blank)),
            )
            finding = replace(finding, seen_as=visible, note=blank(finding.note))
        return finding


def _blank_value(value: Any, blank: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return blank(value)
    if type(value) is int:  # it may be a vmid
        return value if blank(text := f"guest {value}") == text else BLANK
    if isinstance(value, dict):
        return {blank(name): _blank_value(item, blank) for name, item in value.items()}
    return [_blank_value(item, blank) for item in value] if isinstance(value, list) else value


FindingId = Annotated[str, Meta(description="id from finding_list")]


@operation(
    toolset="watch",
    risk=Risk.READ,
    search_words=(
        "alerts problems wrong open issues monitoring watch attention down failing warnings critical what is broken "
        "now notified acknowledged silenced"
    ),
)
async def finding_list(
    homelab: Homelab,
    severity: Annotated[
        Literal["critical", "warning", "unchecked", "info"], Meta(description="This or worse")
    ] = "info",
    kind: Annotated[str, Meta(description="Such as node-down or backup-*")] | None = None,
    cluster: str | None = None,
    state: Literal["open", "acknowledged", "silenced", "all"] = "all",
    limit: Annotated[int, Meta(ge=1, le=200)] = 30,
    offset: Annotated[int, Meta(ge=0)] = 0,
) -> Table:
    """Open findings of the watch, worst first."""
    now = homelab.clock.time()
    visibility = await Visibility.of(homelab)
    visible = visibility.findings(await Findings(homelab.store).open())
    selected = [
        finding
        for finding in visible
        if SEVERITIES.index(finding.severity) <= SEVERITIES.index(severity)
        and (kind is None or fnmatchcase(finding.kind, kind))
        and (cluster is None or finding.cluster == cluster)
        and (state == "all" or _state(finding, now) == state)
    ]
    rows = [
        [
            finding.id, finding.severity, finding.cluster, finding.kind, finding.seen_as.what,
            duration(now - finding.opened), _state(finding, now), finding.seen_as.next.advice,
        ]
        for finding in selected
    ]  # fmt: skip
    table = page(COLUMNS, rows, limit=limit, offset=offset)
    count = Counter(finding.severity for finding in visible)
    table.facts = {"open": {word: count[word] for word in SEVERITIES if count[word]} or "none"}
    table.facts |= await Watchers(homelab.store).describe(now, [HOMELAB, *(pve.name for pve in homelab.clusters)])
    return table


@operation(
    toolset="watch",
    risk=Risk.READ,
    search_words="details evidence why what does the alert mean explain finding history",
)
async def finding_get(homelab: Homelab, finding: FindingId) -> dict[str, Any]:
    """One finding in full: what it means, evidence, history, and the call that shows or fixes it."""
    stored = await _visible(homelab, finding)
    seen, now = stored.seen_as, homelab.clock.time()
    facts: dict[str, Any] = {
        "id": stored.id,
        "severity": stored.severity,
        "cluster": stored.cluster,
        "kind": stored.kind,
        "finding": seen.what,
        "means": KINDS.get(stored.kind, ""),
        "state": _state(stored, now),
        "first_seen": moment(stored.opened),
        "last_seen": moment(stored.last_seen),
        "times_seen": stored.seen,
        "next": seen.next.advice,
    }
    facts |= {"evidence": seen.evidence} if seen.evidence else {}
    facts |= {"concerns": list(seen.subjects)} if seen.subjects else {}
    facts |= {"resolved": moment(stored.resolved)} if stored.resolved is not None else {}
    if stored.acknowledged_by:
        facts |= {"answered_by": stored.acknowledged_by, "answered_at": moment(stored.acknowledged_at or 0.0)}
    facts |= {"note": stored.note} if stored.note else {}
    if stored.is_silenced(now):
        facts["silenced_until"] = moment(stored.silenced_until or 0.0)
    return facts


@operation(
    toolset="watch",
    risk=Risk.CHANGE,
    shown_by=("finding_get", "finding"),
    search_words="mute silence snooze ack take care of alert stop notifications until accept ignore for now",
)
async def finding_acknowledge(
    homelab: Homelab,
    finding: FindingId,
    silence: Annotated[str, Meta(description="Only keep it quiet for this long: 30m, 8h, 7d")] | None = None,
    note: Annotated[str, Meta(description="Shown with the finding", max_length=500)] = "",
) -> Plan:
    """Acknowledge a finding: no more messages unless it gets worse. Accepts new settings and privileges as good."""
    stored = await _visible(homelab, finding)
    if stored.resolved is not None:
        raise Conflict(f"Finding {stored.id} is resolved", next_step=see("See what is open", tools.finding_list))
    if silence is None:
        until, summary = None, f"Acknowledge finding {stored.id}: {stored.seen_as.what}"
    else:
        until = homelab.clock.time() + parse_span(silence)
        summary = f"Silence finding {stored.id} until {moment(until)}: {stored.seen_as.what}"
    findings = Findings(homelab.store)

    async def perform(context: StepContext) -> ActionResult:
        if until is None:
            await findings.acknowledge(stored.id, context.by, note)
        else:
            await findings.silence(stored.id, until, context.by, note)
        return ActionResult(next_step=see("See its state", tools.finding_get(finding=stored.id)))

    line = f"acknowledge {stored.id}" if until is None else f"silence {stored.id} until {moment(until)}"
    return Plan(summary, (Action(summary, line, perform, Target("finding", stored.id, stored.kind)),))


async def _visible(homelab: Homelab, id: str) -> Finding:
    visible = (await Visibility.of(homelab)).finding(await Findings(homelab.store).get(id))
    if visible is None:
        raise NotFound(f"There is no finding {id!r}", next_step=see("See which exist", tools.finding_list))
    return visible


def _state(finding: Finding, now: float) -> str:
    return "silenced" if finding.is_silenced(now) and finding.resolved is None else finding.state
