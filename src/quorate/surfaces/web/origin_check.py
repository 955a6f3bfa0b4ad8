"""The outermost check of every request: its proxy, its Host, its Origin and the site that made a browser send it.

A web page can make a browser send requests to any address, also through a DNS name that points at this machine; Host,
Origin and Sec-Fetch-Site reveal that. Proxy headers are trusted from listed proxies only.
"""

from __future__ import annotations

import ipaddress
import logging
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from quorate.certificates import names_of
from quorate.config.http import HttpSettings
from quorate.surfaces.web.graceful_shutdown import GracefulShutdown
from quorate.surfaces.web.health import HEALTH_PATHS
from quorate.surfaces.web.replies import refusal

log = logging.getLogger(__name__)

HEADER_BYTES = 32 * 1024
LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")
ANY_ADDRESS = ("0.0.0.0", "::")  # noqa: S104 (compared with, not bound)


class OriginCheck:
    def __init__(self, app: ASGIApp, settings: HttpSettings, shutdown: GracefulShutdown) -> None:
        self._app = app
        self._addressed: Any = _HostCheck(app, settings)
        if settings.trusted_proxies:
            self._addressed = ProxyHeadersMiddleware(
                self._addressed,  # type: ignore[arg-type]  # uvicorn spells the same types differently
                list(settings.trusted_proxies),
            )
        self._proxies = [ipaddress.ip_network(text) for text in settings.trusted_proxies]
        self._only_proxies = bool(self._proxies) and not settings.tls
        self._shutdown = shutdown

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or (scope["type"] == "http" and scope["path"] in HEALTH_PATHS):
            await self._app(scope, receive, send)  # probes use the address, and there is nothing to protect
        elif self._shutdown.closing:
            await refusal(503, "shutting_down", "This server is shutting down", Retry_After="1", Connection="close")(
                scope, receive, send
            )
        elif self._only_proxies and not self._by_proxy(scope):
            await refusal(403, "not_by_proxy", "Without TLS, this server accepts requests through its proxy only")(
                scope, receive, send
            )
        else:
            if scope["type"] == "http" and scope["method"] == "GET":
                receive = self._shutdown.until_closing(receive)
            await self._addressed(scope, receive, send)

    def _by_proxy(self, scope: Scope) -> bool:
        try:
            peer = ipaddress.ip_address(scope["client"][0])
        except (TypeError, ValueError):
            return False
        return peer.is_loopback or any(peer in network for network in self._proxies)


class _HostCheck:
    """Checks Host, Origin and the size of the headers."""

    def __init__(self, app: ASGIApp, settings: HttpSettings) -> None:
        self._app = app
        own = [] if settings.host in ANY_ADDRESS else [bracket_ipv6(settings.host)]
        public = [settings.public_url.partition("://")[2]] if settings.public_url else []
        self._hosts = frozenset((*LOOPBACK_NAMES, *own, *public, *settings.allowed_hosts, *certified_hosts(settings)))
        self._origins = frozenset((*settings.allowed_origins, *([settings.public_url] if settings.public_url else [])))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = self._refusal(scope)
        await (refused or self._app)(scope, receive, send)

    def _refusal(self, scope: Scope) -> Response | None:
        if sum(len(name) + len(value) for name, value in scope["headers"]) > HEADER_BYTES:
            return refusal(431, "headers_too_large", f"The headers are larger than {HEADER_BYTES} bytes")
        headers = Headers(scope=scope)
        host = headers.get("host", "").lower()
        if not self._is_ours(host):
            log.warning("refused a request for the host %r", host[:100])
            return refusal(
                421,
                "invalid_host",
                "This server does not have that name; the operator can add it to its certificate or to allowed_hosts",
            )
        origins = headers.getlist("origin")
        for origin in origins:
            if origin.lower() not in self._origins and origin.lower() != own_origin(scope):
                log.warning("refused a request from the web page %r", origin[:100])
                return refusal(
                    403, "invalid_origin", "Requests from this web page are not allowed; see allowed_origins"
                )
        if not origins and comes_from_elsewhere(headers) and not _follows_link(scope, headers):
            return refusal(403, "invalid_origin", "Requests from pages of other sites are not allowed")
        return None

    def _is_ours(self, host: str) -> bool:
        name = without_port(host)
        _, dot, domain = name.partition(".")
        return host in self._hosts or name in self._hosts or (bool(dot) and f"*.{domain}" in self._hosts)


def comes_from_elsewhere(headers: Headers) -> bool:
    """Whether a page of another origin made the browser send it. Programs and older browsers do not say."""
    return headers.get("sec-fetch-site", "none") not in ("none", "same-origin")


def _follows_link(scope: Scope, headers: Headers) -> bool:
    """Whether a person opens a page by a link, such as the one in a notification."""
    opens_page = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest", "document") == "document"
    return scope["type"] == "http" and scope["method"] in ("GET", "HEAD") and opens_page


def certified_hosts(settings: HttpSettings) -> tuple[str, ...]:
    """The names in the certificate, as a Host header has them: its issuer confirmed that they are this server's."""
    if settings.tls_cert is None:
        return ()
    try:
        return tuple(bracket_ipv6(name) for name in names_of(settings.tls_cert.read_bytes()))
    except (OSError, ValueError):  # reported when the certificate is loaded
        return ()


def own_origin(scope: Scope) -> str:
    """The Origin of our own pages, for the Host of this request."""
    scheme = scope["scheme"].replace("ws", "http")  # a page that opens a web socket has the origin of a page
    return f"{scheme}://{Headers(scope=scope).get('host', '').lower()}"


def without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdecimal() else host


def bracket_ipv6(host: str) -> str:
    return f"[{host}]" if ":" in host else host
