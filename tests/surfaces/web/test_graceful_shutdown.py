"""The end of a server: calls that run come to their end or are handed over, nothing new begins."""

from __future__ import annotations

import asyncio

import httpx2
import pytest

from quorate.config.http import HttpSettings
from tests.rigs.mcp_session import text_of
from tests.rigs.web_server import Web, web

pytestmark = pytest.mark.anyio
ERAS = pytest.mark.parametrize("mode", ["auto", "legacy"])


async def until_asked(quorate: Web, part: str) -> None:
    """Until the simulated cluster has been asked for this."""
    async with asyncio.timeout(20):
        while not any(part in path for _, path in quorate.rig.sim.requests):
            await asyncio.sleep(0.01)


async def refused(quorate: Web) -> None:
    """Until nobody listens any more."""
    async with asyncio.timeout(20):
        while True:
            try:
                async with httpx2.AsyncClient(verify=False) as fresh:
                    await fresh.get(f"{quorate.url}/healthz")
            except httpx2.ConnectError:
                return
            except httpx2.TransportError:
                continue  # it was let in just as the server closed
            await asyncio.sleep(0.01)


@ERAS
async def test_a_running_call_comes_to_its_end(tmp_path, mode):
    async with web(tmp_path) as quorate, quorate.client(mode=mode) as client:
        await client.list_tools()  # the SDK's client wants to know a tool before it looks at its answer
        quorate.rig.sim.faults.add("latency:5:GET:/nodes/*/qemu/100/*")
        call = asyncio.create_task(client.call_tool("guest_get", {"guest": 100}))
        await until_asked(quorate, "/qemu/100/")
        quorate.listener.leave()
        await refused(quorate)
        assert not call.done()
        await quorate.rig.clock.advance(5)
        answer = await call
        assert not answer.is_error, text_of(answer)
        await asyncio.wait_for(quorate.ended, 20)


@ERAS
async def test_a_call_that_outlasts_the_grace_hands_its_task_over(tmp_path, mode):
    async with web(tmp_path, http=HttpSettings(grace_seconds=0)) as quorate, quorate.client(mode=mode) as client:
        await client.list_tools()  # the SDK's client wants to know a tool before it looks at its answer
        quorate.rig.sim.faults.add("latency:0.1:GET:/nodes/*/tasks/*/status")
        call = asyncio.create_task(client.call_tool("guest_power", {"guest": 100, "action": "reboot"}))
        await until_asked(quorate, "/tasks/")
        quorate.listener.leave()
        await refused(quorate)
        await quorate.rig.clock.advance(0.2)
        answer = await call
        assert not answer.is_error, text_of(answer)
        assert answer.structured_content["result"] == "running"
        assert "task_wait" in text_of(answer)
        await asyncio.wait_for(quorate.ended, 20)
        assert quorate.rig.audit()[-1]["outcome"] == "running"


async def test_a_client_that_only_listens_does_not_hold_the_server_up(tmp_path):
    async with web(tmp_path) as quorate, quorate.client(mode="legacy") as client:
        await client.list_tools()  # the SDK's client now listens on a stream of its own
        await quorate.leave()
        assert quorate.ended.done()


async def test_readiness_says_no_while_calls_are_still_taken(tmp_path):
    async with web(tmp_path, http=HttpSettings(drain_seconds=3600, sessions=False)) as quorate:
        assert (await quorate.get("/readyz")).status_code == 200
        quorate.listener.leave()
        assert (await quorate.get("/readyz")).status_code == 503
        assert (await quorate.get("/healthz")).status_code == 200
        assert (await quorate.post()).status_code == 200
        quorate.listener.should_exit = True  # the hour is over
        await asyncio.wait_for(quorate.ended, 20)


async def test_leaving_a_second_time_ends_the_server_at_once(tmp_path):
    async with web(tmp_path, http=HttpSettings(drain_seconds=3600)) as quorate:
        quorate.listener.leave()
        quorate.listener.leave()
        await asyncio.wait_for(quorate.ended, 20)
