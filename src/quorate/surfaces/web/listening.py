"""The listening socket: patience with slow senders, the certificate, and the way out."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from quorate.config import ConfigError
from quorate.config.http import MCP_PATH, HttpSettings
from quorate.surfaces.web.departure import Departure
from quorate.surfaces.web.guard import HEADER_BYTES, bracketed

HEADER_SECONDS = 20.0
MOST_CONNECTIONS = 2000
MESSAGE_BYTES = 64 * 1024
"""Of a web socket: nobody types that much at once."""
HANDOVER_SECONDS = 10
"""After the grace: calls that follow a task look once more, then hand it back."""


class Listener(uvicorn.Server):
    """Says where it listens once it does, and ends by returning, so that what surrounds it can be tidied up."""

    def __init__(
        self,
        app: ASGIApp,
        settings: HttpSettings,
        departure: Departure,
        hand_over: Callable[[], None],
        remark: str | None = None,
        terminals_at: Callable[[str], None] | None = None,
    ) -> None:
        self._settings = settings
        self._departure = departure
        self._hand_over = hand_over
        self._remark = remark
        self._terminals_at = terminals_at
        self._certificate = Certificate(settings.tls_cert, settings.tls_key) if settings.tls_cert else None
        tls: dict[str, Any] = {}
        if self._certificate is not None:
            context = self._certificate.context
            tls = {"ssl_certfile": settings.tls_cert, "ssl_context_factory": lambda *_: context}
        self.url = ""
        super().__init__(
            uvicorn.Config(
                app,
                http=PatientProtocol,
                ws="wsproto" if terminals_at else "none",
                ws_max_size=MESSAGE_BYTES,
                ws_per_message_deflate=False,
                log_level="warning",
                access_log=False,
                proxy_headers=False,  # the guard does it, for listed proxies only
                server_header=False,
                h11_max_incomplete_event_size=HEADER_BYTES,
                limit_concurrency=MOST_CONNECTIONS,
                timeout_graceful_shutdown=int(settings.grace_seconds) + HANDOVER_SECONDS,
                **tls,
            )
        )

    async def listen(self) -> None:
        """Until told to leave. Raises OSError where the address cannot be had."""
        host, port = self._settings.host, self._settings.port
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.create_server((host, port), family=family) as listening:
            await self.serve(sockets=[listening])

    def leave(self) -> None:
        """Readiness says no at once; after the time that balancers need to notice, the socket is closed."""
        if self._departure.leaving:
            self.should_exit = self.force_exit = True
            return
        self._departure.leaving = True
        asyncio.get_running_loop().call_later(self._settings.drain_seconds, setattr, self, "should_exit", True)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """In place of uvicorn's, which another library changes so that running answers are cut off."""
        self.leave()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        for listening in sockets or ():
            host, port = listening.getsockname()[:2]
            self.url = f"{'https' if self._settings.tls else 'http'}://{bracketed(host)}:{port}"
            sys.stderr.write(f"quorate: listening on {self.url}{MCP_PATH}\n")
            if self._terminals_at is not None:
                self._terminals_at(self.url)
        if self._remark:
            sys.stderr.write(f"quorate: {self._remark}\n")
        sys.stderr.flush()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._departure.close()
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


class PatientProtocol(H11Protocol):
    """Gives whoever connects some time to send the head of a request, and then the line to somebody else."""

    _hurry: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_hurrying()
        super().connection_lost(exc)

    def _expect_head(self) -> None:
        waits = self.cycle is None or self.cycle.response_complete
        if not waits or self.transport.get_protocol() is not self:  # a web socket has its own patience
            self._stop_hurrying()
        elif self._hurry is None:
            self._hurry = self.loop.call_later(HEADER_SECONDS, self._hang_up)

    def _stop_hurrying(self) -> None:
        if self._hurry is not None:
            self._hurry.cancel()
            self._hurry = None

    def _hang_up(self) -> None:
        self._hurry = None
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()


class Certificate:
    """Read again when its file changes, so that a renewed one is used without a restart."""

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
        except (OSError, ssl.SSLError) as error:  # only one of the two files is new yet: the old ones go on
            sys.stderr.write(f"quorate: warning: the changed certificate is not used: {error}\n")

    def _load(self) -> None:
        cert, key = self._files
        self.context.load_cert_chain(
            cert, key, password=lambda: ""
        )  # a key with a passphrase is refused, not asked for

    def _times(self) -> tuple[int, ...]:
        return tuple(file.stat().st_mtime_ns if file.exists() else 0 for file in self._files)
