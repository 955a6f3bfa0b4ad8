"""The first messages of a client, answered from the cache while the server is being imported in the background.

The server then gets every message that was read, in its order, with other ids where the client already has its answer;
what the server answers to those is compared with the cache and not sent (`stdio.py`).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from quorate.surfaces.handshake_cache import HandshakeCache, Questions
from quorate.surfaces.lines import Lines, LineWriter

PATIENCE = 0.25
"""How long to wait for a silent client; then the server is imported while the client thinks."""
LAST_QUESTION = "tools/list"
"""What most clients wait for; the import starts when they have it, so that it does not compete with the answer."""


class _Message(msgspec.Struct, forbid_unknown_fields=True):
    jsonrpc: str
    method: str
    id: int | str | msgspec.UnsetType = msgspec.UNSET
    params: dict[str, msgspec.Raw] | msgspec.UnsetType | None = msgspec.UNSET


@dataclass(slots=True)
class Opening:
    """A conversation that the server takes over: what was read so far, then the rest."""

    lines: Lines
    writer: LineWriter
    cache: HandshakeCache | None = None
    read: list[str] = field(default_factory=list)
    mark: str = field(default_factory=lambda: f"{os.urandom(8).hex()}:")
    """Prefix of the ids of messages whose answers the client already has."""
    ended: bool = False
    """Whether the client has left and nothing is unanswered."""

    async def __aiter__(self) -> AsyncIterator[str]:
        while self.read:
            yield self.read.pop(0)
        async for line in self.lines:
            yield line

    def is_answered(self, id: object) -> bool:
        return isinstance(id, str) and id.startswith(self.mark)


async def open_conversation(
    lines: Lines, writer: LineWriter, cache: HandshakeCache | None, load: Callable[[], None]
) -> Opening:
    """Answer what the cache knows until the server is loaded, or until a message needs it."""
    opening = Opening(lines, writer, cache)
    if cache:
        await _CachedHandshake(opening, cache, load).run()
    return opening


class _CachedHandshake:
    def __init__(self, opening: Opening, cache: HandshakeCache, load: Callable[[], None]) -> None:
        self._opening = opening
        self._cache = cache
        self._load = load
        self._questions = Questions()
        self._loading: asyncio.Future[None] | None = None

    async def run(self) -> None:
        while self._loading is None or not self._loading.done():
            line = await self._next_line()
            if line is None:
                continue
            if not line and self._loading is None:
                self._opening.ended = True
                return
            if not line or not self._answer(line):
                break
        await self._start_loading()

    async def _next_line(self) -> str | None:
        """None if the import has to begin or has ended first."""
        reading = asyncio.ensure_future(self._opening.lines.read())
        waiting: list[asyncio.Future[Any]] = [reading] if self._loading is None else [reading, self._loading]
        await asyncio.wait(waiting, timeout=PATIENCE if self._loading is None else None, return_when="FIRST_COMPLETED")
        if reading.done():
            return reading.result()
        reading.cancel()
        self._start_loading()
        return None

    def _start_loading(self) -> asyncio.Future[None]:
        if self._loading is None:
            self._loading = asyncio.ensure_future(asyncio.to_thread(self._load))
        return self._loading

    def _answer(self, line: str) -> bool:
        """Whether the conversation can continue without the server."""
        try:
            message = msgspec.json.decode(line, type=_Message)
            params = msgspec.json.decode(line)["params"] if message.params else message.params
        except (msgspec.DecodeError, RecursionError):
            self._opening.read.append(line)
            return False
        params = None if params is msgspec.UNSET else params
        answer = self._cache.find(self._questions.digest(message.method, params))
        if message.id is msgspec.UNSET or answer is None or message.jsonrpc != "2.0":
            self._opening.read.append(line)
            return message.id is msgspec.UNSET and message.jsonrpc == "2.0"  # a notification has no answer
        self._opening.writer.write(
            b'{"jsonrpc":"2.0","id":%b,"result":%b}\n' % (msgspec.json.encode(message.id), answer)
        )
        message.id = f"{self._opening.mark}{len(self._opening.read)}"
        self._opening.read.append(msgspec.json.encode(message).decode() + "\n")
        if message.method == LAST_QUESTION:
            self._start_loading()
        return True
