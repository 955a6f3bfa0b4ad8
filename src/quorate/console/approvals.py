"""What waits for an operator: each request with what would be lost, and the form that answers it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from quorate.console.login import Person
from quorate.console.templates import HEADERS, PATH
from quorate.pipeline.redaction import clean
from quorate.problems import BadArgument, NotFound
from quorate.state.approvals import Approval, RemarkKind, State
from quorate.state.limits import LONGEST_REASON
from quorate.state.trail import Filters

if TYPE_CHECKING:
    from quorate.console.console import Console

MOST_SIMILAR = 5
RECENT = 200


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
        if not person.is_operator:
            return RedirectResponse(f"{PATH}/inventory", status_code=303, headers=HEADERS)
        pending = [approval for approval in await services.approvals.list() if person.reaches(approval.cluster)]
        recent = await _recent(person)
        cards = [_card(request, recent) for request in pending]
        answered = [request for request in recent if request.state is not State.PENDING][:10]
        template = "part_waiting.html" if request.url.path.endswith("/part/waiting") else "waiting.html"
        return await console.show(
            request, person, template, cards=cards, answered=answered, provable=await console.has_passphrase()
        )

    async def count(request: Request, person: Person) -> Response:
        person.require_operator("Approvals are")
        return await console.show(request, person, "part_count.html")

    async def show_one(request: Request, person: Person) -> Response:
        row = await _find(request, person)
        return await console.show(
            request,
            person,
            "approval.html",
            card=_card(row, await _recent(person)),
            entry=await _entry(row),
            provable=await console.has_passphrase(),
        )

    async def answer(request: Request, person: Person) -> Response:
        row = await _find(request, person)
        form = await console.form(request)
        if form.get("decision") not in ("approve", "deny"):
            raise BadArgument("The answer must be approve or deny")
        approve = form["decision"] == "approve"
        if approve and form.get("word", "").strip() != row.word:
            raise BadArgument(
                f"{row.summary}: not approved, because something other than {row.word!r} was typed",
                next_step=f"Go back and type exactly {row.word}",
            )
        await console.prove(request, form.get("passphrase", ""))
        reason = " ".join(form.get("reason", "").split())[:LONGEST_REASON] or None
        await services.approvals.answer(row.id, approve, console.who(), reason)
        return RedirectResponse(f"{PATH}/approvals/{row.id}", status_code=303, headers=HEADERS)

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

    async def _recent(person: Person) -> list[Approval]:
        rows = await services.approvals.list(tuple(State), RECENT)
        return [row for row in rows if person.reaches(row.cluster)]

    return [
        ("", show),
        ("/part/waiting", show),
        ("/part/count", count),
        ("/approvals/{id}", show_one),
        ("/approvals/{id}", answer, "POST"),
    ]


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
        await console.prove(request, form.get("passphrase", ""))
        if form.get("action") == "unfreeze":
            await services.freeze.lift(console.who(), services.trail)
        else:
            await services.freeze.set(console.who(), form.get("reason", "")[:LONGEST_REASON], services.trail)
        return RedirectResponse(f"{PATH}/freeze", status_code=303, headers=HEADERS)

    return [("/freeze", show), ("/part/freeze", part), ("/freeze", change, "POST")]
