"""The timeline: every attempted change, filtered, and each entry with its calls, tasks and approval."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from quorate.operations.units import parse_moment
from quorate.pipeline.sanitization import clean
from quorate.problems import NotFound, Problem
from quorate.state.chain import Verification
from quorate.state.outcomes import Outcome
from quorate.state.trail import Filters
from quorate.surfaces.web.console.person import ConsoleServices, Person
from quorate.surfaces.web.console.templates import PATH, query

if TYPE_CHECKING:
    from quorate.surfaces.web.console.console import Console

PAGE = 50
LONGEST_NUMBER = 16
_TEXTS = ("tool", "outcome", "caller", "cluster", "target")


def timeline_routes(console: Console) -> list[tuple[Any, ...]]:
    services = console.services

    async def show(request: Request, person: Person) -> Response:
        person.require_operator("The timeline is")
        given = {name: request.query_params.get(name, "").strip() for name in (*_TEXTS, "since", "until", "before")}
        problem, entries = "", []
        try:
            filters = replace(_filters(given, services.now), clusters=person.clusters)
            entries = await services.trail.entries(filters, PAGE + 1, before=_number(given["before"]))
        except Problem as found:
            problem = str(found)
        more = len(entries) > PAGE
        shown = clean(entries[-PAGE:][::-1])
        older = query(f"{PATH}/timeline", given, before=shown[-1].get("seq")) if more else ""
        return await console.show(
            request,
            person,
            "timeline.html",
            entries=shown,
            given=given,
            older=older,
            problem=problem,
            verification=await verify_trail(person) if request.query_params.get("verify") else None,
            outcomes=[one.value for one in Outcome],
        )

    async def show_entry(request: Request, person: Person) -> Response:
        person.require_operator("The timeline is")
        return await console.show(
            request, person, "timeline_entry.html", entry=clean(await _entry(services, request, person))
        )

    async def verify(request: Request, person: Person) -> Response:
        person.require_operator("The timeline is")
        return await console.show(request, person, "part_verification.html", verification=await verify_trail(person))

    async def verify_trail(person: Person) -> Verification:
        found = await services.trail.verify()
        if person.clusters is not None:  # these lines name what happens in all clusters
            found = replace(found, unfinished=(), remarks=())
        return found

    return [("/timeline", show), ("/timeline/{seq}", show_entry), ("/part/verification", verify)]


async def _entry(services: ConsoleServices, request: Request, person: Person) -> dict[str, Any]:
    seq = _number(request.path_params["seq"])
    found = await services.trail.entry(seq) if seq is not None else None
    if found is None or not person.reaches(str(found.get("cluster", ""))):
        raise NotFound("The trail has no such entry")
    return found


def _filters(given: dict[str, str], now: float) -> Filters:
    """Texts match anywhere unless they have a wildcard of their own."""
    wanted: dict[str, Any] = {name: _pattern(given[name]) for name in _TEXTS if given[name]}
    wanted |= {name: parse_moment(given[name], now=now) for name in ("since", "until") if given[name]}
    return Filters(**wanted)


def _pattern(text: str) -> str:
    return text if any(one in text for one in "*?") else f"*{text}*"


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < LONGEST_NUMBER else None
