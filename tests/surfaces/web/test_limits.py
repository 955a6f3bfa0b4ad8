"""How much may be asked, how often one may be wrong, how large a request may be, how slow a sender."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quorate.config.http import HttpSettings
from quorate.surfaces.web import listener, requests
from quorate.surfaces.web.requests import RateLimit, address_key
from tests.rigs.manual_clock import HandClock
from tests.rigs.web_server import LOOK, MCP_HEADERS, Web, web

pytestmark = pytest.mark.anyio
OPEN = HttpSettings(sessions=False)


async def test_a_caller_over_the_rate_limit_gets_retry_after(tmp_path):
    async with web(tmp_path, http=HttpSettings(rate_limit=6, sessions=False)) as quorate:
        alice, bob = await quorate.token("alice"), await quorate.token("bob")
        assert [(await quorate.post(alice)).status_code for _ in range(6)] == [200] * 6
        refused = await quorate.post(alice)
        assert refused.status_code == 429
        assert refused.headers["retry-after"] == "10"
        assert (await quorate.post(bob)).status_code == 200
        await quorate.rig.clock.advance(10)
        assert (await quorate.post(alice)).status_code == 200
        assert (await quorate.post(alice)).status_code == 429
        assert (await quorate.numbers(bob))['quorate_rate_limited_total{by="caller"}'] == 2


async def test_an_address_that_guesses_is_refused_for_a_while_but_a_valid_token_always_gets_in(tmp_path):
    async with web(tmp_path, http=HttpSettings(failure_limit=3, sessions=False)) as quorate:
        token, wrong = await quorate.token("alice"), "qrt_000000000000_" + "0" * 64
        for _ in range(3):
            assert (await quorate.post(wrong)).status_code == 401
        for _ in range(20):
            refused = await quorate.post(wrong)
            assert refused.status_code == 429
            assert int(refused.headers["retry-after"]) > 0
            assert (await quorate.post(token)).status_code == 200
        assert (await quorate.post()).status_code == 401  # how to get a token is always said
        await quorate.rig.clock.advance(61)
        assert (await quorate.post(wrong)).status_code == 401


async def test_coming_without_a_token_is_no_failure(tmp_path):
    async with web(tmp_path, http=HttpSettings(failure_limit=2, sessions=False)) as quorate:
        token = await quorate.token("alice")
        assert [(await quorate.post()).status_code for _ in range(5)] == [401] * 5
        assert (await quorate.post(token)).status_code == 200


async def test_zero_is_no_limit(tmp_path):
    async with web(tmp_path, http=HttpSettings(rate_limit=0, failure_limit=0, sessions=False)) as quorate:
        token = await quorate.token("alice")
        assert [(await quorate.post("wrong")).status_code for _ in range(15)] == [401] * 15
        assert [(await quorate.post(token)).status_code for _ in range(15)] == [200] * 15


async def test_a_body_that_is_too_large_is_refused(tmp_path):
    async with web(tmp_path, http=HttpSettings(body_limit=5000, sessions=False)) as quorate:
        padded = {**LOOK, "params": {"padding": "x" * 6000}}
        assert (await quorate.post(body=padded)).status_code == 413
        assert (await quorate.post()).status_code == 200

        async def in_pieces():
            for _ in range(6):
                yield b"x" * 1000

        answer = await quorate.plain.post("/mcp", content=in_pieces(), headers=MCP_HEADERS)
        assert answer.status_code == 413


async def test_nobody_without_a_token_gets_a_body_read(tmp_path):
    async with web(tmp_path) as quorate:
        await quorate.token("alice")
        reader, writer = await asyncio.open_connection("127.0.0.1", int(quorate.url.rsplit(":", 1)[1]))
        writer.write(b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4000000\r\n\r\n")
        assert b" 401 " in await asyncio.wait_for(reader.readline(), 10)
        writer.close()


async def test_headers_that_are_too_large_are_refused(tmp_path):
    async with web(tmp_path, http=OPEN) as quorate:
        assert (await quorate.post(X_Padding="x" * 20_000)).status_code == 200
        assert (await quorate.post(X_Padding="x" * 40_000)).status_code == 431


async def test_whoever_does_not_finish_the_head_of_a_request_loses_the_line(tmp_path, monkeypatch):
    monkeypatch.setattr(listener, "HEADER_SECONDS", 0.2)
    async with web(tmp_path) as quorate:
        port = int(quorate.url.rsplit(":", 1)[1])
        begun = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Slow: "
        for sent, answer in ((b"", b""), (begun, b"HTTP/1.1 408 ")):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(sent)
            assert (await asyncio.wait_for(reader.read(), 10))[:13] == answer
            writer.close()
        assert (await quorate.get("/healthz")).status_code == 200


class Line:
    """A connection of our own, to be as slow on as we like."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def status(self) -> int:
        return int((await asyncio.wait_for(self.reader.readline(), 10)).split()[1])

    async def hang_up(self) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


