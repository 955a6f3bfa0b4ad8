"""The timeline: every attempted change from the journal, with the settings that it replaced and what was run."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from quorate.console.login import ConsoleServices, Person
from quorate.console.templates import PATH, query
from quorate.operations.undo import is_masked
from quorate.pipeline.redaction import clean
from quorate.problems import NotFound, Problem
from quorate.state.chain import Verification
from quorate.state.journal import Outcome
from quorate.state.trail import Filters
from quorate.units import parse_moment

if TYPE_CHECKING:
    from quorate.console.console import Console

PAGE = 50
LONGEST_NUMBER = 16
_APPROVAL = re.compile(r"\w{5}-\w{5}")
_TEXTS = ("tool", "outcome", "caller", "cluster", "target")


@dataclass(frozen=True, slots=True)
class Alteration:
    """One setting that a change replaced."""

    target: str
    """Of which object, if the change reached several."""
    setting: str
    before: str
    """Empty if it was not set."""
    after: str
    """Empty if it was removed."""


def alterations(entry: Mapping[str, Any]) -> list[Alteration]:
    """The settings that differ between what the journal recorded before a change and after it.

    Secrets are recorded as stars: one that was set is listed although both look the same.
    """
    targets = [str(step.get("target", "")) for step in _rows(entry, "wire")]
    return [
        Alteration(_target(targets, row.get("step")), name, _text(both[0]), _text(both[1]))
        for row in _rows(entry, "replaced")
        for name, both in row.get("values", {}).items()
        if both[0] != both[1] or is_masked(both[1])
    ]


def _rows(entry: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """A list of the entry; empty if it is missing, or was too large to be kept."""
    value = entry.get(name)
    return value if isinstance(value, list) else []


def _target(targets: list[str], step: object) -> str:
    several = len(set(targets)) > 1
    return targets[step - 1] if several and isinstance(step, int) and 0 < step <= len(targets) else ""


def _text(value: object) -> str:
    if value is None:
        return ""
    if is_masked(value):
        return "a secret"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class Step:
    """One request or command of a change, and how it ended."""

    line: str
    state: str
    task: str


def steps(entry: Mapping[str, Any]) -> list[Step]:
    """What was run; nothing was if a step has no state."""
    ended = {row.get("step"): row for row in _rows(entry, "steps")}
    rows = [(line, ended.get(number, {})) for number, line in enumerate(_rows(entry, "calls"), 1)]
    return [Step(str(line), str(row.get("state", "")), str(row.get("task", ""))) for line, row in rows]


def approval_of(entry: Mapping[str, Any]) -> str:
    """The id of the approval that it waited for or used; empty if none was."""
    return next((word for word in str(entry.get("approval", "")).split() if _APPROVAL.fullmatch(word)), "")


def summaries(entries: Iterable[Mapping[str, Any]]) -> list[Summary]:
    """The entries as rows of a list: what each changed, or else what it ran."""
    return [Summary(entry, alterations(entry), steps(entry)) for entry in entries]


@dataclass(frozen=True, slots=True)
class Summary:
    entry: Mapping[str, Any]
    alterations: list[Alteration]
    steps: list[Step]


def timeline_routes(console: Console) -> list[tuple[Any, ...]]:
    services = console.services

    async def show(request: Request, person: Person) -> Response:
        person.require_operator("The timeline is")
        fields = {name: request.query_params.get(name, "").strip() for name in (*_TEXTS, "since", "until", "before")}
        problem, entries = "", []
        try:
            filters = replace(_filters(fields, services.now), clusters=person.clusters)
            entries = await services.trail.entries(filters, PAGE + 1, before=_number(fields["before"]))
        except Problem as error:
            problem = str(error)
        more = len(entries) > PAGE
        shown = clean(entries[-PAGE:][::-1])
        older = query(f"{PATH}/timeline", fields, before=shown[-1].get("seq")) if more else ""
        return await console.show(
            request,
            person,
            "timeline.html",
            rows=summaries(shown),
            fields=fields,
            older=older,
            problem=problem,
            verification=await verify_trail(person) if request.query_params.get("verify") else None,
            outcomes=[outcome.value for outcome in Outcome],
        )

    async def show_entry(request: Request, person: Person) -> Response:
        person.require_operator("The timeline is")
        entry = clean(await _entry(services, request, person))
        return await console.show(
            request,
            person,
            "timeline_entry.html",
            entry=entry,
            alterations=alterations(entry),
            steps=steps(entry),
            approval=approval_of(entry),
        )

    async def verify(request: Request, person: Person) -> Response:
        person.require_operator("The timeline is")
        return await console.show(request, person, "part_verification.html", verification=await verify_trail(person))

    async def verify_trail(person: Person) -> Verification:
        verification = await services.trail.verify()
        if person.clusters is not None:  # these lines name what happens in all clusters
            verification = replace(verification, unfinished=(), remarks=())
        return verification

    return [("/timeline", show), ("/timeline/{seq}", show_entry), ("/part/verification", verify)]


async def _entry(services: ConsoleServices, request: Request, person: Person) -> dict[str, Any]:
    seq = _number(request.path_params["seq"])
    entry = await services.trail.entry(seq) if seq is not None else None
    if entry is None or not person.reaches(str(entry.get("cluster", ""))):
        raise NotFound("The trail has no such entry")
    return entry


def _filters(fields: dict[str, str], now: float) -> Filters:
    """Texts match anywhere unless they have a wildcard of their own."""
    filters: dict[str, Any] = {name: _pattern(fields[name]) for name in _TEXTS if fields[name]}
    filters |= {name: parse_moment(fields[name], now=now) for name in ("since", "until") if fields[name]}
    return Filters(**filters)


def _pattern(text: str) -> str:
    return text if any(wildcard in text for wildcard in "*?") else f"*{text}*"


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < LONGEST_NUMBER else None
