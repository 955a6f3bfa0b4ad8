"""One listening address of the cluster: TLS for the API, and a redirect for plain HTTP on the same port."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import ssl
from collections.abc import Awaitable, Callable

from aiohttp import web
from aiohttp.http_exceptions import BadHttpMethod
from aiohttp.web_protocol import RequestHandler

from pve_simulator.http import responses

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

_IDLE_SECONDS = 5.0
_LAST_WORDS_SECONDS = 0.05  # for requests in progress at the end; 0 would wait forever
_TLS_HANDSHAKE = 0x16
_BACKLOG = 500


class _Connection(RequestHandler):
    """One connection, which answers as PVE does to methods that the HTTP library does not know."""

    socket_transport: asyncio.BaseTransport | None = None
    """Kept until the connection is lost; `transport` is forgotten when closing begins, which TLS clients can delay."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.socket_transport = transport
        super().connection_made(transport)

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        verb = re.search(r"'([A-Z]+) /", str(exc)) if isinstance(exc, BadHttpMethod) else None
        if verb is None:
            return super().handle_error(request, status, exc, message)
        response = responses.bare(501, f"method '{verb[1]}' not available")
        response.force_close()
        return response


class _Server(web.Server):
    def __call__(self) -> RequestHandler:
        return _Connection(self, loop=self._loop, **self._kwargs)


class Listener:
    """Accepts connections. The first byte distinguishes TLS from plain HTTP."""

    def __init__(self, host: str, port: int, context: ssl.SSLContext, handler: Handler) -> None:
        self._host = host
        self._port = port
        self._context = context
        self.handler = handler
        self._server: web.Server | None = None
        self._socket: socket.socket | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._accepted: set[socket.socket] = set()
        """Connections that were not handed over to the server yet."""

    @property
    def url(self) -> str:
        """The base URL; the port stays the same after a stop and start."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"https://{host}:{self._port}"

    async def start(self) -> None:
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((self._host, self._port))
        except OSError:
            listening.close()
            raise
        listening.listen(_BACKLOG)
        listening.setblocking(False)
        self._port = listening.getsockname()[1]
        self._socket = listening
        self._server = _Server(self._answer, keepalive_timeout=_IDLE_SECONDS, access_log=None)
        asyncio.get_running_loop().add_reader(listening.fileno(), self._accept, listening, self._server)

    async def stop(self) -> None:
        """Close the address and every connection to it."""
        if self._socket is None or self._server is None:
            return
        asyncio.get_running_loop().remove_reader(self._socket.fileno())
        self._socket.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for connection in self._accepted:  # its task was canceled before it ran
            connection.close()
        self._accepted.clear()
        connections = [connection for connection in self._server.connections if isinstance(connection, _Connection)]
        await self._server.shutdown(_LAST_WORDS_SECONDS)
        for left in connections:  # a client that never closes would keep TLS connections half open
            if isinstance(left.socket_transport, asyncio.Transport):
                left.socket_transport.abort()
        self._socket = self._server = None

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        return await self.handler(request)

    def _accept(self, listening: socket.socket, server: web.Server) -> None:
        try:
            connection, _ = listening.accept()
        except (BlockingIOError, ConnectionAbortedError):  # the client has disconnected already
            return
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._accepted.add(connection)
        task = asyncio.ensure_future(self._greet(connection, server))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _greet(self, connection: socket.socket, server: web.Server) -> None:
        try:
            first = await _peek(connection)
            if first == _TLS_HANDSHAKE:
                self._accepted.discard(connection)
                await self._hand_over(connection, server)
            elif first is not None:
                await self._redirect(connection)
        except OSError:  # the client disconnected or does not trust our certificate
            pass
        finally:
            if connection in self._accepted:
                self._accepted.discard(connection)
                connection.close()

    async def _hand_over(self, connection: socket.socket, server: web.Server) -> None:
        """Shake hands. A handshake that is canceled may stay open, so it is made to fail instead."""
        loop = asyncio.get_running_loop()
        handshake = asyncio.ensure_future(loop.connect_accepted_socket(server, connection, ssl=self._context))
        try:
            await asyncio.shield(handshake)
        except asyncio.CancelledError:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            await asyncio.gather(handshake, return_exceptions=True)
            raise

    async def _redirect(self, connection: socket.socket) -> None:
        """Plain HTTP on the TLS port: send the client to https."""
        loop = asyncio.get_running_loop()
        head = (await loop.sock_recv(connection, 8192)).decode("latin-1")
        method, _, rest = head.partition(" ")
        path = rest.partition(" ")[0] or "/"
        status = "301 Moved Permanently" if method in ("GET", "HEAD") else "308 Permanent Redirect"
        answer = f"HTTP/1.1 {status}\r\nLocation: {self.url}{path}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        await loop.sock_sendall(connection, answer.encode("latin-1"))
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_WR)


def _mark(readable: asyncio.Future[None]) -> None:
    if not readable.done():
        readable.set_result(None)


async def _peek(connection: socket.socket) -> int | None:
    """The client's first byte, not consumed; None if none arrives in time."""
    loop = asyncio.get_running_loop()
    readable: asyncio.Future[None] = loop.create_future()
    loop.add_reader(connection.fileno(), _mark, readable)
    try:
        async with asyncio.timeout(_IDLE_SECONDS):
            await readable
    except TimeoutError:
        return None
    finally:
        loop.remove_reader(connection.fileno())
    seen = connection.recv(1, socket.MSG_PEEK)
    return seen[0] if seen else None
