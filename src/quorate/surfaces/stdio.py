"""MCP over standard input and output. A line that is not a message is answered as well, so no client waits forever."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import anyio
import msgspec
from mcp.shared.message import SessionMessage
from mcp.types import (
    PARSE_ERROR,
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCRequest,
    JSONRPCResponse,
    jsonrpc_message_adapter,
)

from quorate.operations.arguments import DEEPEST
from quorate.surfaces.handshake import LONGEST_LINE, Opening, Questions
from quorate.surfaces.server import read_malformed_answer

_UNREADABLE = (
    f"The line is not a JSON-RPC message, is longer than {LONGEST_LINE} bytes, or is nested too deeply; "
    f"an argument has {DEEPEST} levels at most"
)


def conversation(opening: Opening, may_record: Callable[[], bool]) -> tuple[MessageStream, AnswerStream]:
    """The streams to read messages from and write them to."""
    answers = AnswerStream(opening, may_record)
    return MessageStream(opening, answers), answers


class MessageStream:
    """What the client sends."""

    def __init__(self, opening: Opening, answers: AnswerStream) -> None:
        self._lines = aiter(opening)
        self._writer = opening.writer
        self._answers = answers

    async def receive(self) -> SessionMessage:
        async for line in self._lines:
            if self._writer.broken:
                break
            try:
                message = jsonrpc_message_adapter.validate_json(line, by_name=False)
            except ValueError:
                answer = read_malformed_answer(line)
                if answer is None:
                    await self._answers.refuse_line()
                    continue
                message = answer
            self._answers.note(message)
            return SessionMessage(message)
        raise anyio.EndOfStream

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def aclose(self) -> None:
        """Standard input is closed by those who opened it."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


class AnswerStream:
    """Where answers are written: those to a client's first questions are also kept, for the next start."""

    def __init__(self, opening: Opening, may_record: Callable[[], bool]) -> None:
        self._opening = opening
        self._may_record = may_record
        self._questions = Questions()
        self._asked: dict[int | str, str] = {}
        """Request -> the digest under which its answer is kept."""

    def note(self, message: Any) -> None:
        """A message that the server is about to read."""
        if (method := getattr(message, "method", None)) is None:
            return
        digest = self._questions.digest(method, message.params)
        if digest is not None and isinstance(message, JSONRPCRequest):
            self._asked[message.id] = digest

    async def send(self, item: SessionMessage) -> None:
        message = item.message
        if isinstance(message, (JSONRPCResponse, JSONRPCError)):
            self._record(message)
            if self._opening.is_answered(message.id):
                return
        await self._write(message)

    async def refuse_line(self) -> None:
        """Answer a line that is not a message."""
        await self._write(JSONRPCError(jsonrpc="2.0", id=None, error=ErrorData(code=PARSE_ERROR, message=_UNREADABLE)))

    async def _write(self, message: JSONRPCMessage) -> None:
        self._opening.writer.write(_encode(message) + b"\n")
        await self._opening.writer.drain()

    def _record(self, message: JSONRPCResponse | JSONRPCError) -> None:
        digest = None if message.id is None else self._asked.pop(message.id, None)
        cache = self._opening.cache
        if digest and cache is not None and isinstance(message, JSONRPCResponse) and self._may_record():
            cache.record(digest, msgspec.json.encode(message.result))

    async def aclose(self) -> None:
        """Standard output is closed by those who opened it."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


def _encode(message: JSONRPCMessage) -> bytes:
    if isinstance(message, JSONRPCResponse):  # its result is plain data, which msgspec encodes in a fifth of the time
        return msgspec.json.encode({"jsonrpc": message.jsonrpc, "id": message.id, "result": message.result})
    return message.model_dump_json(by_alias=True, exclude_unset=True).encode()
