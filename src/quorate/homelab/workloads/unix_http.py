"""HTTP to a Unix socket of another machine, such as Docker's.

The SSH server opens the socket where it can, which needs no program on that machine. Where it cannot (the login lacks
access to the socket, forwarding is off, the transport is pct or the guest agent), curl opens it there, as root. A body
goes over standard input, so the process list does not show it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import h11
import msgspec

from quorate.documents import Unreadable, read_json
from quorate.hints import NAMED, Advice, either
from quorate.homelab.machines import Machine
from quorate.inside.ssh_transport import SshTransport
from quorate.inside.transport import Command, Output
from quorate.problems import NotConfigured, NotFound, OutcomeUnknown, Problem, ServerFailed, TimedOut, Unreachable
from quorate.ssh.pool import SocketStream

MAX_BODY = 8 * 1024 * 1024
MAX_HEAD = 64 * 1024
SECONDS = 30.0
POLL_SECONDS = 0.5
"""How often the output of curl is read."""
CHUNK = 64 * 1024
_NO_CURL, _NO_SOCKET = 127, 7
_BROKE_OFF = (18, 28, 52, 55, 56, None)
"""Exit codes of curl after which the request may have been sent; None is a signal."""

OnPart = Callable[[bytes], Awaitable[None]]
"""Receives the body of a response piece by piece."""


@dataclass(frozen=True, slots=True)
class HttpResponse:
    status: int
    body: bytes
    cut: bool = False

    def json(self) -> Any:
        if self.cut:
            raise ServerFailed("The response is too long to read", why=f"It is longer than {len(self.body)} bytes")
        try:
            return read_json(self.body) if self.body.strip() else None
        except Unreadable as fault:
            raise ServerFailed(f"The response {fault}", why=self.body[:200].decode("utf-8", "replace")) from None


class UnixSocket:
    """A service behind a socket of a machine. The first call finds out how to open it."""

    def __init__(self, machine: Machine, path: str, *, root: bool = True) -> None:
        self.machine = machine
        self.path = path
        self._root = root
        """True if curl runs as root; the socket of a user's own engine belongs to that user."""
        self._direct: bool | None = None if isinstance(machine.transport, SshTransport) else False

    @property
    def by(self) -> str:
        return "socket" if self._direct else "curl"

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        seconds: float = SECONDS,
        max_body: int = MAX_BODY,
        on_part: OnPart | None = None,
    ) -> HttpResponse:
        data = b"" if body is None else body if isinstance(body, bytes) else msgspec.json.encode(body)
        exchange = Exchange(method, path, data, max_body=max_body)
        reader = _Reader(exchange, on_part)
        try:
            async with asyncio.timeout(seconds):
                stream = await self._dial()
                if stream is not None:
                    await _over(stream, reader)
                else:
                    await self._by_curl(method, path, data, seconds, reader)
        except TimeoutError:
            raise _no_answer(f"{self.path} on {self.machine} did not answer within {seconds:g} s", method) from None
        return HttpResponse(exchange.status, bytes(exchange.body), exchange.cut)

    async def _dial(self) -> SocketStream | None:
        if self._direct is False or not isinstance(self.machine.transport, SshTransport):
            return None
        try:
            stream = await self.machine.transport.open_socket(self.path)
        except Unreachable:
            if self._direct:
                raise
            self._direct = False
            return None
        self._direct = True
        return stream

    async def _by_curl(self, method: str, path: str, data: bytes, seconds: float, reader: _Reader) -> None:
        argv = ("curl", "--silent", "--show-error", "--include", "--raw", "--http1.1", "--unix-socket", self.path,
                "--max-time", str(int(seconds) + 1), "--request", method, "--header", "Expect:", "--noproxy", "*",
                "--header", "Content-Type: application/json", *(("--data-binary", "@-") if data else ()),
                "--globoff", f"http://localhost{path}")  # fmt: skip
        command = Command(argv, stdin=data)
        if self._root:
            command = self.machine.as_root(command)
        job = await self.machine.transport.start(command, limit=seconds + 2, keep=MAX_BODY)
        try:
            output = None
            while output is None:
                output = await job.wait(POLL_SECONDS)
                if output is None:
                    await reader.catch_up((await job.partial_output()).stdout)
            await reader.catch_up(output.stdout)
        except BaseException:
            await job.stop()
            raise
        exchange = reader.exchange
        if exchange.done:
            return
        if output.stdout_cut:
            exchange.cut = True
        elif output.exit_code == 0 and exchange.status:
            exchange.close()
        else:
            raise self._curl_problem(output, method)

    def _curl_problem(self, output: Output, method: str) -> Problem:
        complaint = output.complaint[-500:]
        if output.exit_code in _BROKE_OFF:
            return _no_answer(f"The response of {self.path} on {self.machine} was lost", method, complaint)
        if output.exit_code == _NO_CURL or "curl: not found" in complaint or "curl: command not found" in complaint:
            return NotConfigured(
                f"{self.path} on {self.machine} cannot be reached",
                why="The SSH server does not open it for this login, and curl is not installed there",
                next_step="Install curl there, or log in as a user who may open the socket",
            )
        if output.exit_code == _NO_SOCKET:
            return NotFound(f"Nothing listens on {self.path} of {self.machine}", next_step="Start the service there")
        return Unreachable(
            f"{self.path} on {self.machine} cannot be opened",
            why=f"It said: {complaint}" if complaint else f"curl ended with exit code {output.exit_code}",
            next_step=either("Log in as root", Advice("set {sudo_password} for the host", sudo_password=NAMED)),
        )


