"""The operator's approvals over HTTP: list what is pending, and answer it with the passphrase.

A token alone answers nothing: a person types the passphrase for every answer, and it is never stored. Pending requests
are visible to tokens with access admin, such as one made with `quorate tokens create --approver`, which can do nothing
else. A browser is led to the page of the console.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any, Literal
from urllib.parse import quote

import msgspec
from mcp.server.transport_security import RequestBodyLimitMiddleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from quorate.config import Access
from quorate.config.http import HttpSettings
from quorate.console.templates import PATH as CONSOLE
from quorate.documents import Unreadable, read_json
from quorate.pipeline.approval import ApprovalPending
from quorate.pipeline.redaction import clean
from quorate.problems import BadArgument, Conflict, NotFound, Problem, Refused, Unreachable
from quorate.state.approvals import Approval, Approvals, State
from quorate.state.limits import LONGEST_REASON, Freeze, FreezeState
from quorate.state.passphrase import Passphrase, PassphraseLocked, PassphraseNotSet, PassphraseWrong
from quorate.state.store import StateUnavailable, Store
from quorate.state.trail import AuditTrail
from quorate.surfaces.web.authentication import Authenticator
from quorate.surfaces.web.credentials import Credentials
from quorate.surfaces.web.replies import NO_STORE, refusal, reply
from quorate.surfaces.web.requests import comes_from_elsewhere, own_origin
from quorate.units import moment

BODY_LIMIT = 16 * 1024
STATUS: tuple[tuple[type[Problem], int], ...] = (
    (NotFound, 404),
    (PassphraseWrong, 403),
    (PassphraseLocked, 429),
    (PassphraseNotSet, 409),
    (Conflict, 409),
    (ApprovalPending, 409),
    (Refused, 403),
    (BadArgument, 400),
    (Unreachable, 503),
    (StateUnavailable, 503),
)


def status_of(problem: Problem) -> int:
    return next((status for kind, status in STATUS if isinstance(problem, kind)), 500)


class OperatorApi:
    def __init__(
        self, settings: HttpSettings, store: Store, authenticator: Authenticator, credentials: Credentials
    ) -> None:
        self._public_url = settings.public_url
        self._passphrase = Passphrase(store)
        self._authenticator = authenticator
        self._credentials = credentials
        self._one_at_a_time = asyncio.Lock()  # checking a passphrase is slow and takes memory by design

    @property
    def authenticator(self) -> Authenticator:
        return self._authenticator

    def protect(self, *routes: Route) -> ASGIApp:
        """The routes behind authentication, for small requests only."""
        return self._authenticator.protect(RequestBodyLimitMiddleware(Router(list(routes)), BODY_LIMIT))

    def with_problems(self, handle: Any) -> Any:
        async def run(request: Request) -> Response:
            try:
                response: Response = await handle(request)
                return response
            except Problem as problem:
                return refusal(status_of(problem), problem.code, str(problem))

        return run

    def refuse_foreign(self, request: Request) -> Response | None:
        """Another site's page can make a browser send a form, but neither JSON nor our own Origin."""
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            return refusal(415, "unsupported_media_type", "Answers are sent as application/json")
        origins = {origin.lower() for origin in request.headers.getlist("origin")}
        if comes_from_elsewhere(request.headers) or origins - {own_origin(request.scope), self._public_url}:
            return refusal(
                403,
                "invalid_origin",
                "Answers are accepted from this server's own page or from programs, not from other pages",
            )
        return None

    async def prove(self, request: Request, passphrase: str) -> None:
        async with self._one_at_a_time:
            right = await self._passphrase.verify(passphrase)
        if not right:
            if self._authenticator.count_failure(request.scope, "passphrase"):
                raise PassphraseLocked(
                    "Too many failed attempts from this address", next_step="Nothing was changed. Wait a minute"
                )
            raise PassphraseWrong("That is not the operator's passphrase", next_step="Nothing was changed")

    def require_admin(self, what: str) -> frozenset[str] | None:
        """The clusters of this token, None for all. Raises Refused if it lacks access admin."""
        _, granted = self._credentials.identify()
        if not granted.access.allows(Access.ADMIN):
            raise Refused(f"{what} visible to tokens with access admin only")
        return granted.clusters

    def who(self) -> str:
        subject, _ = self._credentials.identify()
        return f"the operator over HTTP{f', {subject}' if subject else ''}"


PATH = "/approvals"


class ApprovalAnswer(msgspec.Struct, forbid_unknown_fields=True):
    decision: Literal["approve", "deny"]
    passphrase: str
    reason: str = ""


