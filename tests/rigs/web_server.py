"""A Quorate server over real HTTP on a free loopback port, in front of a simulated cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from quorate.config import Access
from quorate.config.http import HttpSettings
from quorate.state.tokens import Tokens
from quorate.surfaces.web.credentials import LocalLogin
from quorate.surfaces.web.listener import Listener
from quorate.surfaces.web.server import prepare
from tests.rigs.mcp_session import Rig, rig

START_SECONDS = 20.0
LOOK = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
"""A request that needs no session with older versions of the protocol."""
MCP_HEADERS = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}


@dataclass
class Web:
    """The server, and a plain HTTP client that talks to it."""

    rig: Rig
    listener: Listener
    plain: httpx2.AsyncClient
    ended: asyncio.Task[None]
    tokens: Tokens
    made: dict[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return self.listener.url

    async def token(self, name: str, access: str = "read", **scope: Any) -> str:
        """Create a token and return its text."""
        self.made[name] = (await self.tokens.create(name, access, **scope)).plain
        await self.rig.clock.advance(1)  # another process would find it a moment later
        return self.made[name]

    async def post(self, token: str | None = None, body: Any = LOOK, **headers: str) -> httpx2.Response:
        """One POST to /mcp."""
        all_headers = {
            **MCP_HEADERS,
            **bearer(token),
            **{name.replace("_", "-"): text for name, text in headers.items()},
        }
        return await self.plain.post("/mcp", json=body, headers=all_headers)

    async def get(self, path: str, token: str | None = None, **headers: str) -> httpx2.Response:
        return await self.plain.get(path, headers={**bearer(token), **headers})

    @asynccontextmanager
    async def client(self, token: str | None = None, mode: str = "auto", **options: Any) -> AsyncIterator[Client]:
        """An MCP client, of today (auto) or of before 2026 (legacy)."""
        async with (
            httpx2.AsyncClient(headers=bearer(token), timeout=30, verify=False) as http,
            Client(streamable_http_client(f"{self.url}/mcp", http_client=http), mode=mode, **options) as client,
        ):
            yield client

    async def numbers(self, token: str | None = None) -> dict[str, float]:
        """The samples of /metrics."""
        answer = await self.get("/metrics", token)
        assert answer.status_code == 200, answer.text
        samples = (line.rsplit(" ", 1) for line in answer.text.splitlines() if not line.startswith("#"))
        return {name: float(value) for name, value in samples}

    async def leave(self) -> None:
        self.listener.leave()
        await asyncio.wait_for(self.ended, START_SECONDS)


def bearer(token: str | None) -> Mapping[str, str]:
    return {"Authorization": f"Bearer {token}"} if token else {}


@asynccontextmanager
async def web(
    tmp_path: Path, *, http: HttpSettings | None = None, access: Access = Access.ADMIN, **options: Any
) -> AsyncIterator[Web]:
    """`options` go to the rig."""
    options = {"toolsets": ("default",), **options}
    async with rig(tmp_path, access=access, **options) as inner, served(inner, http) as running:
        yield running


@asynccontextmanager
async def served(inner: Rig, http: HttpSettings | None = None, login: LocalLogin | None = None) -> AsyncIterator[Web]:
    """Another HTTP server in front of a rig that already exists."""
    settings = replace(http or HttpSettings(), port=0)
    listener = await prepare(inner.app.core(settings, login))
    ended = asyncio.create_task(listener.listen())
    await asyncio.wait_for(_started(listener, ended), START_SECONDS)
    try:
        async with httpx2.AsyncClient(base_url=listener.url, timeout=30, verify=False) as plain:
            yield Web(inner, listener, plain, ended, Tokens(inner.app.store))
    finally:
        if not ended.done():
            listener.leave()
        await asyncio.wait_for(ended, START_SECONDS)


async def _started(listener: Listener, ended: asyncio.Task[None]) -> None:
    while not listener.started:
        if ended.done():
            ended.result()
        await asyncio.sleep(0.01)
