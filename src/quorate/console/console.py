"""The console as an application: who may see a page, what a form must prove, and where each page is.

A person logs in with a token; a cookie represents it from then on. The cookie is out of reach of scripts, is not sent
along by forms of other sites, and opens nothing without its session in the store. Every form also carries a secret of
the session, and an answer that matters takes the operator's passphrase.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

from mcp.server.auth.middleware.auth_context import AuthContextMiddleware
from mcp.server.transport_security import RequestBodyLimitMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route, Router
from starlette.types import Receive, Scope, Send

from quorate import __version__
from quorate.config.http import HttpSettings
from quorate.console.actions import action_routes
from quorate.console.activity import activity_routes
from quorate.console.approvals import approval_routes, freeze_routes
from quorate.console.clusters import ClusterReader
from quorate.console.findings import finding_routes
from quorate.console.hosts import host_routes
from quorate.console.inventory import chart_routes, inventory_routes
from quorate.console.login import CLIENT, ConsoleServices, LoginPages, Person
from quorate.console.overview import overview_routes
from quorate.console.policy import policy_routes
from quorate.console.search import search_routes
from quorate.console.templates import HEADERS, PATH, asset, render
from quorate.console.timeline import timeline_routes
from quorate.pipeline.caller import ALL_BY_DEFAULT, Caller
from quorate.pipeline.caller import Scope as GrantedScope
from quorate.pipeline.pipeline import Pipeline
from quorate.problems import BadArgument, NotFound, Problem, Refused
from quorate.runs.store import RunState, RunStore
from quorate.state.approvals import Approvals, State
from quorate.state.browser_sessions import BrowserSession, BrowserSessions
from quorate.state.limits import Freeze
from quorate.state.passphrase import SET_PASSPHRASE
from quorate.state.store import StateUnavailable, Store
from quorate.state.trail import AuditTrail
from quorate.surfaces import rendering
from quorate.surfaces.web.authentication import Authenticator, IssuerUnreachable
from quorate.surfaces.web.credentials import Credentials, InvalidCredentials
from quorate.surfaces.web.operator_api import BODY_LIMIT, OperatorApi, status_of
from quorate.surfaces.web.requests import comes_from_elsewhere, own_origin
from quorate.watch.finding_store import Findings

MOST_RUNS = 20
MOST_APPROVALS = 50
"""The newest, also answered ones: an open page shows how they end."""
INTERVAL = 1.0
"""Seconds between looks at the store, each of which is a few short queries."""
LONGEST = 15 * 60.0
"""How long a stream lasts. Then the browser reconnects, and its session is checked from the start."""
CHECK_EVERY = 5
"""Looks between two checks that the session still exists and its token is valid."""


class Events:
    def __init__(self, console: Console) -> None:
        self._console = console

    async def stream(self, request: Request) -> StreamingResponse:
        """Events for the parts of a page that changed since it was rendered, whose digests are in the address."""
        person = self._console.person(request)
        return StreamingResponse(self._lines(request, person), media_type="text/event-stream", headers=HEADERS)

    async def _lines(self, request: Request, person: Person) -> AsyncIterator[str]:
        known = dict(request.query_params)
        yield "retry: 3000\n\n"
        for turn in range(int(LONGEST / INTERVAL)):
            if turn % CHECK_EVERY == 0 and not await self._still_valid(request):
                yield "event: ended\ndata: log in again\n\n"
                return
            states = await self.states(person)
            for name, state in states.items():
                if known.get(name, state) != state:
                    yield f"event: {name}\ndata: changed\n\n"
            known |= states
            await asyncio.sleep(INTERVAL)

    async def _still_valid(self, request: Request) -> bool:
        try:
            session = await self._console.session_of(request)
            return session is not None and await self._console.is_valid(session)
        except StateUnavailable:
            return True  # then changes cannot be seen either; every part is checked when the page fetches it

    async def states(self, person: Person) -> dict[str, str]:
        """A digest of each part, which differs when the part does."""
        services = self._console.services
        states: dict[str, str] = {}
        with contextlib.suppress(Problem):
            runs = await services.runs.list(tuple(RunState), limit=MOST_RUNS)
            states["activity"] = _digest(f"{run.id}@{run.changed}" for run in runs if person.reaches(run.cluster))
            states["findings"] = _digest(
                f"{finding.id}@{finding.severity}@{finding.acknowledged_at}@{finding.silenced_until}"
                for finding in await services.findings.open()
            )
            states |= await self.states_on_every_page(person)
        return states

    async def states_on_every_page(self, person: Person) -> dict[str, str]:
        services = self._console.services
        states = {"freeze": _digest([str(await services.freeze.state())])}
        if person.is_operator:
            rows = await services.approvals.list(tuple(State), MOST_APPROVALS)
            states["approvals"] = _digest(
                f"{row.id}@{row.state}@{row.ended}" for row in rows if person.reaches(row.cluster)
            )
        return states


def _digest(texts: Iterable[str]) -> str:
    return hashlib.sha256(" ".join(texts).encode()).hexdigest()[:12]


log = logging.getLogger(__name__)

COOKIE = "quorate_console"
MOST_FIELDS = 50
PAGES = (
    ("", "Overview", False, ()),
    ("/activity", "Activity", False, ("task_list", "run_list")),
    ("/findings", "Findings", False, ("finding_list",)),
    ("/timeline", "Timeline", True, ()),
    ("/inventory", "Inventory", False, ("guest_list",)),
    ("/hosts", "Hosts", False, ("host_list",)),
    ("/map", "Map", False, ("network_map",)),
    ("/policy", "Policy", True, ()),
)
"""Address, title, whether it is for operators, and the tools of which it shows one: without any, it is not linked."""

Handler = Callable[[Request, Person], Awaitable[Response]]


class Console(OperatorApi):
    def __init__(
        self,
        settings: HttpSettings,
        store: Store,
        trail: AuditTrail,
        pipeline: Pipeline,
        authenticator: Authenticator,
        credentials: Credentials,
    ) -> None:
        super().__init__(settings, store, authenticator, credentials)
        self.services = ConsoleServices(
            pipeline, Approvals(store), Freeze(store), trail, RunStore(store), Findings(store)
        )
        self.clusters = ClusterReader(self.services)
        self.sessions = BrowserSessions(store)
        self.login = LoginPages(self, settings, credentials)
        self._settings = settings
        self._events = Events(self)
        table = [Route(PATH + path, handler, methods=methods) for path, handler, methods in self._table()]
        self._pages = AuthContextMiddleware(RequestBodyLimitMiddleware(Router(table), BODY_LIMIT))

    def routes(self) -> list[BaseRoute]:
        return [
            Route("/", Root()),
            Route(f"{PATH}/static/{{name}}", self._asset),
            *self.login.routes(),
            Route(PATH, self),
            Route(f"{PATH}/", RedirectResponse(PATH, status_code=308, headers=HEADERS)),
            Route(f"{PATH}/{{rest:path}}", self),
        ]

    def _table(self) -> list[tuple[str, Any, list[str]]]:
        """Address, handler and methods of every page."""
        parts = (
            overview_routes, approval_routes, activity_routes, finding_routes, timeline_routes, inventory_routes,
            policy_routes, freeze_routes, chart_routes, action_routes, host_routes, search_routes,
        )  # fmt: skip
        pages = [
            (path, self._page(handler), methods or ["GET"])
            for routes in parts
            for path, handler, *methods in routes(self)
        ]
        return [("/events", self._events.stream, ["GET"]), *pages, ("/{rest:path}", self._page(_no_page), ["GET"])]

    async def _asset(self, request: Request) -> Response:
        return asset(request.path_params["name"])

    # -- who it is -------------------------------------------------------------------------------------------------

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        try:
            session = await self.session_of(request)
            if session is None:
                await self._ask_to_log_in(request)(scope, receive, send)
                return
            if session.bearer and (refused := await self._authenticator.identify(scope, session.bearer)):
                await refused(scope, receive, send)
                return
        except InvalidCredentials:  # it was valid once, so this is not a guess
            await self._ask_to_log_in(request)(scope, receive, send)
            return
        except (StateUnavailable, IssuerUnreachable) as problem:  # nobody can say who it is: try again later
            await self.problem_page(problem, 503)(scope, receive, send)
            return
        scope["state"] = {**scope.get("state", {}), "session": session}
        await self._authenticator.admit(self._pages, scope, receive, send)

    async def session_of(self, request: Request) -> BrowserSession | None:
        by_person = not request.url.path.startswith((f"{PATH}/events", f"{PATH}/part/"))  # not by an open page itself
        cookie = request.cookies.get(COOKIE, "")
        session = await self.sessions.find(cookie, in_use=by_person)
        if session is not None and session.bearer:
            return session
        return None if await self._credentials.needed() else self.sessions.read_open(cookie)

    def person(self, request: Request) -> Person:
        subject, granted = self._credentials.identify()
        caller = Caller(CLIENT, "http", subject, granted if subject else GrantedScope(), ALL_BY_DEFAULT)
        return Person(caller, request.state.session)

    def log_in(self, session: BrowserSession, scope: Scope, where: str) -> Response:
        """Set the cookie, then continue to the page."""
        response = RedirectResponse(where, status_code=303, headers=HEADERS)
        response.set_cookie(
            COOKIE, session.cookie, path=PATH, httponly=True, samesite="lax", secure=scope["scheme"] == "https"
        )
        return response

    def log_out(self) -> Response:
        response = RedirectResponse(f"{PATH}/login", status_code=303, headers=HEADERS)
        response.delete_cookie(COOKIE, path=PATH, httponly=True, samesite="lax")
        return response

    def _ask_to_log_in(self, request: Request) -> Response:
        address = f"{PATH}/login?next={quote(_own_address(request))}"
        if request.headers.get("hx-request"):  # a part of a page: let the whole page go there
            return Response(status_code=401, headers=HEADERS | {"HX-Redirect": address})
        if request.headers.get("accept", "").startswith("text/event-stream"):
            return Response(status_code=401, headers=HEADERS)
        return RedirectResponse(address, status_code=303, headers=HEADERS)

    # -- pages -----------------------------------------------------------------------------------------------------

    def _page(self, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        async def show(request: Request) -> Response:
            person = self.person(request)
            try:
                if request.method == "POST":
                    await self._require_own_form(request, person)
                return await handler(request, person)
            except Problem as problem:
                text = rendering.problem_text(problem)
                return await self.show(request, person, "problem.html", status_of(problem), problem=text)
            except Exception as error:  # noqa: BLE001 (a defect: details go to the log, not to the page)
                log.error("%s failed: %s", request.url.path, self.services.pipeline.trace_of(error, {}))
                why = f"This page failed inside Quorate ({type(error).__name__}). The server's log has the details."
                return await self.show(request, person, "problem.html", 500, problem=why)

        return show

    async def show(
        self, request: Request, person: Person, template: str, status: int = 200, **context: Any
    ) -> Response:
        """A page with what is on every page: who it is, what waits, whether changes are frozen."""
        pending = await self.services.approvals.list() if person.is_operator else []
        return render(
            template,
            status,
            person=person,
            pages=self.pages_of(person),
            here=request.url.path.removeprefix(PATH),
            version=__version__,
            now=self.services.now,
            frozen=await self.services.freeze.state(),
            waiting_count=sum(person.reaches(request.cluster) for request in pending),
            csrf=person.session.csrf,
            seen=urlencode(await self._events.states_on_every_page(person)),
            set_passphrase=self.services.pipeline.approver.settings().command(SET_PASSPHRASE),
            several=self.clusters.names(person),
            silent=[] if "/part/" in request.url.path else await self.clusters.silent(person),
            **context,
        )

    def pages_of(self, person: Person) -> list[tuple[str, str]]:
        visible = {operation.name for operation in self.services.pipeline.visible(person.caller)}
        return [
            (path, title)
            for path, title, for_operators, tools in PAGES
            if (person.is_operator or not for_operators) and (not tools or visible.intersection(tools))
        ]

    async def is_valid(self, session: BrowserSession) -> bool:
        """Whether the session's token still opens this server."""
        if not session.bearer:
            return not await self._credentials.needed()
        try:
            await self._credentials.verify(session.bearer)
        except (InvalidCredentials, IssuerUnreachable):
            return False
        return True

    async def has_passphrase(self) -> bool:
        return await self._passphrase.is_set()

    def problem_page(self, problem: Problem | IssuerUnreachable, status: int) -> Response:
        return render("plain_problem.html", status, problem=str(problem))

    async def form(self, request: Request) -> dict[str, str]:
        try:
            return dict(parse_qsl((await request.body()).decode(), keep_blank_values=True, max_num_fields=MOST_FIELDS))
        except ValueError:
            raise BadArgument("The form cannot be read") from None

    async def _require_own_form(self, request: Request, person: Person) -> None:
        """A page of another site can neither read our secret nor claim our origin."""
        self.require_own_origin(request)
        token = (await self.form(request)).get("csrf", "") or request.headers.get("x-csrf", "")
        if not hmac.compare_digest(token.encode(), person.session.csrf.encode()):
            raise Refused("This form is not from this session", next_step="Reload the page and try again")

    def require_own_origin(self, request: Request) -> None:
        origins = {origin.lower() for origin in request.headers.getlist("origin")}
        if comes_from_elsewhere(request.headers) or origins - {own_origin(request.scope), self._settings.public_url}:
            raise Refused("Requests of other sites are not accepted here")


class Root:
    """Leads a browser to the console. For programs nothing is here: MCP has its own path."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        is_browser = request.method in ("GET", "HEAD") and "text/html" in request.headers.get("accept", "")
        response: Response = PlainTextResponse("Not Found", 404)
        if is_browser:
            response = RedirectResponse(PATH, status_code=303, headers=HEADERS)
        await response(scope, receive, send)


async def _no_page(_request: Request, _person: Person) -> Response:
    raise NotFound("The console has no such page")


def _own_address(request: Request) -> str:
    """Where to go after the login; a part of a page or a form has no address of its own."""
    path = request.url.path
    if request.method != "GET" or "/part/" in path:
        return PATH
    return f"{path}?{request.url.query}" if request.url.query else path