class ApprovalsApi(OperatorApi):
    def __init__(
        self, settings: HttpSettings, store: Store, authenticator: Authenticator, credentials: Credentials
    ) -> None:
        super().__init__(settings, store, authenticator, credentials)
        self._approvals = Approvals(store)
        self._api = self.protect(
            Route(PATH, self.with_problems(self._list), methods=["GET"]),
            Route(f"{PATH}/{{id}}", self.with_problems(self._show), methods=["GET"]),
            Route(f"{PATH}/{{id}}", self.with_problems(self._answer), methods=["POST"]),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        wants_page = scope["method"] == "GET" and "text/html" in Request(scope).headers.get("accept", "")
        await (_lead_to_console(scope) if wants_page else self._api)(scope, receive, send)

    async def _list(self, request: Request) -> Response:
        clusters = self.require_admin("Approvals are")
        states = tuple(State) if request.query_params.get("all") else (State.PENDING,)
        rows = await self._approvals.list(states)
        return reply(200, {"approvals": [_as_dict(row) for row in _visible(rows, clusters)]})

    async def _show(self, request: Request) -> Response:
        return reply(200, _as_dict(await self._find(request)))

    async def _answer(self, request: Request) -> Response:
        if refused := self.refuse_foreign(request):
            return refused
        try:
            answer: ApprovalAnswer = read_json(await request.body(), ApprovalAnswer)
        except Unreadable:
            raise BadArgument(
                "The body must be JSON with decision (approve or deny), passphrase and perhaps reason"
            ) from None
        row = await self._find(request)
        await self.prove(request, answer.passphrase)
        reason = answer.reason.strip()[:LONGEST_REASON] or None
        answered = await self._approvals.answer(row.id, answer.decision == "approve", self.who(), reason)
        return reply(200, _as_dict(answered))

    async def _find(self, request: Request) -> Approval:
        clusters = self.require_admin("Approvals are")
        row = await self._approvals.get(request.path_params["id"])
        if row is None or not list(_visible([row], clusters)):
            raise NotFound("There is no such approval")
        return row


def _visible(rows: Iterable[Approval], clusters: frozenset[str] | None) -> Iterable[Approval]:
    return (row for row in rows if clusters is None or row.cluster in clusters)


def _as_dict(row: Approval) -> dict[str, Any]:
    """An approval as JSON, without the digest, which means nothing to people."""
    facts = asdict(row) | {"standing": row.standing, "history": row.history, "reminder": row.reminder}
    del facts["digest"]
    facts["remarks"] = [str(remark) for remark in row.remarks]
    facts["target"] = facts.pop("identity")
    for name in ("created", "expires", "answered_at", "ended"):
        facts[name] = None if facts[name] is None else moment(facts[name])
    cleaned: dict[str, Any] = clean(facts, lines=None)  # what is approved is read to its end
    return cleaned


def _lead_to_console(scope: Scope) -> Response:
    page = CONSOLE if scope["path"] == PATH else CONSOLE + quote(scope["path"])
    return RedirectResponse(page, status_code=303, headers=NO_STORE)


FREEZE_PATH = "/freeze"


class FreezeRequest(msgspec.Struct, forbid_unknown_fields=True):
    action: Literal["freeze", "unfreeze"]
    passphrase: str = ""
    """Needed only to unfreeze: stopping is easy."""
    reason: str = ""


class FreezeApi(OperatorApi):
    def __init__(
        self,
        settings: HttpSettings,
        store: Store,
        trail: AuditTrail,
        authenticator: Authenticator,
        credentials: Credentials,
    ) -> None:
        super().__init__(settings, store, authenticator, credentials)
        self._freeze = Freeze(store)
        self._trail = trail
        self.serve = self.protect(
            Route(FREEZE_PATH, self.with_problems(self._show)),
            Route(FREEZE_PATH, self.with_problems(self._set), methods=["POST"]),
        )

    async def _show(self, request: Request) -> Response:
        del request
        self.require_admin("The freeze is")
        return reply(200, _freeze_as_dict(await self._freeze.state()))

    async def _set(self, request: Request) -> Response:
        if refused := self.refuse_foreign(request):
            return refused
        try:
            body: FreezeRequest = read_json(await request.body(), FreezeRequest)
        except Unreadable:
            raise BadArgument(
                "The body must be JSON with action (freeze or unfreeze), perhaps reason, and the passphrase to unfreeze"
            ) from None
        self.require_admin("The freeze is")
        if body.action == "freeze":
            await self._freeze.set(self.who(), body.reason[:LONGEST_REASON], self._trail)
        else:
            await self.prove(request, body.passphrase)
            await self._freeze.lift(self.who(), self._trail)
        return reply(200, _freeze_as_dict(await self._freeze.state()))


def _freeze_as_dict(frozen: FreezeState | None) -> dict[str, Any]:
    if frozen is None:
        return {"frozen": False}
    facts: dict[str, Any] = clean(
        {"frozen": True, "by": frozen.by, "since": moment(frozen.at), "reason": frozen.reason}
    )
    return facts
