"""Standard input and output by lines. The event loop reads and writes what it can without waiting, threads the rest."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import queue
import select
import threading
from collections import deque
from collections.abc import AsyncIterator
from typing import BinaryIO, Self

LONGEST_LINE = 32 * 1024 * 1024
MOST_UNWRITTEN = 1024 * 1024
"""Bytes beyond which senders wait for a client that reads slowly."""
LAST_SECONDS = 5.0
"""How long a client has to read the last lines."""
_PIECE = 64 * 1024
_ROOM = 4096
"""What a pipe or socket that is ready for writing takes at once (PIPE_BUF)."""


@contextlib.asynccontextmanager
async def standard_streams() -> AsyncIterator[tuple[Lines, LineWriter]]:
    """What the client sends and reads.

    Programs that we start must not read from it or write to it: their input is empty, and their output goes to
    standard error.
    """
    nothing = os.open(os.devnull, os.O_RDWR)  # first, as it takes the place of standard error where that is closed
    own_input, own_output = os.dup(0), os.dup(1)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    writer = LineWriter(own_output)
    try:
        yield Lines(os.fdopen(own_input, "rb", buffering=0, closefd=False)), writer
    finally:
        await writer.close()
        os.dup2(own_input, 0)
        os.dup2(own_output, 1)


class Lines:
    """The lines of an unbuffered stream, read on demand.

    In place of an overlong line comes one that is not a message. If the wait for a line is canceled, the line is not
    lost: the next caller gets it.
    """

    def __init__(self, stream: BinaryIO | io.RawIOBase) -> None:
        self._stream = stream
        self._begun = bytearray()
        """The beginning of a line whose end has not arrived."""
        self._arrived: deque[str] = deque()
        self._ended = False
        self._more: asyncio.Future[None] | None = None
        """Done when more has arrived."""
        self._asked: queue.SimpleQueue[asyncio.AbstractEventLoop] | None = None
        """Wakes the thread that reads what the event loop cannot watch: files, and anything on Windows."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        if line := await self.read():
            return line
        raise StopAsyncIteration

    async def read(self) -> str:
        """The next line; empty at the end."""
        while not self._arrived and not self._ended:
            if self._more is None:
                self._more = asyncio.get_running_loop().create_future()
                self._ask(asyncio.get_running_loop())
            await asyncio.shield(self._more)
        return self._arrived.popleft() if self._arrived else ""

    def _ask(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._asked is None:
            try:
                loop.add_reader(self._stream.fileno(), self._read_ready, loop)
                return
            except (OSError, NotImplementedError):
                self._asked = queue.SimpleQueue()
                threading.Thread(target=self._serve, args=(self._asked,), daemon=True).start()
        self._asked.put(loop)

    def _read_ready(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.remove_reader(self._stream.fileno())
        self._take(self._read_piece())

    def _serve(self, asked: queue.SimpleQueue[asyncio.AbstractEventLoop]) -> None:
        piece = b"-"
        while piece:
            loop = asked.get()
            piece = self._read_piece()
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._take, piece)

    def _read_piece(self) -> bytes:
        try:
            return self._stream.read(_PIECE) or b""  # of a raw stream: what is there
        except OSError:  # the client is gone
            return b""

    def _take(self, piece: bytes) -> None:
        ended, newline, begun = piece.rpartition(b"\n")
        if newline:
            self._arrived.extend(map(_text, (self._begun + ended).split(b"\n")))
            self._begun.clear()
        elif not piece:
            self._ended = True
            self._arrived.extend([_text(self._begun)] if self._begun else [])
        self._begun += begun
        del self._begun[LONGEST_LINE:]  # one too many, because the newline counts
        if self._more is not None:
            self._more.set_result(None)
            self._more = None


def _text(line: bytes | bytearray) -> str:
    return "too long\n" if len(line) >= LONGEST_LINE else line.decode(errors="replace") + "\n"


class LineWriter:
    """Writes lines in their order. Nobody waits for a line to be written, unless the client reads too slowly."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._room = select.poll() if hasattr(select, "poll") else None
        if self._room:
            self._room.register(descriptor, select.POLLOUT)
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        """Read by the thread that writes what there is no room for yet."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sent = self._written = 0
        """Bytes so far. While they differ, only the thread changes the second."""
        self._waiting = 0
        """How many callers wait for the thread."""
        self._moved = asyncio.Event()
        self.broken = False
        """Whether the client stopped reading; further lines are dropped."""

    def write(self, line: bytes) -> None:
        idle = self._sent == self._written
        self._sent += len(line)
        if idle and self._room:
            rest = self._write_what_fits(line, self._room)
            self._written += len(line) - len(rest)
            line = rest
        if line:
            self._hand_over(line)

    async def drain(self) -> None:
        """Wait while too much is unwritten."""
        if self._sent - self._written > MOST_UNWRITTEN:
            await self._wait_for(self._sent - MOST_UNWRITTEN)

    async def close(self) -> None:
        """Wait until everything is written."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_SECONDS):
                await self._wait_for(self._sent)

    async def _wait_for(self, bytes_written: int) -> None:
        self._waiting += 1  # before the look at `_written`: the thread looks here after it has changed that
        try:
            self._moved.clear()
            while self._written < bytes_written:
                await self._moved.wait()
                self._moved.clear()
        finally:
            self._waiting -= 1

    def _write_what_fits(self, data: bytes, room: select.poll) -> bytes:
        """Write what the client has room for, and return the rest."""
        while data and room.poll(0):
            written = self._write(data[:_ROOM])
            data = data[written:]
        return data

    def _write(self, data: bytes) -> int:
        try:
            return len(data) if self.broken else os.write(self._descriptor, data)
        except OSError:
            self.broken = True
            return len(data)

    def _hand_over(self, line: bytes) -> None:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            threading.Thread(target=self._serve, args=(self._loop,), daemon=True).start()
        self._lines.put(line)

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        while True:
            data = self._lines.get()
            while data:
                written = self._write(data)
                data = data[written:]
                self._written += written
            if self._waiting:
                with contextlib.suppress(RuntimeError):  # the loop has ended
                    loop.call_soon_threadsafe(self._moved.set)
