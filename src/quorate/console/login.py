"""Logging in to the console, and who the person is."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import secrets
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit

import aiohttp
from mcp.server.transport_security import RequestBodyLimitMiddleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route, Router
from starlette.types import Receive, Scope, Send

from quorate.config import Access
from quorate.config.http import MCP_PATH, HttpSettings
from quorate.console.templates import HEADERS, PATH, render
from quorate.documents import ACCEPTED, read_body, read_json
from quorate.operations.registry import Table
from quorate.pipeline.caller import Caller, Exchange
from quorate.pipeline.pipeline import Pipeline, Result
from quorate.pipeline.sites import CLUSTER
from quorate.problems import Problem, Refused
from quorate.runs.store import RunStore
from quorate.state.approvals import Approvals
from quorate.state.browser_sessions import BrowserSession
from quorate.state.limits import Freeze
from quorate.state.store import StateUnavailable
from quorate.state.trail import AuditTrail
from quorate.surfaces import rendering
from quorate.surfaces.web.authentication import (
    ANSWER_SECONDS,
    LARGEST_ANSWER,
    UNANSWERED,
    IssuerUnreachable,
    read_metadata,
)
from quorate.surfaces.web.credentials import SCOPES, Credentials, InvalidCredentials
from quorate.surfaces.web.operator_api import BODY_LIMIT
from quorate.surfaces.web.requests import own_origin
from quorate.watch.finding_store import Findings

if TYPE_CHECKING:
    from quorate.console.console import Console

CLIENT = "console"
PATIENCE_SECONDS = 2.0
"""How long a page waits for something that may hang before it is shown without it."""


@dataclass(frozen=True, slots=True)
class Person:
    caller: Caller
    session: BrowserSession

    @property
    def is_operator(self) -> bool:
        """Whether approvals, the journal, the rules and the freeze are theirs to see."""
        return self.caller.scope.access.allows(Access.ADMIN)

    @property
    def clusters(self) -> frozenset[str] | None:
        return self.caller.scope.clusters

    def require_operator(self, what: str) -> None:
        if not self.is_operator:
            raise Refused(f"{what} for tokens with access admin", next_step="Log in with such a token")

    def reaches(self, cluster: str) -> bool:
        return self.clusters is None or cluster in self.clusters


@dataclass(frozen=True, slots=True)
class ConsoleServices:
    """What the pages read from: the same pipeline that serves the tools, and the store."""

    pipeline: Pipeline
    approvals: Approvals
    freeze: Freeze
    trail: AuditTrail
    runs: RunStore
    findings: Findings

    @property
    def now(self) -> float:
        return self.pipeline.clock.time()

    def offers(self, person: Person, *tools: str) -> bool:
        visible = {operation.name for operation in self.pipeline.visible(person.caller)}
        return visible.issuperset(tools)

    def where(self, arguments: Mapping[str, str]) -> dict[str, str]:
        """The argument that names the cluster, where there are several."""
        cluster = arguments.get(CLUSTER, "")
        return {CLUSTER: cluster} if cluster and self.pipeline.sites.several else {}

    async def run(self, person: Person, tool: str, **arguments: Any) -> Result:
        """Run a tool with the person's scope; rules, redaction and the journal apply."""
        specified = {name: value for name, value in arguments.items() if value is not None}
        return await self.pipeline.run(tool, specified, Exchange(person.caller, wait_seconds=0.0))

    async def data(self, person: Person, tool: str, **arguments: Any) -> dict[str, Any] | Table:
        answer = await self.run(person, tool, **arguments)
        return rendering.render_advice(answer.data, str)

    async def rows(self, person: Person, tool: str, **arguments: Any) -> list[dict[str, Any]]:
        return self.as_rows(await self.data(person, tool, **arguments))

    async def facts(self, person: Person, tool: str, **arguments: Any) -> Mapping[str, Any]:
        data = await self.data(person, tool, **arguments)
        return data.facts if isinstance(data, Table) else data

    def as_rows(self, data: dict[str, Any] | Table) -> list[dict[str, Any]]:
        return [dict(zip(data.columns, row, strict=True)) for row in data.rows] if isinstance(data, Table) else []

    async def rows_or_problem(self, person: Person, tool: str, **arguments: Any) -> tuple[list[dict[str, Any]], str]:
        """The rows for part of a page, or the reason why they cannot be read."""
        try:
            return await self.rows(person, tool, **arguments), ""
        except Problem as problem:
            return [], str(problem)

    async def rows_in_time(self, person: Person, tool: str, **arguments: Any) -> list[dict[str, Any]]:
        """The rows for this person; none if the tool is not offered, fails or does not answer in time."""
        if not self.offers(person, tool):
            return []
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                return await self.rows(person, tool, **arguments)
        except (Problem, TimeoutError):
            return []


