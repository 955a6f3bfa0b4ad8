"""How much may be asked, how often one may be wrong, how large a request may be, how slow a sender."""

from __future__ import annotations

import asyncio

import pytest

from quorate.config.http import HttpSettings
from quorate.surfaces.web import limits, listening
from quorate.surfaces.web.limits import Buckets, address_key
from tests.state.hand_clock import HandClock
from tests.web.serving import LOOK, MCP_HEADERS, web

pytestmark = pytest.mark.anyio
OPEN = HttpSettings(sessions=False)


async def test_a_caller_that_asks_too_much_is_told_when_to_come_back(tmp_path):
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


async def test_an_address_that_guesses_is_not_listened_to_any_more(tmp_path):
    async with web(tmp_path, http=HttpSettings(failure_limit=3, sessions=False)) as quorate:
        token = await quorate.token("alice")
        for _ in range(3):
            assert (await quorate.post("qrt_000000000000_" + "0" * 64)).status_code == 401
        refused = await quorate.post(token)
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) > 0
        await quorate.rig.clock.advance(61)
        assert (await quorate.post(token)).status_code == 200


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
    monkeypatch.setattr(listening, "HEADER_SECONDS", 0.2)
    async with web(tmp_path) as quorate:
        port = int(quorate.url.rsplit(":", 1)[1])
        for sent in (b"", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Slow: "):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(sent)
            assert await asyncio.wait_for(reader.read(), 10) == b""
            writer.close()
        assert (await quorate.get("/healthz")).status_code == 200


def test_a_bucket_fills_up_evenly():
    clock = HandClock()
    buckets = Buckets(60, clock)
    assert [buckets.take("a") for _ in range(61)] == [0] * 60 + [1]
    clock.now += 2
    assert [buckets.take("a") for _ in range(3)] == [0, 0, 1]
    assert buckets.wait("b") == 0


def test_strangers_do_not_fill_the_memory(monkeypatch):
    monkeypatch.setattr(limits, "MOST_KEYS", 10)
    buckets = Buckets(1, HandClock())
    for number in range(100):
        buckets.take(f"stranger {number}")
    assert len(buckets._buckets) == 10


def test_one_host_has_one_key():
    assert address_key(("2001:db8::1", 1)) == address_key(("2001:db8::ffff:2", 9))
    assert address_key(("2001:db8:0:1::1", 1)) != address_key(("2001:db8::1", 1))
    assert address_key(("::ffff:192.0.2.1", 1)) == address_key(("192.0.2.1", 2)) == "192.0.2.1"
    assert address_key(None) == ""
