"""What a request must be before anything reads it: bounded, unambiguous, from an allowed origin, not too often."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import math
from collections import Counter, OrderedDict
from typing import Any

import h11
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from quorate.certificates import names_of
from quorate.config.http import HttpSettings
from quorate.pve.connection import Clock
from quorate.surfaces.web.health import HEALTH_PATHS, GracefulShutdown
from quorate.surfaces.web.replies import refusal


class ClientDisconnected(Exception):
    """The caller disconnected before the end of the request."""


async def read_request_body(scope: Scope, receive: Receive, most: int, seconds: float) -> Receive | Response:
    """A `receive` that replays the body, or the response that refuses the request."""
    headers = Headers(scope=scope)
    if (packed := headers.get("content-encoding", "identity").strip().lower()) != "identity":
        return _refusal(415, "unsupported_encoding", f"The body must be plain, not {packed[:40]!r}")
    if (length := headers.get("content-length", "")).isdecimal() and int(length[:20]) > most:
        return _too_large(most)
    body = bytearray()
    try:
        async with asyncio.timeout(seconds):
            more = True
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnected
                body += message.get("body", b"")
                more = message.get("more_body", False)
                if len(body) > most:
                    return _too_large(most)
    except TimeoutError:
        return _refusal(408, "request_timeout", f"The body did not arrive within {seconds:g} seconds")
    return replay_body(bytes(body), receive)


def replay_body(body: bytes, receive: Receive) -> Receive:
    """A `receive` that delivers this body first."""
    delivered = False

    async def next_message() -> Message:
        nonlocal delivered
        if delivered:
            return await receive()
        delivered = True
        return {"type": "http.request", "body": body, "more_body": False}

    return next_message


def _too_large(most: int) -> Response:
    return _refusal(413, "body_too_large", f"The body is larger than {most} bytes")


def _refusal(status: int, error: str, description: str) -> Response:
    """The rest of the body is not awaited."""
    return refusal(status, error, description, Connection="close")


VERSIONS = (b"1.0", b"1.1")
_LENGTH, _ENCODING, _UPGRADE = b"content-length", b"transfer-encoding", b"upgrade"


class AmbiguousRequest(h11.RemoteProtocolError):
    """Where the request ends is not clear. The caller sees the text."""


class StrictConnection(h11.Connection):
    objection = ""
    """Why the last request was refused, if it was ambiguous."""

    def next_event(self) -> Any:
        """As h11 does. Raises RemoteProtocolError for a request whose end is ambiguous."""
        try:
            return self._next_event()
        except AmbiguousRequest as problem:
            self.objection = str(problem)
            raise

    def _next_event(self) -> Any:
        if self.their_state is not h11.IDLE:
            return super().next_event()
        received, _ = self.trailing_data
        event = super().next_event()
        if not isinstance(event, h11.Request):
            return event
        rest, _ = self.trailing_data
        _refuse_unclear_lines(received[: len(received) - len(rest)])
        _refuse_unclear_length(event)
        if _changes_protocol(event) and rest:  # a client waits for the response before it sends anything else
            raise AmbiguousRequest("Data was sent before the protocol changed.")
        return _as_last(event) if _is_chunked(event) else event


def _refuse_unclear_lines(head: bytes) -> None:
    """Each line ends with CR LF, no header continues on the next line, and the length is stated once, in digits."""
    request_line, *lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    if any(b"\n" in line or b"\r" in line for line in (request_line, *lines)):
        raise AmbiguousRequest("A line of the request does not end with CR LF.")
    if any(line[:1] in (b" ", b"\t") for line in lines):
        raise AmbiguousRequest("A header continues on the next line.")
    headers = [line.partition(b":") for line in lines]
    lengths = [value.strip(b" \t") for name, _, value in headers if name.lower() == _LENGTH]
    if len(lengths) > 1 or not all(length.isdigit() for length in lengths):
        raise AmbiguousRequest("The length of the request is ambiguous.")


def _refuse_unclear_length(request: h11.Request) -> None:
    headers = dict(request.headers)
    if request.http_version not in VERSIONS:
        raise AmbiguousRequest("This version of HTTP is not supported.")
    if _ENCODING in headers and _LENGTH in headers:
        raise AmbiguousRequest("The request has both Content-Length and Transfer-Encoding.")
    if _ENCODING in headers and request.http_version == b"1.0":
        raise AmbiguousRequest("HTTP/1.0 has no Transfer-Encoding.")
    if _changes_protocol(request) and (_ENCODING in headers or headers.get(_LENGTH, b"0").strip(b"0")):
        raise AmbiguousRequest("A request that changes the protocol has no body.")


def _changes_protocol(request: h11.Request) -> bool:
    return any(name == _UPGRADE for name, _ in request.headers)


def _is_chunked(request: h11.Request) -> bool:
    return any(name == _ENCODING for name, _ in request.headers)


def _as_last(request: h11.Request) -> h11.Request:
    """The same request as the last one of its connection.

    Trailers and extensions of chunks have many spellings. Nothing is read after them, so none of them matters.
    """
    headers = [(name, value) for name, value in request.headers if name != b"connection"]
    return h11.Request(
        method=request.method,
        target=request.target,
        headers=[*headers, (b"connection", b"close")],
        http_version=request.http_version,
    )


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


MOST_KEYS = 10_000


class RateLimit:
    """A token bucket per key that holds a minute's worth and refills evenly. 0 per minute means unlimited."""

    def __init__(self, per_minute: int, clock: Clock) -> None:
        self._most = float(per_minute)
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, key: str) -> int:
        """Take one: 0 if there was one, else the seconds until there will be."""
        wait = self.wait(key)
        if not wait and self._most:
            self._buckets[key] = (self._level(key) - 1, self._clock.monotonic())
            self._buckets.move_to_end(key)
            if len(self._buckets) > MOST_KEYS:
                self._buckets.popitem(last=False)
        return wait

    def wait(self, key: str) -> int:
        """Seconds until one can be taken."""
        if not self._most:
            return 0
        missing = 1 - self._level(key)
        return max(0, math.ceil(missing * 60 / self._most)) if missing > 1e-9 else 0

    def _level(self, key: str) -> float:
        level, then = self._buckets.get(key, (self._most, 0.0))
        return min(self._most, level + (self._clock.monotonic() - then) * self._most / 60)


class ConcurrencyLimit:
    """How many may run at the same time per key. 0 means unlimited."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken: Counter[str] = Counter()

    def take(self, key: str) -> bool:
        """Whether one was free; if so, `release` it later."""
        if self._most and self._taken[key] >= self._most:
            return False
        self._taken[key] += 1
        return True

    def release(self, key: str) -> None:
        self._taken[key] -= 1
        if not self._taken[key]:
            del self._taken[key]


def address_key(client: tuple[str, int] | None) -> str:
    """The key under which an address is counted. A single host can use a whole /64 of IPv6 addresses."""
    host = client[0] if client else ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host[:64]
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, 64), strict=False))
    return host
