"""All that is reachable, and what stands in front of each part."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mcp.server.request_state import RequestStateSecurity
from mcp.server.streamable_http_manager import StreamableHTTPASGIApp
from mcp.server.transport_security import TransportSecuritySettings
from starlette.applications import Starlette
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from quorate.config.http import MCP_PATH, HttpSettings
from quorate.homelab.shells import Shells
from quorate.pve.cluster import Cluster
from quorate.state.approvals import Approvals
from quorate.state.database import StateUnavailable
from quorate.state.keys import shared_key
from quorate.state.store import Store
from quorate.state.tokens import Tokens
from quorate.state.trail import AuditTrail
from quorate.surfaces.server import Server
from quorate.surfaces.web import metrics as prometheus
from quorate.surfaces.web.approvals import PATH as APPROVALS_PATH
from quorate.surfaces.web.approvals import ApprovalsApi
from quorate.surfaces.web.calls import CountedCalls
from quorate.surfaces.web.credentials import Credentials
from quorate.surfaces.web.departure import Departure
from quorate.surfaces.web.door import Door
from quorate.surfaces.web.guard import Guard
from quorate.surfaces.web.health import health_routes
from quorate.surfaces.web.metrics import Metrics
from quorate.surfaces.web.replies import NO_STORE
from quorate.surfaces.web.resource_metadata import metadata_routes

if TYPE_CHECKING:
    from quorate.surfaces.web.issuer import Issuer

MOST_SESSIONS = 2000
_MCP_HEADERS = (
    "authorization", "content-type", "last-event-id", "mcp-protocol-version", "mcp-session-id", "mcp-method", "mcp-name"
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Core:
    """What the web is built around; `server` makes the MCP server with the options given to it."""

    settings: HttpSettings
    store: Store
    clusters: Sequence[Cluster]
    server: Callable[..., Server]
    audit: AuditTrail
    shells: Shells | None = None
    """Terminals for people, if the homelab has any to offer."""


async def build_application(core: Core, departure: Departure) -> ASGIApp:
    settings, store = core.settings, core.store
    metrics = Metrics()
    credentials = Credentials(Tokens(store), _issuer(core), store.clock)
    door = Door(settings, credentials, metrics, store.clock)
    server = core.server(
        transport="http",
        identify=credentials.identify,
        request_state_security=RequestStateSecurity(keys=[await shared_key(store, "request state")]),
    )
    server.middleware.append(CountedCalls(metrics, store.clock, server.knows))
    measures: ASGIApp = MetricsPage(metrics, core)
    approvals = ApprovalsApi(settings, store, door, credentials)
    routes: list[BaseRoute] = [
        _mcp_route(server, settings, door, sessions=_sessions(core)),
        Route(APPROVALS_PATH, approvals),
        Route(f"{APPROVALS_PATH}/{{id}}", approvals),
        Route("/metrics", measures if settings.open_metrics else door.before(measures)),
        *health_routes(store, departure),
        *metadata_routes(settings),
        *_shell_routes(core, door),
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
    return Guard(app, settings, departure)


def _mcp_route(server: Server, settings: HttpSettings, door: Door, *, sessions: bool) -> Route:
    server.streamable_http_app(
        stateless_http=not sessions,
        max_sessions=MOST_SESSIONS,
        max_request_body_size=settings.body_limit,
        # Host and Origin are checked by the guard, for every path alike.
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
    )
    app = StreamableHTTPASGIApp(server.session_manager)
    # Without sessions there is nothing that a GET could listen to and no session that a DELETE could end.
    return Route(MCP_PATH, door.before(app), methods=None if sessions else ["POST"])


def _shell_routes(core: Core, door: Door) -> list[BaseRoute]:
    if core.shells is None:
        return []
    from quorate.surfaces.web.shell import ShellPages

    return ShellPages(core.shells, core.store, core.audit, door, core.settings.public_url).routes()


def _sessions(core: Core) -> bool:
    """Replicas do not know each other's sessions: without further words they have none."""
    return core.settings.sessions if core.settings.sessions is not None else not core.store.shared


def _issuer(core: Core) -> Issuer | None:
    if core.settings.issuer is None:
        return None
    from quorate.surfaces.web.issuer import Issuer

    return Issuer(core.settings, core.store.clock)


@contextlib.asynccontextmanager
async def _running(server: Server) -> AsyncIterator[None]:
    async with server.session_manager.run():
        yield


class MetricsPage:
    def __init__(self, metrics: Metrics, core: Core) -> None:
        self._metrics = metrics
        self._house = core
        self._approvals = Approvals(core.store)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = {cluster.name: cluster.client.asked for cluster in self._house.clusters if cluster.is_open}
        text = self._metrics.text(pve=asked, pending=await self._pending())
        await Response(text, headers=NO_STORE, media_type=prometheus.CONTENT_TYPE)(scope, receive, send)

    async def _pending(self) -> int | None:
        try:
            return await self._approvals.pending()
        except StateUnavailable:
            return None
