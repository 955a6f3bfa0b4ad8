"""What waits for an operator: each request with what would be lost, and the form that answers it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from quorate.console.login import Person
from quorate.console.templates import HEADERS, PATH
from quorate.pipeline.redaction import clean
from quorate.problems import BadArgument, NotFound, Problem
from quorate.state.approvals import Approval, RemarkKind, State
from quorate.state.limits import LONGEST_REASON
from quorate.state.trail import Filters
from quorate.surfaces import rendering
from quorate.surfaces.web.operator_api import status_of

if TYPE_CHECKING:
    from quorate.console.console import Console

MOST_SIMILAR = 5
RECENT = 200
ANSWERED = 10


@dataclass(frozen=True, slots=True)
class Card:
    """One request, sorted for reading: what is lost comes first."""

    approval: Approval
    final: bool
    lost: list[str]
    targets: list[str]
    reach: list[str]
    reasons: list[str]
    warnings: list[str]
    other: list[str]
    similar: list[Approval]

    @property
    def open(self) -> bool:
        return self.approval.state is State.PENDING


def approval_routes(console: Console) -> list[tuple[Any, ...]]:
    services = console.services

    async def show(request: Request, person: Person) -> Response:
        person.require_operator("Approvals are")
        return await console.show(request, person, "part_waiting.html", **await waiting_cards(console, person))

    async def count(request: Request, person: Person) -> Response:
        person.require_operator("Approvals are")
        return await console.show(request, person, "part_count.html")

    async def show_one(request: Request, person: Person) -> Response:
        return await _show(request, person, await _find(request, person))

    async def _show(
        request: Request,
        person: Person,
        row: Approval,
        status: int = 200,
        problem: str = "",
        typed: Mapping[str, str] = MappingProxyType({}),
    ) -> Response:
        template = "part_approval.html" if "/part/" in request.url.path else "approval.html"
        return await console.show(
            request,
            person,
            template,
            status,
            card=_card(row, await _recent(console, person)),
            entry=await _entry(row),
            provable=await console.has_passphrase(),
            problem=problem,
            typed=typed,
        )

    async def answer(request: Request, person: Person) -> Response:
        row = await _find(request, person)
        form = await console.form(request)
        try:
            await _answer(request, row, form)
        except Problem as problem:  # the same card again, with what was typed but the passphrase
            typed = {name: form.get(name, "") for name in ("decision", "word", "reason")}
            row = await services.approvals.get(row.id) or row
            return await _show(request, person, row, status_of(problem), rendering.problem_text(problem), typed)
        return RedirectResponse(f"{PATH}/approvals/{row.id}", status_code=303, headers=HEADERS)

    async def _answer(request: Request, row: Approval, form: Mapping[str, str]) -> None:
        if form.get("decision") not in ("approve", "deny"):
            raise BadArgument("The answer must be approve or deny")
        approve = form["decision"] == "approve"
        if approve and form.get("word", "").strip() != row.word:
            raise BadArgument(
                f"{row.summary}: not approved, because something other than {row.word!r} was typed",
                next_step=f"Type exactly {row.word}",
            )
        await console.prove(request, form.get("passphrase", ""))
        reason = " ".join(form.get("reason", "").split())[:LONGEST_REASON] or None
        await services.approvals.answer(row.id, approve, console.who(), reason)

    async def _find(request: Request, person: Person) -> Approval:
        person.require_operator("Approvals are")
        row = await services.approvals.get(request.path_params["id"])
        if row is None or not person.reaches(row.cluster):
            raise NotFound("There is no such approval", next_step="It may have been deleted after 30 days")
        return row

    async def _entry(row: Approval) -> int | None:
        """The number of the journal entry that used it."""
        newest = await services.trail.entries(Filters(approval=row.id), 1) if row.outcome else []
        return newest[0].get("seq") if newest else None

    return [
        ("/part/waiting", show),
        ("/part/count", count),
        ("/approvals/{id}", show_one),
        ("/part/approvals/{id}", show_one),
        ("/approvals/{id}", answer, "POST"),
    ]


async def waiting_cards(console: Console, person: Person) -> dict[str, Any]:
    """What the part of a page with the pending requests needs."""
    recent = await _recent(console, person)
    pending = [row for row in await console.services.approvals.list() if person.reaches(row.cluster)]
    return {
        "cards": [_card(row, recent) for row in pending],
        "answered": [row for row in recent if row.state is not State.PENDING][:ANSWERED],
        "provable": await console.has_passphrase(),
    }


async def _recent(console: Console, person: Person) -> list[Approval]:
    rows = await console.services.approvals.list(tuple(State), RECENT)
    return [row for row in rows if person.reaches(row.cluster)]


def _card(row: Approval, recent: Iterable[Approval]) -> Card:
    remarks: dict[RemarkKind, list[str]] = {kind: [] for kind in RemarkKind}
    for remark in row.remarks:
        remarks[remark.kind].append(clean(remark.text))
    similar = [
        request
        for request in recent
        if request.id != row.id
        and request.tool == row.tool
        and (request.word == row.word or request.caller == row.caller)
    ]
    return Card(
        row,
        final=bool(remarks[RemarkKind.FINAL]),
        lost=remarks[RemarkKind.LOST],
        targets=remarks[RemarkKind.TARGET],
        reach=remarks[RemarkKind.REACH],
        reasons=remarks[RemarkKind.REASON],
        warnings=remarks[RemarkKind.WARNING],
        other=remarks[RemarkKind.OTHER],
        similar=similar[:MOST_SIMILAR],
    )


def freeze_routes(console: Console) -> list[tuple[Any, ...]]:
    services = console.services

    async def show(request: Request, person: Person) -> Response:
        return await console.show(request, person, "freeze.html")

    async def part(request: Request, person: Person) -> Response:
        return await console.show(request, person, "part_freeze.html")

    async def change(request: Request, person: Person) -> Response:
        person.require_operator("The freeze is")
        form = await console.form(request)
        if form.get("action") != "unfreeze":  # stopping is easy; only starting again needs proof
            await services.freeze.set(console.who(), form.get("reason", "")[:LONGEST_REASON], services.trail)
            return RedirectResponse(f"{PATH}/freeze", status_code=303, headers=HEADERS)
        try:
            await console.prove(request, form.get("passphrase", ""))
        except Problem as problem:
            return await console.show(
                request, person, "freeze.html", status_of(problem), problem=rendering.problem_text(problem)
            )
        await services.freeze.lift(console.who(), services.trail)
        return RedirectResponse(f"{PATH}/freeze", status_code=303, headers=HEADERS)

    return [("/freeze", show), ("/part/freeze", part), ("/freeze", change, "POST")]
