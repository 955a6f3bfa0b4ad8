"""Shared by the operator's HTTP APIs: who may see them, and the passphrase that a person types for every answer."""

from __future__ import annotations

import asyncio
from typing import Any

from mcp.server.transport_security import RequestBodyLimitMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp

from quorate.config import Access
from quorate.config.http import HttpSettings
from quorate.problems import BadArgument, Conflict, NotFound, Problem, Refused
from quorate.state.passphrase import Passphrase, PassphraseLocked, PassphraseNotSet, PassphraseWrong
from quorate.state.store import StateUnavailable, Store
from quorate.surfaces.web.auth import Authenticator
from quorate.surfaces.web.credentials import Credentials
from quorate.surfaces.web.origin_check import comes_from_elsewhere, own_origin
from quorate.surfaces.web.replies import refusal

BODY_LIMIT = 16 * 1024
STATUS: tuple[tuple[type[Problem], int], ...] = (
    (NotFound, 404),
    (PassphraseWrong, 403),
    (PassphraseLocked, 429),
    (PassphraseNotSet, 409),
    (Conflict, 409),
    (Refused, 403),
    (BadArgument, 400),
    (StateUnavailable, 503),
)


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
                status = next((status for kind, status in STATUS if isinstance(problem, kind)), 500)
                return refusal(status, problem.code, str(problem))

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
