"""The outermost check of every request: does it come by the right way, to us, from a page that may ask?

A web page can make a browser send requests to any address, also by a DNS name that it points at this machine; Host and
Origin tell. No proxy headers are believed but those of listed proxies.
"""

from __future__ import annotations

import ipaddress
import logging
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from quorate.config.http import HttpSettings
from quorate.surfaces.web.departure import Departure
from quorate.surfaces.web.health import HEALTH_PATHS
from quorate.surfaces.web.replies import refusal

log = logging.getLogger(__name__)

HEADER_BYTES = 32 * 1024
LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")
ANY_ADDRESS = ("0.0.0.0", "::")  # noqa: S104 (compared with, not bound)


class Guard:
    def __init__(self, app: ASGIApp, settings: HttpSettings, departure: Departure) -> None:
        self._app = app
        self._addressed: Any = _Addressed(app, settings)
        if settings.trusted_proxies:
            self._addressed = ProxyHeadersMiddleware(
                self._addressed,  # type: ignore[arg-type]  # uvicorn spells the same types differently
                list(settings.trusted_proxies),
            )
        self._proxies = [ipaddress.ip_network(text) for text in settings.trusted_proxies]
        self._only_proxies = bool(self._proxies) and not settings.tls
        self._departure = departure

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or (scope["type"] == "http" and scope["path"] in HEALTH_PATHS):
            await self._app(scope, receive, send)  # probes come by address, and there is nothing to protect
        elif self._departure.closing:
            await refusal(503, "shutting_down", "This server is shutting down", Retry_After="1", Connection="close")(
                scope, receive, send
            )
        elif self._only_proxies and not self._by_proxy(scope):
            await refusal(403, "not_by_proxy", "Without TLS this server is reached through its proxy only")(
                scope, receive, send
            )
        else:
            if scope["type"] == "http" and scope["method"] == "GET":
                receive = self._departure.hanging_up(receive)
            await self._addressed(scope, receive, send)

    def _by_proxy(self, scope: Scope) -> bool:
        try:
            peer = ipaddress.ip_address(scope["client"][0])
        except (TypeError, ValueError):
            return False
        return peer.is_loopback or any(peer in network for network in self._proxies)


class _Addressed:
    """Host and Origin, and headers of a sane size."""

    def __init__(self, app: ASGIApp, settings: HttpSettings) -> None:
        self._app = app
        own = [] if settings.host in ANY_ADDRESS else [bracketed(settings.host)]
        public = [settings.public_url.partition("://")[2]] if settings.public_url else []
        self._hosts = frozenset((*LOOPBACK_NAMES, *own, *public, *settings.allowed_hosts))
        self._origins = frozenset((*settings.allowed_origins, *([settings.public_url] if settings.public_url else [])))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = self._refused(scope)
        await (refused or self._app)(scope, receive, send)

    def _refused(self, scope: Scope) -> Response | None:
        if sum(len(name) + len(value) for name, value in scope["headers"]) > HEADER_BYTES:
            return refusal(431, "headers_too_large", f"The headers are larger than {HEADER_BYTES} bytes")
        headers = Headers(scope=scope)
        host = headers.get("host", "").lower()
        if host not in self._hosts and without_port(host) not in self._hosts:
            log.warning("refused a request for the host %r", host[:100])
            return refusal(421, "invalid_host", "This is not my name; the operator can add it to allowed_hosts")
        for origin in headers.getlist("origin"):
            if origin.lower() not in self._origins and origin.lower() != own_origin(scope):
                log.warning("refused a request of the web page %r", origin[:100])
                return refusal(403, "invalid_origin", "This web page may not ask; see allowed_origins")
        return None


def own_origin(scope: Scope) -> str:
    """What the Origin of our own pages is, by the Host that was asked for."""
    scheme = scope["scheme"].replace("ws", "http")  # a page that opens a web socket has the origin of a page
    return f"{scheme}://{Headers(scope=scope).get('host', '').lower()}"


def without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdecimal() else host


def bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
