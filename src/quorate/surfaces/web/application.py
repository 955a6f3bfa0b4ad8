"""The web application: its routes and the checks in front of each."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mcp.server.request_state import RequestStateSecurity
from mcp.server.streamable_http_manager import StreamableHTTPASGIApp
from mcp.server.transport_security import TransportSecuritySettings
from mcp.types import jsonrpc_message_adapter
from prometheus_client.metrics_core import Metric
from starlette.applications import Starlette
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from quorate.config.http import MCP_PATH, HttpSettings
from quorate.homelab.shells import Shells
from quorate.pipeline.pipeline import Pipeline
from quorate.pve.cluster import Cluster
from quorate.state.approvals import Approvals
from quorate.state.limits import Freeze
from quorate.state.store import StateUnavailable, Store, shared_key
from quorate.state.tokens import Tokens
from quorate.state.trail import AuditTrail
from quorate.surfaces.server import Server, read_malformed_answer
from quorate.surfaces.web.authentication import Authenticator, metadata_routes
from quorate.surfaces.web.credentials import Credentials, LocalLogin
from quorate.surfaces.web.health import (
    CONTENT_TYPE,
    CallMetrics,
    GracefulShutdown,
    Metrics,
    WatchMetrics,
    health_routes,
)
from quorate.surfaces.web.operator_api import FREEZE_PATH, ApprovalsApi, FreezeApi
from quorate.surfaces.web.operator_api import PATH as APPROVALS_PATH
from quorate.surfaces.web.replies import NO_STORE
from quorate.surfaces.web.requests import OriginCheck, replay_body

if TYPE_CHECKING:
    from quorate.surfaces.web.authentication import Issuer

MOST_SESSIONS = 2000
_MCP_HEADERS = (
    "authorization", "content-type", "last-event-id", "mcp-protocol-version", "mcp-session-id", "mcp-method", "mcp-name"
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Core:
    """What the application needs; `server` makes the MCP server with the given options."""

    settings: HttpSettings
    store: Store
    clusters: Sequence[Cluster]
    server: Callable[..., Server]
    audit: AuditTrail
    pipeline: Pipeline
    """For the console, which shows what tools would answer."""
    shells: Shells | None = None
    """Terminals for people, if the homelab has any to offer."""
    local_login: LocalLogin | None = None
    """If `quorate console` started it."""


async def build_application(core: Core, shutdown: GracefulShutdown) -> ASGIApp:
    settings, store = core.settings, core.store
    metrics = Metrics()
    credentials = Credentials(Tokens(store), _issuer(core), store.clock, core.local_login)
    authenticator = Authenticator(settings, credentials, metrics, store.clock)
    server = core.server(
        transport="http",
        identify=credentials.identify,
        request_state_security=RequestStateSecurity(keys=[await shared_key(store, "request state")]),
    )
    server.calls.observers.append(CallMetrics(metrics, server.knows))
    measures: ASGIApp = MetricsPage(metrics, core, credentials)
    approvals = ApprovalsApi(settings, store, authenticator, credentials)
    routes: list[BaseRoute] = [
        _mcp_route(server, settings, authenticator, sessions=_sessions(core)),
        Route(APPROVALS_PATH, approvals),
        Route(f"{APPROVALS_PATH}/{{id}}", approvals),
        Route("/metrics", measures if settings.open_metrics else authenticator.protect(measures)),
        Route(
            FREEZE_PATH,
            FreezeApi(settings, store, core.audit, authenticator, credentials).serve,
            methods=["GET", "POST"],
        ),
        *health_routes(store, shutdown),
        *metadata_routes(settings),
        *_shell_routes(core, authenticator),
        *_console_routes(core, authenticator, credentials),
    ]
    app: ASGIApp = Starlette(routes=routes, lifespan=lambda _: _running(server))
    if settings.allowed_origins:
        app = CORSMiddleware(
            app,
            allow_origins=settings.allowed_origins,
            allow_methods=("GET", "POST", "DELETE"),
            allow_headers=_MCP_HEADERS,
            expose_headers=("mcp-session-id", "www-authenticate", "retry-after"),
        )
    return OriginCheck(app, settings, shutdown)


def _mcp_route(server: Server, settings: HttpSettings, authenticator: Authenticator, *, sessions: bool) -> Route:
    server.streamable_http_app(
        stateless_http=not sessions,
        max_sessions=MOST_SESSIONS,
        max_request_body_size=settings.body_limit,
        # OriginCheck checks Host and Origin of every path.
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
    )
    app = _with_readable_answers(StreamableHTTPASGIApp(server.session_manager))
    # Without sessions, a GET has nothing to listen to and a DELETE no session to end.
    return Route(MCP_PATH, authenticator.protect(app), methods=None if sessions else ["POST"])


def _with_readable_answers(app: ASGIApp) -> ASGIApp:
    """Pass a malformed answer to a question on as one that is refused at once; the SDK would drop it."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "POST":
            body = (await receive()).get("body", b"")  # all of it: see Authenticator.admit
            receive = replay_body(body if b'"method"' in body else _with_readable_answer(body), receive)
        await app(scope, receive, send)

    return serve


