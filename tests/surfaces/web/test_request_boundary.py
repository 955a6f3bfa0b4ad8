"""Requests whose end a proxy could see elsewhere, sent byte by byte: no second request hides in the first one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from quorate.config.http import HttpSettings
from tests.pipeline.test_safety_table import tries
from tests.rigs.web_server import LOOK, Web, web

pytestmark = pytest.mark.anyio

BODY = json.dumps(LOOK).encode()
HIDDEN = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
SECONDS = 10.0
JSON = b"Accept: application/json, text/event-stream\r\nContent-Type: application/json\r\n"


@asynccontextmanager
async def server(tmp_path) -> AsyncIterator[Web]:
    async with web(tmp_path, http=HttpSettings(sessions=False)) as quorate:
        yield quorate


async def send(quorate: Web, *pieces: bytes) -> bytes:
    """Send the pieces one by one; return everything that the server answers until it closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(quorate.url.rsplit(":", 1)[1]))
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        async with asyncio.timeout(SECONDS):
            return await reader.read()
    finally:
        writer.close()


def post(*headers: bytes, version: bytes = b"1.1", host: bytes = b"Host: localhost\r\n") -> bytes:
    lines = b"".join(header + b"\r\n" for header in headers)
    return b"POST /mcp HTTP/" + version + b"\r\n" + host + JSON + lines + b"\r\n"


def chunked(body: bytes) -> bytes:
    return f"{len(body):x}\r\n".encode() + body + b"\r\n0\r\n\r\n"


def length(body: bytes) -> bytes:
    return f"Content-Length: {len(body)}".encode()


TE = b"Transfer-Encoding: chunked"

AMBIGUOUS = {
    "both lengths": post(length(BODY), TE) + chunked(BODY),
    "both lengths, in the other order": post(TE, b"Content-Length: 4") + chunked(BODY),
    "both lengths, in another case": post(b"content-length: 4", b"TRANSFER-ENCODING: Chunked") + chunked(BODY),
    "two lengths": post(length(BODY), b"Content-Length: 4") + BODY,
    "one length twice": post(length(BODY), length(BODY)) + BODY,
    "a list of lengths": post(length(BODY) + f", {len(BODY)}".encode()) + BODY,
    "a signed length": post(f"Content-Length: +{len(BODY)}".encode()) + BODY,
    "a negative length": post(b"Content-Length: -1") + BODY,
    "a length in hexadecimal": post(f"Content-Length: {len(BODY):#x}".encode()) + BODY,
    "an empty length": post(b"Content-Length: ") + BODY,
    "another encoding": post(b"Transfer-Encoding: gzip, chunked") + chunked(BODY),
    "no encoding": post(b"Transfer-Encoding: identity") + chunked(BODY),
    "an encoding that only looks like it": post(b"Transfer-Encoding: xchunked") + chunked(BODY),
    "an encoding in quotes": post(b'Transfer-Encoding: "chunked"') + chunked(BODY),
    "an encoding with a vertical tab": post(b"Transfer-Encoding: \x0bchunked") + chunked(BODY),
    "two encodings": post(TE, TE) + chunked(BODY),
    "two encodings, one unknown": post(TE, b"Transfer-Encoding: cow") + chunked(BODY),
    "a space before the colon": post(b"Transfer-Encoding : chunked") + chunked(BODY),
    "a space before the colon of the length": post(b"Content-Length : 4") + BODY,
    "a space before the name": post(length(BODY), b" Transfer-Encoding: chunked") + BODY,
    "a folded header": post(b"X-Folded: one\r\n two", length(BODY)) + BODY,
    "a folded encoding": post(b"Transfer-Encoding:\r\n chunked") + chunked(BODY),
    "lines without CR": post(length(BODY)).replace(b"\r\n", b"\n") + BODY,
    "one line without CR": post(b"X-One: 1\nX-Two: 2", length(BODY)) + BODY,
    "a head that ends without CR": post(length(BODY))[:-2] + b"\n" + BODY,
    "a lone CR": post(b"X-One: 1\rTransfer-Encoding: chunked", length(BODY)) + BODY,
    "a NUL": post(b"X-One: 1\x00", length(BODY)) + BODY,
    "two hosts": post(b"Host: localhost", length(BODY)) + BODY,
    "no host": post(length(BODY), host=b"") + BODY,
    "HTTP/1.0 with an encoding": post(TE, version=b"1.0") + chunked(BODY),
    "a version that does not exist": post(length(BODY), version=b"1.2") + BODY,
    "junk before the size of a chunk": post(TE) + b"x" + chunked(BODY),
    "the size of a chunk with 0x": post(TE) + b"0x" + chunked(BODY),
    "the size of a chunk with a sign": post(TE) + b"+" + chunked(BODY),
    "a chunk longer than its size": post(TE) + b"2\r\n" + BODY + b"\r\n0\r\n\r\n",
    "the size of a chunk without CR": post(TE) + f"{len(BODY):x}\n".encode() + BODY + b"\r\n0\r\n\r\n",
    "a change of protocol with a body": post(b"Connection: Upgrade", b"Upgrade: websocket", length(BODY)) + BODY,
    "a change of protocol in chunks": post(b"Connection: Upgrade", b"Upgrade: websocket", TE) + chunked(BODY),
    "a change of protocol before which more is sent": post(b"Connection: Upgrade", b"Upgrade: websocket"),
}


