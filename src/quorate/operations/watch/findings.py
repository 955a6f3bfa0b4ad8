"""The findings of the watch: list, show, acknowledge, silence."""

from __future__ import annotations

from collections import Counter
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal

from msgspec import Meta

from quorate.config.settings import HOMELAB
from quorate.hints import FINDING_GET, FINDING_LIST, see
from quorate.homelab.homelab import Homelab
from quorate.operations.plan import Action, ActionResult, Plan, StepContext, Target
from quorate.operations.registry import Risk, Table, operation, page
from quorate.operations.reports.kinds import KINDS
from quorate.operations.units import duration, moment, parse_span
from quorate.operations.watch.visibility import Visibility
from quorate.problems import Conflict, NotFound
from quorate.state.findings import SEVERITIES, Finding, Findings
from quorate.state.watchers import Watchers

COLUMNS = ("id", "severity", "cluster", "kind", "finding", "open_for", "state", "next")
FindingId = Annotated[str, Meta(description="id from finding_list")]


@operation(
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
    sees = await Visibility.of(homelab)
    visible = [found for one in await Findings(homelab.store).open() if (found := sees.finding(one))]
    wanted = [
        one
        for one in visible
        if SEVERITIES.index(one.severity) <= SEVERITIES.index(severity)
        and (kind is None or fnmatchcase(one.kind, kind))
        and (cluster is None or one.cluster == cluster)
        and (state == "all" or _state(one, now) == state)
    ]
    rows = [
        [
            one.id, one.severity, one.cluster, one.kind, one.seen_as.what, duration(now - one.opened),
            _state(one, now), one.seen_as.next.advice,
        ]
        for one in wanted
    ]  # fmt: skip
    table = page(COLUMNS, rows, limit=limit, offset=offset)
    count = Counter(one.severity for one in visible)
    table.facts = {"open": {word: count[word] for word in SEVERITIES if count[word]} or "none"}
    table.facts |= await Watchers(homelab.store).describe(now, [HOMELAB, *(pve.name for pve in homelab.clusters)])
    return table


@operation(risk=Risk.READ, search_words="details evidence why what does the alert mean explain finding history")
async def finding_get(homelab: Homelab, finding: FindingId) -> dict[str, Any]:
    """One finding in full: what it means, evidence, history, and the call that shows or fixes it."""
    found = await _visible(homelab, finding)
    seen, now = found.seen_as, homelab.clock.time()
    facts: dict[str, Any] = {
        "id": found.id,
        "severity": found.severity,
        "cluster": found.cluster,
        "kind": found.kind,
        "finding": seen.what,
        "means": KINDS.get(found.kind, ""),
        "state": _state(found, now),
        "first_seen": moment(found.opened),
        "last_seen": moment(found.last_seen),
        "times_seen": found.seen,
        "next": seen.next.advice,
    }
    facts |= {"evidence": seen.evidence} if seen.evidence else {}
    facts |= {"concerns": list(seen.subjects)} if seen.subjects else {}
    facts |= {"resolved": moment(found.resolved)} if found.resolved is not None else {}
    if found.acknowledged_by:
        facts |= {"answered_by": found.acknowledged_by, "answered_at": moment(found.acknowledged_at or 0.0)}
    facts |= {"note": found.note} if found.note else {}
    if found.is_silenced(now):
        facts["silenced_until"] = moment(found.silenced_until or 0.0)
    return facts


@operation(
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
    found = await _visible(homelab, finding)
    if found.resolved is not None:
        raise Conflict(f"Finding {found.id} is resolved", next_step=see("See what is open", FINDING_LIST))
    if silence is None:
        until, summary = None, f"Acknowledge finding {found.id}: {found.seen_as.what}"
    else:
        until = homelab.clock.time() + parse_span(silence)
        summary = f"Silence finding {found.id} until {moment(until)}: {found.seen_as.what}"
    findings = Findings(homelab.store)

    async def perform(context: StepContext) -> ActionResult:
        if until is None:
            await findings.acknowledge(found.id, context.by, note)
        else:
            await findings.silence(found.id, until, context.by, note)
        return ActionResult(next_step=see("See its state", FINDING_GET(finding=found.id)))

    line = f"acknowledge {found.id}" if until is None else f"silence {found.id} until {moment(until)}"
    return Plan(summary, (Action(summary, line, perform, Target("finding", found.id, found.kind)),))


async def _visible(homelab: Homelab, id: str) -> Finding:
    found = (await Visibility.of(homelab)).finding(await Findings(homelab.store).get(id))
    if found is None:
        raise NotFound(f"There is no finding {id!r}", next_step=see("See which exist", FINDING_LIST))
    return found


def _state(finding: Finding, now: float) -> str:
    return "silenced" if finding.is_silenced(now) and finding.resolved is None else finding.state
