"""The operator's approvals over HTTP: see what waits, and answer it with the passphrase.

A token alone answers nothing: the passphrase is typed by a person for every answer, and nothing here remembers it.
What waits is shown to tokens with access admin, such as one made with `quorate tokens create --approver`, which can do
nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any, Literal

import msgspec
from mcp.server.transport_security import RequestBodyLimitMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import Receive, Scope, Send

from quorate.config import Access
from quorate.config.http import HttpSettings
from quorate.operations.units import moment
from quorate.pipeline.sanitise import clean
from quorate.pve.errors import BadArgument, Conflict, NotFound, Problem, Refused
from quorate.state.approvals import Approval, Approvals, State
from quorate.state.database import StateUnavailable
from quorate.state.passphrase import Passphrase, PassphraseLocked, PassphraseNotSet, PassphraseWrong
from quorate.state.store import Store
from quorate.surfaces.web.approvals_page import page
from quorate.surfaces.web.credentials import Credentials
from quorate.surfaces.web.door import Door
from quorate.surfaces.web.guard import own_origin
from quorate.surfaces.web.replies import refusal, reply

PATH = "/approvals"
BODY_LIMIT = 16 * 1024
LONGEST_REASON = 500
_STATUS: tuple[tuple[type[Problem], int], ...] = (
    (NotFound, 404),
    (PassphraseWrong, 403),
    (PassphraseLocked, 429),
    (PassphraseNotSet, 409),
    (Conflict, 409),
    (Refused, 403),
    (BadArgument, 400),
    (StateUnavailable, 503),
)


class Answer(msgspec.Struct, forbid_unknown_fields=True):
    decision: Literal["approve", "deny"]
    passphrase: str
    reason: str = ""


class ApprovalsApi:
    def __init__(self, settings: HttpSettings, store: Store, door: Door, credentials: Credentials) -> None:
        self._public_url = settings.public_url
        self._approvals = Approvals(store)
        self._passphrase = Passphrase(store)
        self._door = door
        self._credentials = credentials
        self._one_at_a_time = asyncio.Lock()  # checking a passphrase is made to be slow and to need memory
        self._api = door.before(
            RequestBodyLimitMiddleware(
                Router(
                    [
                        Route(PATH, self._told(self._list), methods=["GET"]),
                        Route(f"{PATH}/{{id}}", self._told(self._show), methods=["GET"]),
                        Route(f"{PATH}/{{id}}", self._told(self._answer), methods=["POST"]),
                    ]
                ),
                BODY_LIMIT,
            )
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        wants_page = scope["path"] == PATH and "text/html" in request.headers.get("accept", "")
        await (page() if wants_page and scope["method"] == "GET" else self._api)(scope, receive, send)

    async def _list(self, request: Request) -> Response:
        may_see = self._sight()
        states = tuple(State) if request.query_params.get("all") else (State.PENDING,)
        rows = await self._approvals.list(states)
        return reply(200, {"approvals": [_shown(row) for row in _visible(rows, may_see)]})

    async def _show(self, request: Request) -> Response:
        return reply(200, _shown(await self._wanted(request)))

    async def _answer(self, request: Request) -> Response:
        if foreign := _foreign(request, self._public_url):
            return foreign
        if blocked := self._door.blocked(request.scope):
            return blocked
        try:
            answer = msgspec.json.decode(await request.body(), type=Answer)
        except msgspec.MsgspecError:
            raise BadArgument(
                "The body must be JSON with decision (approve or deny), passphrase and perhaps reason"
            ) from None
        row = await self._wanted(request)
        await self._prove(request, answer.passphrase)
        subject, _ = self._credentials.identify()
        by = f"the operator over HTTP{f', {subject}' if subject else ''}"
        reason = answer.reason.strip()[:LONGEST_REASON] or None
        return reply(200, _shown(await self._approvals.answer(row.id, answer.decision == "approve", by, reason)))

    async def _wanted(self, request: Request) -> Approval:
        may_see = self._sight()
        row = await self._approvals.get(request.path_params["id"])
        if row is None or not list(_visible([row], may_see)):
            raise NotFound("There is no such approval")
        return row

    async def _prove(self, request: Request, passphrase: str) -> None:
        async with self._one_at_a_time:
            right = await self._passphrase.verify(passphrase)
        if not right:
            self._door.failed(request.scope, "passphrase")
            raise PassphraseWrong("That is not the operator's passphrase", next_step="Nothing was answered")

    def _sight(self) -> frozenset[str] | None:
        """The clusters whose approvals this caller may see; None is all."""
        _, granted = self._credentials.identify()
        if not granted.access.allows(Access.ADMIN):
            raise Refused("Approvals are shown to tokens with access admin only")
        return granted.clusters

    def _told(self, handle: Any) -> Any:
        async def run(request: Request) -> Response:
            try:
                response: Response = await handle(request)
                return response
            except Problem as problem:
                status = next((status for kind, status in _STATUS if isinstance(problem, kind)), 500)
                return refusal(status, problem.kind, str(problem))

        return run


def _foreign(request: Request, public_url: str | None) -> Response | None:
    """A page of another site can make a browser send a form, but neither JSON nor our own Origin."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        return refusal(415, "unsupported_media_type", "Answers are sent as application/json")
    origins = {origin.lower() for origin in request.headers.getlist("origin")}
    other_site = request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin")
    if other_site or origins - {own_origin(request.scope), public_url}:
        return refusal(403, "invalid_origin", "Answers come from this server's own page or from no page at all")
    return None


def _visible(rows: Iterable[Approval], clusters: frozenset[str] | None) -> Iterable[Approval]:
    return (row for row in rows if clusters is None or row.cluster in clusters)


def _shown(row: Approval) -> dict[str, Any]:
    """Without the digest, which says nothing to people; times as everywhere else."""
    facts = asdict(row) | {"standing": row.standing}
    del facts["digest"]
    facts["target"] = facts.pop("identity")
    for name in ("created", "expires", "answered_at"):
        facts[name] = None if facts[name] is None else moment(facts[name])
    shown: dict[str, Any] = clean(facts)
    return shown