Dial = Callable[..., Awaitable[Line]]


@contextlib.asynccontextmanager
async def dialling(tmp_path: Path, http: HttpSettings, **options: Any) -> AsyncIterator[tuple[Web, Dial]]:
    """A server, and a way to as many connections as we like."""
    lines: list[Line] = []
    async with web(tmp_path, http=http, **options) as quorate:

        async def dial(sent: bytes = b"") -> Line:
            lines.append(Line(*await asyncio.open_connection("127.0.0.1", int(quorate.url.rsplit(":", 1)[1]))))
            lines[-1].writer.write(sent)
            await lines[-1].writer.drain()
            return lines[-1]

        try:
            yield quorate, dial
        finally:
            for line in lines:
                await line.hang_up()


def post_of(length: int, token: str | None = None, path: str = "/mcp") -> bytes:
    """The head of a POST, and one byte of a body of that length."""
    authorization = f"Authorization: Bearer {token}\r\n" if token else ""
    kinds = "".join(f"{name}: {value}\r\n" for name, value in MCP_HEADERS.items())
    return (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{authorization}{kinds}Content-Length: {length}\r\n\r\n{{".encode()
    )


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(20):
        while not await condition():
            await asyncio.sleep(0)


async def test_a_body_that_does_not_arrive_is_not_waited_for(tmp_path):
    async with dialling(tmp_path, replace(OPEN, body_seconds=0.3)) as (quorate, dial):
        line = await dial(post_of(1000))
        assert await line.status() == 408
        assert b"did not arrive within 0.3 seconds" in await asyncio.wait_for(line.reader.read(), 10)
        assert (await quorate.post()).status_code == 200


@pytest.mark.parametrize("needs_token", [False, True])
async def test_no_page_waits_for_a_body_that_does_not_arrive(tmp_path, needs_token):
    pages = ("/console/login", "/console/logout", "/console/freeze", "/approvals/x", "/freeze")
    async with dialling(tmp_path, replace(OPEN, body_seconds=0.3)) as (quorate, dial):
        if needs_token:
            await quorate.token("alice")
        for path in pages:
            line = await dial(post_of(1000, path=path))
            assert await line.status() in (303, 401, 408, 415), path
        assert await (await dial(post_of(1000, path="/console/login"))).status() == 408


async def test_open_logins_of_one_address_are_limited(tmp_path):
    async with dialling(tmp_path, replace(OPEN, caller_limit=3)) as (quorate, dial):
        await quorate.token("alice")
        held = [await dial(post_of(1000, path="/console/login")) for _ in range(4)]
        waiting = [asyncio.ensure_future(line.status()) for line in held]
        (surplus,), rest = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        assert surplus.result() == 429
        for login in rest:
            login.cancel()


async def test_a_packed_body_is_refused(tmp_path):
    async with web(tmp_path, http=OPEN) as quorate:
        answer = await quorate.plain.post(
            "/mcp", content=gzip.compress(b" " * 10_000_000), headers={**MCP_HEADERS, "Content-Encoding": "gzip"}
        )
        assert answer.status_code == 415
        assert "must be plain" in answer.json()["error_description"]


async def test_open_requests_of_one_token_are_limited(tmp_path):
    async with dialling(tmp_path, replace(OPEN, caller_limit=3, rate_limit=0)) as (quorate, dial):
        alice, bob = await quorate.token("alice"), await quorate.token("bob")
        held = [await dial(post_of(1000, alice)) for _ in range(4)]
        waiting = [asyncio.ensure_future(line.status()) for line in held]
        (surplus,), rest = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        assert surplus.result() == 429
        for request in rest:
            request.cancel()
        refused = await quorate.post(alice)
        assert refused.headers["retry-after"] == "1"
        assert "3 open requests" in refused.json()["error_description"]
        assert (await quorate.post(bob)).status_code == 200
        assert (await quorate.numbers(bob))['quorate_rate_limited_total{by="at once"}'] >= 2
        for line in held:
            await line.hang_up()
        await until(lambda: answers(quorate, alice, 200))


async def test_streams_on_which_a_caller_only_listens_count(tmp_path):
    async with dialling(tmp_path, HttpSettings(sessions=True, caller_limit=2, rate_limit=0)) as (quorate, dial):
        alice = await quorate.token("alice")
        hello = {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"},
        }
        sessions = [
            (await quorate.post(alice, {**LOOK, "method": "initialize", "params": hello})).headers["mcp-session-id"]
            for _ in range(2)
        ]
        streams = [
            await dial(
                f"GET /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {alice}\r\n"
                f"Accept: text/event-stream\r\nMcp-Session-Id: {session}\r\n\r\n".encode(),
            )
            for session in sessions
        ]
        assert [await stream.status() for stream in streams] == [200, 200]
        assert (await quorate.post(alice)).status_code == 429
        await streams[0].hang_up()
        await until(lambda: answers(quorate, alice, 400))  # it has no session, but is heard


async def answers(quorate: Web, token: str | None, status: int) -> bool:
    return (await quorate.post(token)).status_code == status


async def test_one_address_cannot_have_all_connections(tmp_path):
    async with dialling(tmp_path, replace(OPEN, address_limit=3)) as (quorate, dial):
        held = [await dial() for _ in range(3)]
        surplus = await dial(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert await surplus.status() == 429
        assert b"Too many connections from this address" in await asyncio.wait_for(surplus.reader.read(), 10)
        for line in held:
            await line.hang_up()

        async def free() -> bool:
            return (await quorate.get("/healthz")).status_code == 200

        await until(free)


async def test_when_all_connections_are_in_use_that_is_said(tmp_path):
    async with dialling(tmp_path, replace(OPEN, connection_limit=3, trusted_proxies=("127.0.0.1",))) as (_, dial):
        for _ in range(3):
            await dial()
        surplus = await dial(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert await surplus.status() == 503


async def test_callers_behind_a_listed_proxy_do_not_count_as_one_address(tmp_path):
    async with dialling(tmp_path, replace(OPEN, address_limit=1, trusted_proxies=("127.0.0.1",))) as (quorate, dial):
        for _ in range(5):
            await dial()
        assert (await quorate.get("/healthz")).status_code == 200


async def test_surplus_connections_that_say_nothing_are_dropped(tmp_path, monkeypatch):
    monkeypatch.setattr(listener, "SURPLUS_SECONDS", 0.2)
    monkeypatch.setattr(listener, "MOST_SURPLUS", 2)
    async with dialling(tmp_path, replace(OPEN, address_limit=1)) as (_, dial):
        await dial()
        for _ in range(5):
            surplus = await dial()
            with contextlib.suppress(ConnectionError):
                assert await asyncio.wait_for(surplus.reader.read(), 10) == b""


async def test_whoever_does_not_read_an_answer_loses_the_line(tmp_path, monkeypatch):
    monkeypatch.setattr(listener, "READING_SECONDS", 0.2)
    async with dialling(tmp_path, replace(OPEN, caller_limit=1, rate_limit=0), toolsets=("all",)) as (quorate, dial):
        alice = await quorate.token("alice", access="admin")
        body = json.dumps(LOOK).encode()
        line = await dial()
        line.reader._transport.pause_reading()  # type: ignore[attr-defined]
        line.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        for _ in range(60):  # one after the other: the next is not read before the last is answered
            line.writer.write(post_of(len(body), alice)[:-1] + body)
        await until(lambda: answers(quorate, alice, 200))


async def test_a_body_nested_without_end_is_refused_as_a_request(tmp_path):
    async with web(tmp_path, http=OPEN) as quorate:
        for depth in (100, 190, 400, 1000, 100_000):
            nested = "[" * depth + "]" * depth
            call = {"name": "guest_list", "arguments": {"name": "NESTED"}}
            text = json.dumps({**LOOK, "method": "tools/call", "params": call}).replace('"NESTED"', nested)
            answer = await quorate.plain.post("/mcp", content=text, headers=MCP_HEADERS)
            assert answer.status_code < 500, (depth, answer.text)
            assert "nested" in answer.text or "error" in answer.text
            assert "defect" not in answer.text
            assert "Traceback" not in answer.text
        assert (await quorate.post()).status_code == 200


async def test_answers_leave_at_once(tmp_path):
    """Head and body are two writes; without TCP_NODELAY the second waits for the caller's kernel."""
    async with dialling(tmp_path, OPEN) as (quorate, dial):
        line = await dial(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert await line.status() == 200
        sockets = [
            connection.transport.get_extra_info("socket") for connection in quorate.listener.server_state.connections
        ]
        assert sockets
        assert all(connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) for connected in sockets)


def test_a_bucket_fills_up_evenly():
    clock = HandClock()
    buckets = RateLimit(60, clock)
    assert [buckets.take("a") for _ in range(61)] == [0] * 60 + [1]
    clock.now += 2
    assert [buckets.take("a") for _ in range(3)] == [0, 0, 1]
    assert buckets.wait("b") == 0


def test_strangers_do_not_fill_the_memory(monkeypatch):
    monkeypatch.setattr(requests, "MOST_KEYS", 10)
    buckets = RateLimit(1, HandClock())
    for number in range(100):
        buckets.take(f"stranger {number}")
    assert len(buckets._buckets) == 10


def test_one_host_has_one_key():
    assert address_key(("2001:db8::1", 1)) == address_key(("2001:db8::ffff:2", 9))
    assert address_key(("2001:db8:0:1::1", 1)) != address_key(("2001:db8::1", 1))
    assert address_key(("::ffff:192.0.2.1", 1)) == address_key(("192.0.2.1", 2)) == "192.0.2.1"
    assert address_key(None) == ""
