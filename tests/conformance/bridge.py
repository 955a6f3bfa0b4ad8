"""HTTP in front of stdio servers: the conformance tool speaks only HTTP, and stdio is to be held against it as well.

Each session of the older protocol has a process of its own, as with a real client; all requests of the newer one, which
has no sessions, go to one process. The bridge passes messages on and adds nothing of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import secrets
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

COMMAND = (sys.executable, "-m", "tests.conformance.server", "stdio")
LINE_BYTES = 16 * 1024 * 1024
SESSION = "Mcp-Session-Id"

Message = dict[str, Any]


@dataclass
class Waiting:
    """A request, and where the messages go that are about it."""

    request: Message
    answers: asyncio.Queue[Message] = field(default_factory=asyncio.Queue)

    @property
    def progress_token(self) -> Any:
        return self.request.get("params", {}).get("_meta", {}).get("progressToken")


@dataclass
class Process:
    """A stdio server, and the requests that wait for its answers."""

    process: asyncio.subprocess.Process
    waiting: dict[Any, Waiting] = field(default_factory=dict)
    """By our id."""
    ids: Any = field(default_factory=lambda: itertools.count(1))
    reading: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls) -> Process:
        pipe = asyncio.subprocess.PIPE
        started = cls(await asyncio.create_subprocess_exec(*COMMAND, stdin=pipe, stdout=pipe, limit=LINE_BYTES))
        started.reading = asyncio.create_task(started._read())
        return started

    def send(self, message: Message) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message).encode() + b"\n")

    @asynccontextmanager
    async def asked(self, message: Message) -> AsyncIterator[asyncio.Queue[Message]]:
        """Ids of different clients may be the same, so each request gets a unique one on the way."""
        number = next(self.ids)
        self.waiting[number] = Waiting(message)
        self.send({**message, "id": number})
        try:
            yield self.waiting[number].answers
        finally:
            if self.waiting.pop(number, None):
                self.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": number}})

    async def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        await asyncio.wait_for(self.process.wait(), 20)

    async def _read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            message = json.loads(line)
            if "method" not in message and message.get("id") in self.waiting:
                answered = self.waiting.pop(message["id"])
                answered.answers.put_nowait({**message, "id": answered.request["id"]})
            elif waiting := self._concerned(message):
                waiting.answers.put_nowait(message)

    def _concerned(self, message: Message) -> Waiting | None:
        """Whose progress it is; anything else goes to the request that was made last."""
        token = message.get("params", {}).get("progressToken")
        named = [request for request in self.waiting.values() if token is not None and request.progress_token == token]
        return next(iter([*named, *reversed(self.waiting.values())]), None)


class Bridge:
    def __init__(self) -> None:
        self._sessions: dict[str, Process] = {}
        self._modern: Process | None = None
        self._starting = asyncio.Lock()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.method == "DELETE":
            ended = self._sessions.pop(request.headers.get(SESSION, ""), None)
            await (ended.end() if ended else asyncio.sleep(0))
            return web.Response(status=200 if ended else 404)
        if request.method != "POST":
            return web.Response(status=405, headers={"Allow": "POST, DELETE"})
        message = await request.json()
        process, headers = await self._process(request, message)
        if process is None:
            return web.Response(status=404)
        if "id" not in message or "method" not in message:
            process.send(message)
            return web.Response(status=202)
        async with process.asked(message) as answers:
            return await _streamed(request, answers, headers)

    async def close(self) -> None:
        for process in (*self._sessions.values(), *([self._modern] if self._modern else [])):
            await process.end()

    async def _process(self, request: web.Request, message: Message) -> tuple[Process | None, dict[str, str]]:
        if request.headers.get("MCP-Protocol-Version", "") >= "2026":
            async with self._starting:
                self._modern = self._modern or await _modern_process()
            return self._modern, {}
        if message.get("method") == "initialize":
            session = secrets.token_hex(8)
            self._sessions[session] = await Process.start()
            return self._sessions[session], {SESSION: session}
        return self._sessions.get(request.headers.get(SESSION, "")), {}


async def _modern_process() -> Process:
    """The first message decides which era a stdio connection is of; clients of today open with this one."""
    process = await Process.start()
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
        "io.modelcontextprotocol/clientInfo": {"name": "bridge", "version": "1"},
    }
    hello = {"jsonrpc": "2.0", "id": 0, "method": "server/discover", "params": {"_meta": meta}}
    async with process.asked(hello) as answers:
        await asyncio.wait_for(answers.get(), 60)
    return process


async def _streamed(
    request: web.Request, answers: asyncio.Queue[Message], headers: dict[str, str]
) -> web.StreamResponse:
    stream = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store", **headers})
    await stream.prepare(request)
    with contextlib.suppress(ConnectionResetError):  # a scenario that has seen enough hangs up
        while True:
            message = await answers.get()
            await stream.write(f"event: message\ndata: {json.dumps(message)}\n\n".encode())
            if "method" not in message:
                break
    return stream


@asynccontextmanager
async def bridged() -> AsyncIterator[str]:
    """The address at which stdio servers can be reached."""
    bridge = Bridge()
    app = web.Application(client_max_size=LINE_BYTES)
    app.router.add_route("*", "/mcp", bridge.handle)
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/mcp"
    finally:
        await runner.cleanup()
        await bridge.close()