@tries("a second request is hidden in the first one, where a proxy and the server disagree about its end")
@pytest.mark.parametrize("name", AMBIGUOUS)
async def test_an_ambiguous_request_is_refused_and_closes_its_connection(tmp_path, name):
    async with server(tmp_path) as quorate:
        answer = await send(quorate, AMBIGUOUS[name] + HIDDEN)
        assert answer.startswith(b"HTTP/1.1 400 "), answer[:200]
        assert b"connection: close" in answer.lower()
        assert answer.count(b"HTTP/1.1 ") == 1, answer
        assert b"tools" not in answer
        assert (await quorate.get("/healthz")).status_code == 200


async def test_the_answer_says_what_is_ambiguous(tmp_path):
    async with server(tmp_path) as quorate:
        answer = await send(quorate, AMBIGUOUS["both lengths"])
        assert b"The request has both Content-Length and Transfer-Encoding." in answer


@pytest.mark.parametrize(
    "end",
    [b"0\r\n\r\n", b"0\r\n\n", b"0\r\nX-Trailer: one\n\n", b"0\r\nX-Trailer: one\r\n two\r\n\r\n", b"0;ext=1\r\n\r\n"],
)
async def test_nothing_is_read_after_a_body_in_chunks(tmp_path, end):
    async with server(tmp_path) as quorate:
        body = f"{len(BODY):x}\r\n".encode() + BODY + b"\r\n" + end
        answer = await send(quorate, post(TE) + body + HIDDEN)
        assert answer.startswith(b"HTTP/1.1 200 "), answer[:200]
        assert b"connection: close" in answer.lower()
        assert answer.count(b"HTTP/1.1 ") == 1, answer


async def test_a_bad_chunk_after_the_answer_closes_the_connection(tmp_path):
    async with server(tmp_path) as quorate:
        await quorate.token("alice")  # so that this request is refused before its body is read
        answer = await send(quorate, post(TE), b"nonsense\r\n" + HIDDEN)
        assert answer.count(b"HTTP/1.1 ") == 1, answer
        assert b" 200 " not in answer.partition(b"\r\n")[0]


async def test_plain_requests_share_a_connection(tmp_path):
    async with server(tmp_path) as quorate:
        last = HIDDEN.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
        answer = await send(quorate, post(length(BODY)) + BODY, HIDDEN, last)
        assert answer.count(b"HTTP/1.1 200 ") == 3, answer


async def test_a_head_in_single_bytes_is_read(tmp_path):
    async with server(tmp_path) as quorate:
        head = post(length(BODY), b"Connection: close")
        answer = await send(quorate, *(head[at : at + 1] for at in range(len(head))), BODY)
        assert answer.startswith(b"HTTP/1.1 200 "), answer[:200]
