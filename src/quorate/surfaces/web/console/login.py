"""Logging in: with a token, at the issuer if there is one, or by the link that `quorate console` opens."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from mcp.server.transport_security import RequestBodyLimitMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, Router
from starlette.types import Receive, Scope, Send

from quorate.config.http import HttpSettings
from quorate.problems import Problem, Refused
from quorate.state.store import StateUnavailable
from quorate.surfaces.web.console.templates import PATH, render
from quorate.surfaces.web.credentials import Credentials, InvalidCredentials
from quorate.surfaces.web.issuer_keys import IssuerUnreachable
from quorate.surfaces.web.operator_api import BODY_LIMIT

if TYPE_CHECKING:
    from quorate.surfaces.web.console.console import Console
    from quorate.surfaces.web.console.issuer_login import IssuerLogin


class LoginPages:
    def __init__(self, console: Console, settings: HttpSettings, credentials: Credentials) -> None:
        self._console = console
        self._credentials = credentials
        self._issuer: IssuerLogin | None = None
        if settings.issuer and settings.client_id:
            from quorate.surfaces.web.console.issuer_login import IssuerLogin

            self._issuer = IssuerLogin(settings)

    def routes(self) -> list[BaseRoute]:
        forms = _Forms(
            self._console,
            Route(f"{PATH}/login", self._submit, methods=["POST"]),
            Route(f"{PATH}/logout", self._log_out, methods=["POST"]),
        )
        routes: list[BaseRoute] = [
            Route(f"{PATH}/login", self._show, methods=["GET"]),
            Route(f"{PATH}/login", forms, methods=["POST"]),
            Route(f"{PATH}/logout", forms, methods=["POST"]),
        ]
        if self._credentials.local is not None:
            routes.append(Route(f"{PATH}/enter/{{ticket}}", self._enter, methods=["GET"]))
        if self._issuer is not None:
            routes += [
                Route(f"{PATH}/issuer", self._to_issuer, methods=["GET"]),
                Route(f"{PATH}/issuer/callback", self._from_issuer, methods=["GET"]),
            ]
        return routes

    async def _show(self, request: Request) -> Response:
        where = own_path(request.query_params.get("next", ""))
        try:
            if not await self._credentials.needed():
                return self._console.log_in(await self._console.sessions.create(""), request.scope, where)
        except StateUnavailable as problem:
            return self._console.problem_page(problem, 503)
        return self._form(where)

    async def _submit(self, request: Request) -> Response:
        where = PATH
        try:
            self._console.require_own_origin(request)
            form = await self._console.form(request)
            where = own_path(form.get("next", ""))
            return await self.admit(request, form.get("token", "").strip(), where)
        except (Problem, IssuerUnreachable) as problem:
            return self._form(where, str(problem), 403)

    async def admit(self, request: Request, bearer: str, where: str) -> Response:
        """Start a session for this token, or say why not."""
        try:
            await self._credentials.verify(bearer)
        except InvalidCredentials as rejected:
            return self._fail(request, rejected.error, where, f"{rejected}.")
        return self._console.log_in(await self._console.sessions.create(bearer), request.scope, where)

    async def _log_out(self, request: Request) -> Response:
        try:
            self._console.require_own_origin(request)
            session = await self._console.session_of(request)
            form = await self._console.form(request)
            if session is not None and secrets.compare_digest(form.get("csrf", "").encode(), session.csrf.encode()):
                await self._console.sessions.end(session)
        except Problem as problem:
            return self._console.problem_page(problem, 400)
        return self._console.log_out()

    async def _enter(self, request: Request) -> Response:
        assert self._credentials.local is not None
        try:
            self._console.require_own_origin(request)
            bearer = self._credentials.local.take(request.path_params["ticket"])
            if bearer is None:
                used = "The link has already been used. Start `quorate console` again."
                return self._fail(request, "link", PATH, used)
            return self._console.log_in(await self._console.sessions.create(bearer), request.scope, PATH)
        except StateUnavailable as problem:
            return self._console.problem_page(problem, 503)
        except Refused as problem:
            return self._form(PATH, f"{problem} Open it from the terminal, or type its address.", 403)

    async def _to_issuer(self, request: Request) -> Response:
        assert self._issuer is not None
        try:
            self._console.require_own_origin(request)
            return await self._issuer.leave(request, own_path(request.query_params.get("next", "")))
        except Refused as problem:
            return self._form(PATH, str(problem), 403)
        except (Problem, IssuerUnreachable) as problem:
            return self._form(PATH, str(problem), 502)

    async def _from_issuer(self, request: Request) -> Response:
        assert self._issuer is not None
        try:
            bearer, where = await self._issuer.come_back(request)
            return await self.admit(request, bearer, own_path(where))
        except (Problem, IssuerUnreachable) as problem:
            return self._form(PATH, str(problem), 403)

    def _fail(self, request: Request, reason: str, where: str, problem: str) -> Response:
        if self._console.authenticator.count_failure(request.scope, reason):
            return self._form(where, "Too many failed attempts from this address. Wait a minute.", 429)
        return self._form(where, problem, 403)

    def _form(self, where: str, problem: str = "", status: int = 200) -> Response:
        return render("login.html", status, next=where, problem=problem, issuer=self._issuer is not None)


class _Forms:
    """Forms that anyone may send: read in time, small, and few at once from one address.

    A class, because Starlette takes a function for a request handler.
    """

    def __init__(self, console: Console, *routes: Route) -> None:
        self._console = console
        self._inner = RequestBodyLimitMiddleware(Router(routes), BODY_LIMIT)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._console.authenticator.admit(self._inner, scope, receive, send)


def own_path(text: str) -> str:
    """Only a page of the console: a link must not lead a person elsewhere after the login."""
    parts = urlsplit(text)
    own = text == PATH or text.startswith((f"{PATH}/", f"{PATH}?"))
    plain = not parts.scheme and not parts.netloc and "\\" not in text and text.isprintable()
    return text if own and plain else PATH
