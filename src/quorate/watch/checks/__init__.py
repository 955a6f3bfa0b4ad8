"""The checks, by topic: each a small function from one snapshot of facts to observations."""

from __future__ import annotations

from quorate.operations.reports.findings import Finding
from quorate.state.findings import NextCall, Observation


def to_observation(finding: Finding, source: str, **evidence: object) -> Observation:
    """A finding of a report, as an observation of the watch."""
    call = finding.next_call
    return Observation(
        kind=finding.kind,
        target=finding.target,
        severity=finding.severity,
        what=finding.what,
        source=source,
        subjects=finding.subjects,
        evidence={name: value for name, value in evidence.items() if value not in (None, "")},
        next=NextCall(call.tool, dict(call.arguments)),
    )
