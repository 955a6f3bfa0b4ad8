"""A session for the PVE client that hands each request to the simulated cluster in memory.

The client encodes every request as for TLS, and the simulator reads the same target and body. Only the sockets are
missing, which are most of the cost of a call.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import yarl
from aiohttp import web

from pve_simulator.api_client import Content, Request

Handler = Callable[[Any], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Sent:
    """One request as it was sent."""

    method: str
    target: str
    body: str

    def __str__(self) -> str:
        return f"{self.method} {self.target.removeprefix('/api2/json')}" + (f" {self.body}" if self.body else "")


class Wire:
    """Replaces the client's HTTP session."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self.sent: list[Sent] = []

    @asynccontextmanager
    async def request(
        self, method: str, url: yarl.URL, *, data: bytes | None, headers: Mapping[str, str], **_: Any
    ) -> AsyncIterator[_Response]:
        body = data or b""
        self.sent.append(Sent(method, url.raw_path_qs, body.decode()))
        yield _Response(method, await self._handler(Request(method, url.raw_path_qs, headers, body)))

    @asynccontextmanager
    async def post(
        self, url: yarl.URL, *, data: AsyncIterator[bytes], headers: Mapping[str, str], **_: Any
    ) -> AsyncIterator[_Response]:
        body = b"".join([bytes(piece) async for piece in data])
        self.sent.append(Sent("POST", url.raw_path_qs, "(a file)"))
        yield _Response("POST", await self._handler(Request("POST", url.raw_path_qs, headers, body)))

    async def ws_connect(self, *_: Any, **__: Any) -> Any:
        raise aiohttp.ClientConnectionError("consoles are not carried in memory")

    async def close(self) -> None:
        pass

    def writes(self, since: int = 0) -> list[Sent]:
        return [request for request in self.sent[since:] if request.method != "GET"]


class _Response:
    """The parts of a response that the client reads."""

    def __init__(self, method: str, response: web.StreamResponse) -> None:
        assert isinstance(response, web.Response)
        self.method = method
        self.status, self.reason, self.headers = response.status, response.reason, response.headers
        assert isinstance(response.body, bytes) or response.body is None
        self.content = Content(response.body or b"")