class LoginPages:
    def __init__(self, console: Console, settings: HttpSettings, credentials: Credentials) -> None:
        self._console = console
        self._credentials = credentials
        self._issuer: IssuerLogin | None = None
        if settings.issuer and settings.client_id:
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


COOKIE = "quorate_login"
WHOLE_SECONDS = 600
"""For the person to log in there."""


class IssuerLogin:
    def __init__(self, settings: HttpSettings) -> None:
        assert settings.issuer is not None
        self._issuer = settings.issuer
        self._client_id = settings.client_id or ""
        self._public_url = settings.public_url

    async def leave(self, request: Request, where: str) -> Response:
        """To the issuer. What later proves that it is the same browser stays in a cookie."""
        state, verifier = secrets.token_urlsafe(24), secrets.token_urlsafe(48)
        challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).decode().rstrip("=")
        asked = {
            "response_type": "code",
            "client_id": self._client_id,
            "redirect_uri": self._callback(request),
            "scope": " ".join(("openid", *SCOPES)),
            "resource": f"{self._origin(request)}{MCP_PATH}",
            "state": state,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        endpoint = await self._endpoint("authorization_endpoint")
        joint = "&" if urlsplit(endpoint).query else "?"
        response = RedirectResponse(f"{endpoint}{joint}{urlencode(asked)}", status_code=303, headers=HEADERS)
        kept = base64.urlsafe_b64encode(json.dumps([state, verifier, where]).encode()).decode()
        response.set_cookie(
            COOKIE,
            kept,
            max_age=WHOLE_SECONDS,
            path=f"{PATH}/issuer",
            httponly=True,
            samesite="lax",
            secure=request.scope["scheme"] == "https",
        )
        return response

    async def come_back(self, request: Request) -> tuple[str, str]:
        """The access token, and the page to continue to."""
        try:
            state, verifier, where = json.loads(base64.urlsafe_b64decode(request.cookies.get(COOKIE, "")))
        except (ValueError, TypeError):
            raise Refused("This login was not started in this browser", next_step="Start it again") from None
        if not hmac.compare_digest(request.query_params.get("state", "").encode(), str(state).encode()):
            raise Refused("This login was not started in this browser", next_step="Start it again")
        if not (code := request.query_params.get("code")):
            raise Refused("The issuer did not log you in", next_step="Try again, or use a token")
        sent = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self._callback(request),
            "client_id": self._client_id,
            "code_verifier": str(verifier),
        }
        tokens = await self._ask("POST", await self._endpoint("token_endpoint"), sent)
        token = tokens.get("access_token") if isinstance(tokens, dict) else None
        if not isinstance(token, str):
            raise Refused("The issuer gave no access token", next_step="Try again, or use a token")
        return token, str(where)

    async def _endpoint(self, name: str) -> str:
        try:
            async with self._session() as session:
                address = (await read_metadata(session, self._issuer)).get(name)
        except UNANSWERED:
            raise IssuerUnreachable("The issuer cannot be reached") from None
        if not isinstance(address, str) or urlsplit(address).scheme != urlsplit(self._issuer).scheme:
            raise IssuerUnreachable(f"The issuer does not publish a usable {name}")
        return address

    async def _ask(self, method: str, url: str, form: dict[str, str]) -> Any:
        try:
            async with (
                self._session() as session,
                session.request(method, url, data=form, allow_redirects=False) as answer,
            ):
                return read_json(await read_body(answer, LARGEST_ANSWER))
        except UNANSWERED:
            raise IssuerUnreachable("The issuer cannot be reached") from None

    def _session(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(ANSWER_SECONDS),
            headers=ACCEPTED,
            auto_decompress=False,
            connector=aiohttp.TCPConnector(ssl=ssl.create_default_context()),
        )

    def _origin(self, request: Request) -> str:
        return self._public_url or own_origin(request.scope)

    def _callback(self, request: Request) -> str:
        return f"{self._origin(request)}{PATH}/issuer/callback"
