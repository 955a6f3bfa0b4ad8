"""Standard input and output, line by line."""

import asyncio
import io
import os

import pytest

from quorate.surfaces import handshake
from quorate.surfaces.handshake import MOST_UNWRITTEN, Lines, LineWriter

pytestmark = pytest.mark.anyio


async def test_an_overlong_line_is_skipped_and_the_next_one_is_read(monkeypatch):
    monkeypatch.setattr(handshake, "LONGEST_LINE", 8)
    stream = io.BytesIO(b'{"a":1}\n' + b"x" * 50 + b'\n{"b":2}\n')
    assert [line async for line in Lines(stream)] == ['{"a":1}\n', "too long\n", '{"b":2}\n']


async def test_a_line_that_never_ends_takes_no_more_memory_than_the_limit(monkeypatch):
    monkeypatch.setattr(handshake, "LONGEST_LINE", 8)
    monkeypatch.setattr(handshake, "_PIECE", 5)
    stream = Lines(io.BytesIO(b"x" * 50))
    assert [line async for line in stream] == ["too long\n"]
    assert await stream.read() == "", "the end stays the end"


async def test_lines_are_put_together_wherever_the_pieces_end(monkeypatch):
    text = "".join(f"{'é' * length}\n" for length in range(12))
    for size in range(1, 16):
        monkeypatch.setattr(handshake, "_PIECE", size)
        lines = [line async for line in Lines(io.BytesIO(text.encode() + b"the last"))]
        assert "".join(lines) == f"{text}the last\n", size


async def test_a_line_whose_reader_gave_up_is_read_by_the_next():
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb", buffering=0) as stream, os.fdopen(writing, "wb", buffering=0) as client:
        arriving = Lines(stream)
        waiting = asyncio.ensure_future(arriving.read())
        await asyncio.sleep(0)
        waiting.cancel()
        client.write(b"one\ntwo\n")
        assert [await arriving.read(), await arriving.read()] == ["one\n", "two\n"]


async def test_who_writes_waits_for_a_client_that_does_not_read_and_nothing_is_lost(monkeypatch):
    monkeypatch.setattr(handshake, "MOST_UNWRITTEN", 1000)
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as client:
        writer = LineWriter(writing)
        written = [b"%d %b\n" % (number, b"x" * 1000) for number in range(500)]

        async def send(line: bytes) -> None:
            writer.write(line)
            await writer.drain()

        sending = asyncio.gather(*map(send, written))
        await asyncio.sleep(0)
        assert not sending.done(), "a pipe holds much less"
        assert await asyncio.to_thread(lambda: [client.readline() for _ in written]) == written
        await sending
        await writer.close()
        os.close(writing)


async def test_nobody_waits_for_a_client_that_is_gone():
    reading, writing = os.pipe()
    os.close(reading)
    writer = LineWriter(writing)
    writer.write(b"one\n")
    await writer.close()
    assert writer.broken
    writer.write(b"x" * 3 * MOST_UNWRITTEN)
    await writer.drain()
    os.close(writing)
