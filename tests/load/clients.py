"""MCP clients as small as they can be, so that two hundred of them cost less than the server they ask."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import aiohttp

Era = Literal["2025-11-25", "2026-07-28"]
HANDSHAKE: Era = "2025-11-25"
STATELESS: Era = "2026-07-28"
KEEP_ALIVE_SECONDS = 2.0  # well below the server's: a connection that it closes in between would look like a lost call
_BASE = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
_WHO = {"name": "load", "version": "1"}
_META = {
    "io.modelcontextprotocol/protocolVersion": STATELESS,
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": _WHO,
}


@dataclass(frozen=True)
class Answer:
    """Of a tool."""

    error: bool
    text: str
    facts: Mapping[str, Any]

    @property
    def fate(self) -> str:
        """What it says about a change: done, unknown (also: still running), or failed, which is: not done."""
        if self.error:
            return "unknown" if "It is not known whether" in self.text else "failed"
        result = str(self.facts.get("result"))
        return {"done with warnings": "done", "nothing to do": "there already", "running": "unknown"}.get(
            result, result
        )


class HttpRefused(Exception):
    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text}")
        self.status = status


@dataclass
class McpClient:
    http: aiohttp.ClientSession
    url: str
    token: str
    era: Era = STATELESS
    session: str = ""
    _number: int = field(default=0)

    async def open(self) -> None:
        """Shake hands, where the era wants it."""
        if self.era == STATELESS:
            return
        hello = {"protocolVersion": self.era, "capabilities": {}, "clientInfo": _WHO}
        await self._request("initialize", hello)
        await self._post({"jsonrpc": "2.0", "method": "notifications/initialized"}, {})

    async def close(self) -> None:
        if self.session:
            async with self.http.delete(f"{self.url}/mcp", headers=self._headers()) as answer:
                assert answer.status < 300, await answer.text()

    async def call(self, tool: str, /, **arguments: Any) -> Answer:
        result = await self._request("tools/call", {"name": tool, "arguments": arguments}, tool)
        text = "\n".join(block.get("text", "") for block in result.get("content", ()))
        return Answer(bool(result.get("isError")), text, result.get("structuredContent") or {})

    async def _request(self, method: str, params: dict[str, Any], name: str = "") -> dict[str, Any]:
        self._number += 1
        number = self._number
        headers = {}
        if self.era == STATELESS:
            params = {**params, "_meta": _META}
            headers = {"Mcp-Method": method, **({"Mcp-Name": name} if name else {})}
        body = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        text = await self._post(body, headers)
        messages = [json.loads(line.removeprefix("data:")) for line in _data_lines(text)]
        (answer,) = (message for message in messages if message.get("id") == number)
        assert "result" in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    async def _post(self, body: dict[str, Any], headers: dict[str, str]) -> str:
        async with self.http.post(f"{self.url}/mcp", json=body, headers={**self._headers(), **headers}) as answer:
            text = await answer.text()
            if answer.status >= 300:
                raise HttpRefused(answer.status, text)
            self.session = answer.headers.get("mcp-session-id", self.session)
            return text

    def _headers(self) -> dict[str, str]:
        session = {"Mcp-Session-Id": self.session} if self.session else {}
        version = {"MCP-Protocol-Version": self.era} if self.era == STATELESS or self.session else {}
        return {**_BASE, "Authorization": f"Bearer {self.token}", **session, **version}


def _data_lines(text: str) -> list[str]:
    """The messages of an answer, be it plain JSON or a stream of events."""
    if text.startswith("{"):
        return [text]
    return [line for line in text.splitlines() if line.startswith("data:") and line.removeprefix("data:").strip()]


@asynccontextmanager
async def http_session() -> AsyncIterator[aiohttp.ClientSession]:
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_SECONDS)
    timeout = aiohttp.ClientTimeout(total=150)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        yield session
