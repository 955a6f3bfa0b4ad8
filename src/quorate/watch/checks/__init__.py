"""The checks, by topic: each a small function from one snapshot of facts to observations."""

from __future__ import annotations

from quorate.hints import ToolHint
from quorate.tools.health_findings import Finding, Severity
from quorate.watch.finding_store import NextCall, Observation


def observe(
    kind: str,
    target: str,
    severity: Severity,
    what: str,
    next_call: ToolHint,
    source: str,
    *,
    subjects: tuple[str, ...] = (),
    **evidence: object,
) -> Observation:
    """`source` names the facts that show it, `next_call` the tool that shows or fixes it."""
    return Observation(
        kind=kind,
        target=target,
        severity=severity,
        what=what,
        source=source,
        subjects=subjects,
        evidence={name: value for name, value in evidence.items() if value not in (None, "")},
        next=NextCall(next_call.tool, dict(next_call.arguments)),
    )


def to_observation(finding: Finding, source: str) -> Observation:
    """A finding of a report, as an observation of the watch."""
    return observe(
        finding.kind,
        finding.target,
        finding.severity,
        finding.what,
        finding.next_call,
        source,
        subjects=finding.subjects,
    )
