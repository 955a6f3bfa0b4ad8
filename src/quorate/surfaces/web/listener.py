"""The listening socket: timeouts for slow clients, connection limits, the certificate, and shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import signal
import socket
import ssl
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, cast

import h11
import uvicorn
from starlette.responses import Response
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from quorate.config import ConfigError
from quorate.config.http import HttpSettings
from quorate.surfaces.web.health import GracefulShutdown
from quorate.surfaces.web.replies import refusal
from quorate.surfaces.web.requests import HEADER_BYTES, ConcurrencyLimit, StrictConnection, address_key, bracket_ipv6

_LOG = logging.getLogger(__name__)
HEADER_SECONDS = 20.0
SURPLUS_SECONDS = 2.0
"""Timeout for the head of a request that is refused anyway because there are too many connections."""
MOST_SURPLUS = 50
READING_SECONDS = 60.0
"""Timeout for a client that stops reading its response; then the connection is closed."""
MESSAGE_BYTES = 64 * 1024
"""The longest WebSocket message: nobody types that much at once."""
HANDOVER_SECONDS = 10
"""After the grace period: calls that follow a task check it a last time, then return its id."""


class Listener(uvicorn.Server):
    """Reports where it listens once it does, and ends by returning, so that callers can clean up."""

    def __init__(
        self,
        app: ASGIApp,
        settings: HttpSettings,
        shutdown: GracefulShutdown,
        hand_over: Callable[[], None],
        how_to_connect: Callable[[str], list[str]],
        announce: Callable[[str], None] | None = None,
        *,
        terminals: bool = False,
    ) -> None:
        self._settings = settings
        self._shutdown = shutdown
        self._hand_over = hand_over
        self._how_to_connect = how_to_connect
        self._announce = announce
        self._certificate = Certificate(settings.tls_cert, settings.tls_key) if settings.tls_cert else None
        tls: dict[str, Any] = {}
        if self._certificate is not None:
            context = self._certificate.context
            tls = {"ssl_certfile": settings.tls_cert, "ssl_context_factory": lambda *_: context}
        self.url = ""
        self._is_cutting_off = False
        super().__init__(
            uvicorn.Config(
                app,
                http=cast(Any, partial(TimeoutProtocol, connections=ConnectionLimit(settings))),
                ws="wsproto" if terminals else "none",
                ws_max_size=MESSAGE_BYTES,
                ws_per_message_deflate=False,
                log_level="warning",
                log_config=None,  # its lines have the form of all others
                access_log=False,
                proxy_headers=False,  # OriginCheck does it, for listed proxies only
                server_header=False,
                h11_max_incomplete_event_size=HEADER_BYTES,
                timeout_graceful_shutdown=int(settings.grace_seconds) + HANDOVER_SECONDS,
                **tls,
            )
        )

    async def listen(self) -> None:
        """Serve until shutdown is requested. Raises OSError if the address is not available."""
        host, port = self._settings.host, self._settings.port
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.create_server((host, port), family=family) as listening:
            # asyncio does this for sockets that say they are TCP; those made here do not, and head and body of an
            # answer are two writes: without it each answer waits 40 ms for the caller's kernel.
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self.serve(sockets=[listening])

    def leave(self) -> None:
        """Report not ready at once; close the socket after the time that load balancers need to notice."""
        if self._shutdown.leaving:
            self._cut_off()
            return
        self._shutdown.leaving = True
        logging.getLogger("uvicorn.error").addFilter(_is_no_cut_off)
        asyncio.get_running_loop().call_later(self._settings.drain_seconds, setattr, self, "should_exit", True)

    def _cut_off(self) -> None:
        """End running answers, then the server as usual; the next time, the process just ends."""
        _LOG.warning("ending at once; answers that are cut off: %d", len(self.server_state.tasks))
        self.force_exit, self.should_exit = self._is_cutting_off, True
        self._is_cutting_off = True
        for answering in self.server_state.tasks:
            answering.cancel()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Replaces uvicorn's handler, which another library patches so that running answers are cut off."""
        self.leave()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        for listening in sockets or ():
            host, port = listening.getsockname()[:2]
            self.url = f"{'https' if self._settings.tls else 'http'}://{bracket_ipv6(host)}:{port}"
            if self._announce is not None:
                self._announce(self.url)
        for line in self._how_to_connect(self.url):
            _LOG.info("%s", line)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._shutdown.close()
        loop = asyncio.get_running_loop()
        at_last = loop.call_later(self._settings.grace_seconds, self._hand_over)
        try:
            await super().shutdown(sockets=sockets)
        finally:
            at_last.cancel()

    async def on_tick(self, counter: int) -> bool:
        if counter % 10 == 0 and self._certificate is not None:
            self._certificate.renew()
        return await super().on_tick(counter)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)


_CUT_OFF = ("CancelledError", "ASGI callable returned without completing response")


def _is_no_cut_off(record: logging.LogRecord) -> bool:
    """Not what uvicorn logs about answers that end with the server: nothing is wrong with those."""
    error = record.exc_info[1] if record.exc_info else None
    text = record.getMessage()
    return not (isinstance(error, asyncio.CancelledError) or any(words in text for words in _CUT_OFF))