def _with_readable_answer(body: bytes) -> bytes:
    try:
        jsonrpc_message_adapter.validate_json(body, by_name=False)
    except ValueError:
        answer = read_malformed_answer(body)
        return body if answer is None else answer.model_dump_json(by_alias=True).encode()
    return body


def _shell_routes(core: Core, authenticator: Authenticator) -> list[BaseRoute]:
    if core.shells is None:
        return []
    from quorate.surfaces.web.shell import ShellPages

    return ShellPages(core.shells, core.store, core.audit, authenticator, core.settings.public_url).routes()


def _console_routes(core: Core, authenticator: Authenticator, credentials: Credentials) -> list[BaseRoute]:
    from quorate.console.console import Console

    return Console(core.settings, core.store, core.audit, core.pipeline, authenticator, credentials).routes()


def _sessions(core: Core) -> bool:
    """Replicas do not share sessions, so by default they have none."""
    return core.settings.sessions if core.settings.sessions is not None else not core.store.shared


def _issuer(core: Core) -> Issuer | None:
    if core.settings.issuer is None:
        return None
    from quorate.surfaces.web.authentication import Issuer

    return Issuer(core.settings, core.store.clock)


@contextlib.asynccontextmanager
async def _running(server: Server) -> AsyncIterator[None]:
    async with server.session_manager.run():
        yield


class MetricsPage:
    """The metrics, for a token limited to some clusters without those of the others."""

    def __init__(self, metrics: Metrics, core: Core, credentials: Credentials) -> None:
        self._metrics = metrics
        self._core = core
        self._credentials = credentials
        self._approvals = Approvals(core.store)
        self._freeze = Freeze(core.store)
        self._watch = WatchMetrics(core.store)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        limit = None if self._core.settings.open_metrics else self._credentials.identify()[1].clusters
        asked = {
            cluster.name: cluster.client.asked
            for cluster in self._core.clusters
            if cluster.is_open and (limit is None or cluster.name in limit)
        }
        pending, frozen, watch = await self._stored_metrics(limit)
        text = self._metrics.text(pve=asked, pending=pending, frozen=frozen, watch=watch)
        await Response(text, headers=NO_STORE, media_type=CONTENT_TYPE)(scope, receive, send)

    async def _stored_metrics(self, clusters: frozenset[str] | None) -> tuple[int | None, bool | None, list[Metric]]:
        """How many approvals are pending, whether changes are frozen, and what the watch has found."""
        try:
            watch = await self._watch.collect(clusters)
            return await self._approvals.pending(clusters), await self._freeze.state() is not None, watch
        except StateUnavailable:
            return None, None, []