class Exchange:
    """One HTTP/1.1 request and its response, read as the bytes arrive. A longer body is cut at the limit."""

    def __init__(self, method: str, path: str, data: bytes = b"", *, max_body: int = MAX_BODY) -> None:
        self.method = method
        self.status = 0
        self.body = bytearray()
        self.cut = False
        self.done = False
        self._max_body = max_body
        self._connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD)
        headers = [("Host", "localhost"), ("Connection", "close")]
        if data or method != "GET":
            headers += [("Content-Type", "application/json"), ("Content-Length", str(len(data)))]
        events = (h11.Request(method=method, target=path, headers=headers), h11.Data(data), h11.EndOfMessage())
        self.request = b"".join(self._connection.send(event) or b"" for event in events)

    def feed(self, data: bytes) -> bytes:
        """The part of the body that these bytes contain."""
        return self._read(data) if data and not self.done else b""

    def close(self) -> None:
        """The other side closed the connection, at the end of the body or too early."""
        if not self.done:
            self._read(b"")
        if not self.done:
            raise _broken_off()

    def _read(self, data: bytes) -> bytes:
        fresh = bytearray()
        try:
            self._connection.receive_data(data)
            while not isinstance(event := self._connection.next_event(), type(h11.NEED_DATA)):
                if isinstance(event, h11.Response):
                    self.status = event.status_code
                elif isinstance(event, h11.Data):
                    fresh += event.data
                elif isinstance(event, h11.EndOfMessage):
                    self.done = True
                    break
                elif isinstance(event, h11.ConnectionClosed):
                    break
        except h11.RemoteProtocolError as error:
            raise (
                _broken_off()
                if not data
                else ServerFailed(
                    "What answered is not an HTTP server",
                    why=str(error),
                    next_step="Check whether another program listens on that socket",
                )
            ) from None
        room = max(0, self._max_body - len(self.body))
        self.body += fresh[:room]
        self.cut = self.cut or len(fresh) > room
        return bytes(fresh)


class _Reader:
    """Passes the bytes of a response on, whether they arrive piece by piece or as everything so far."""

    def __init__(self, exchange: Exchange, on_part: OnPart | None) -> None:
        self.exchange = exchange
        self._on_part = on_part
        self._position = 0

    async def catch_up(self, so_far: bytes) -> None:
        fresh = so_far[self._position :]
        self._position = len(so_far)
        await self.take(fresh)

    async def take(self, data: bytes) -> None:
        body = self.exchange.feed(data)
        if body and self._on_part is not None and self.exchange.status < 400:
            await self._on_part(body)


def _broken_off() -> ServerFailed:
    return ServerFailed("The response is incomplete", why="The other side closed the connection before its end")


async def _over(stream: SocketStream, reader: _Reader) -> None:
    exchange = reader.exchange
    try:
        await stream.write(exchange.request)
        while not exchange.done:
            data = await stream.read(CHUNK)
            if data:
                await reader.take(data)
                continue
            try:
                exchange.close()
            except ServerFailed as problem:
                raise _no_answer("The response was lost", exchange.method, problem.why) from None
    finally:
        stream.close()


def _no_answer(what: str, method: str, why: str | None = None) -> Problem:
    """The problem of a missing response. A change may have happened anyway."""
    if method == "GET":
        return TimedOut(what, why=why)
    return OutcomeUnknown(what, why=why, next_step="The change may have been made: check before you repeat it")