class ConnectionLimit:
    """Counts open connections, in total and per address."""

    def __init__(self, settings: HttpSettings) -> None:
        self._most = settings.connection_limit
        self._count = 0
        self._addresses = ConcurrencyLimit(settings.address_limit)
        self._proxies = [ipaddress.ip_network(text) for text in settings.trusted_proxies]
        self.surplus = 0

    def take(self, client: tuple[str, int] | None) -> Response | None:
        """The response that refuses a connection; None if it is accepted, to be released at its end."""
        if self._count >= self._most:
            return _refuse_connection(503, "All connections are in use")
        if not self._by_proxy(client) and not self._addresses.take(address_key(client)):
            return _refuse_connection(429, "Too many connections from this address")
        self._count += 1
        return None

    def release(self, client: tuple[str, int] | None) -> None:
        self._count -= 1
        if not self._by_proxy(client):
            self._addresses.release(address_key(client))

    def _by_proxy(self, client: tuple[str, int] | None) -> bool:
        """All clients behind a proxy share its address."""
        if not self._proxies or client is None:
            return False
        try:
            return any(ipaddress.ip_address(client[0]) in network for network in self._proxies)
        except ValueError:
            return False


def _refuse_connection(status: int, description: str) -> Response:
    return refusal(status, "too_many_connections", description, Retry_After="5", Connection="close")


class TimeoutProtocol(H11Protocol):
    """Closes connections whose clients send a request's head, or read the response, too slowly."""

    _head_timeout: asyncio.TimerHandle | None = None
    _stuck: asyncio.TimerHandle | None = None

    def __init__(self, *args: Any, connections: ConnectionLimit, **options: Any) -> None:
        super().__init__(*args, **options)
        self.conn: StrictConnection = StrictConnection(h11.SERVER, HEADER_BYTES)
        self._connections = connections
        self._surplus = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        refused = self._connections.take(self.client)
        if refused is not None:  # the request is read, so that its sender gets the response
            self._surplus = True
            self._connections.surplus += 1
            self.app, self.ws_protocol_class = cast(Any, refused), None
            if self._connections.surplus > MOST_SURPLUS:
                transport.abort()
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_timeout()
        self.resume_writing()
        self._release_connection()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(self.conn.objection or msg)
        else:  # the request was answered before the end of its body
            self.transport.close()

    def handle_websocket_upgrade(self, event: Any) -> None:
        super().handle_websocket_upgrade(event)
        successor = cast(Any, self.transport.get_protocol())
        lost = successor.connection_lost

        def connection_lost(exc: Exception | None) -> None:
            self._release_connection()
            lost(exc)

        successor.connection_lost = connection_lost  # it owns the connection now, and this protocol is not notified

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stuck = self._stuck or self.loop.call_later(READING_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None
        super().resume_writing()

    def _release_connection(self) -> None:
        if self._surplus:
            self._connections.surplus -= 1
        else:
            self._connections.release(self.client)

    def _expect_head(self) -> None:
        waits = self.cycle is None or self.cycle.response_complete
        if not waits or self.transport.get_protocol() is not self:  # a web socket has its own timeouts
            self._cancel_timeout()
        elif self._head_timeout is None:
            seconds = SURPLUS_SECONDS if self._surplus else HEADER_SECONDS
            self._head_timeout = self.loop.call_later(seconds, self._close_idle)

    def _cancel_timeout(self) -> None:
        if self._head_timeout is not None:
            self._head_timeout.cancel()
            self._head_timeout = None

    def _close_idle(self) -> None:
        self._head_timeout = None
        if self.cycle is None or self.cycle.response_complete:
            if self.conn.our_state is h11.IDLE and self.conn.trailing_data[0]:  # a request has begun
                self.transport.write(_TOO_SLOW)
            self.transport.close()


_TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class Certificate:
    """Reloaded when its file changes, so that a renewed certificate is used without a restart."""

    def __init__(self, cert: Path, key: Path | None) -> None:
        self._files = (cert, key or cert)
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._seen = self._times()
        try:
            self._load()
        except (OSError, ssl.SSLError) as error:
            why = getattr(error, "reason", None) or error.strerror or str(error)
            raise ConfigError(f"The certificate {cert} and the key {key} cannot be used: {why}.") from None

    def renew(self) -> None:
        times = self._times()
        if times == self._seen or not all(times):
            return
        self._seen = times
        try:
            self._load()
        except (OSError, ssl.SSLError) as error:  # only one of the two files is new yet: keep using the old ones
            _LOG.warning("the changed certificate cannot be used: %s", error)

    def _load(self) -> None:
        cert, key = self._files
        self.context.load_cert_chain(
            cert, key, password=lambda: ""
        )  # a key with a passphrase is refused, not asked for

    def _times(self) -> tuple[int, ...]:
        return tuple(file.stat().st_mtime_ns if file.exists() else 0 for file in self._files)
