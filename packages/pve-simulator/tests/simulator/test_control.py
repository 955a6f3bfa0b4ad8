"""The control API: what tests in other languages do with the cluster."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest

from pve_simulator.api_client import Api, open_api, simulated_api
from pve_simulator.clock import RealClock
from pve_simulator.control import ControlServer
from pve_simulator.simulator import SimulatedCluster

SMALL = {"nodes": [{"name": "solo"}], "storages": [{"id": "local", "type": "dir", "content": ["images"]}]}


@dataclass
class Control:
    """Requests to the control API."""

    server: ControlServer
    session: aiohttp.ClientSession

    async def ask(self, method: str, path: str, body: Any = None, status: int = 200, **headers: str) -> Any:
        text = body if isinstance(body, str | None) else json.dumps(body)
        async with self.session.request(method, self.server.url + path, data=text, headers=headers) as reply:
            answer = await reply.json()
            assert reply.status == status, answer
            return answer


@asynccontextmanager
async def controlled(cluster: SimulatedCluster) -> AsyncIterator[Control]:
    async with ControlServer(cluster) as server, aiohttp.ClientSession() as session:
        yield Control(server, session)


@pytest.fixture
async def control(api: Api) -> AsyncIterator[Control]:
    async with controlled(api.cluster) as control:
        yield control


async def test_turning_the_clock_finishes_what_is_due(api: Api, control: Control) -> None:
    started = await api.post("/nodes/pve1/qemu/108/status/start")
    before = (await control.ask("GET", "/"))["now"]
    state = await control.ask("POST", "/advance", {"seconds": 10})
    assert state["now"] == before + 10
    assert state["requests"] == len(await control.ask("GET", "/requests")) == 1
    assert (await api.task(started.data))["exitstatus"] == "OK"
    assert await control.ask("DELETE", "/requests") == []


async def test_faults_are_injected_listed_and_cleared(api: Api, control: Control) -> None:
    quorum = await control.ask("POST", "/faults", {"fault": "no-quorum"}, status=201)
    limited = await control.ask("POST", "/faults", {"fault": "403:GET:/version;count=1"}, status=201)
    assert await control.ask("GET", "/faults") == [quorum, limited]
    assert [(await api.get("/version")).status for _ in range(2)] == [403, 200]
    assert await control.ask("GET", "/faults") == [quorum]
    refused = asyncio.ensure_future(api.post("/pools", poolid="x"))
    async with asyncio.timeout(30):
        while not refused.done():  # it waits ten simulated seconds for a lock
            await control.ask("POST", "/advance", {"seconds": 1})
    assert refused.result().reason == "create pool failed: cfs-lock 'file-user_cfg' error: no quorum!"
    assert await control.ask("DELETE", f"/faults/{quorum['id']}") == []
    assert (await api.post("/pools", poolid="x")).status == 200
    gone = await control.ask("DELETE", f"/faults/{quorum['id']}", status=404)
    assert gone["error"] == f"There is no active fault {quorum['id']}. GET /faults lists them."
    await control.ask("POST", "/faults", {"fault": "node-offline:pve2"}, status=201)
    assert await control.ask("DELETE", "/faults") == []
    assert api.cluster.world.nodes["pve2"].online


@pytest.mark.api(faults=["locked:102:backup"])
async def test_a_reset_brings_the_first_world_back_at_the_same_address(api: Api, control: Control) -> None:
    url = api.cluster.url
    await api.clock.advance(5)
    await api.finish_task(await api.delete("/nodes/pve1/qemu/108"))
    assert 108 not in api.cluster.world.guests
    state = await control.ask("POST", "/reset")
    assert (state["url"], state["requests"], state["faults"]) == (url, 0, 1)
    async with open_api(api.cluster) as again:
        config = await again.request("GET", "/nodes/pve1/qemu/102/config")
        assert config.data["lock"] == "backup"
        started = await again.request("POST", "/nodes/pve1/qemu/108/status/start")
        await control.ask("POST", "/advance", {"seconds": 10})
        assert (await again.task(started.data))["exitstatus"] == "OK"


async def test_a_dumped_world_is_loaded_again(api: Api, control: Control) -> None:
    await api.put("/nodes/pve1/qemu/108/config", description="remembered")
    dumped = await control.ask("GET", "/world")
    await control.ask("PUT", "/world", SMALL)
    async with open_api(api.cluster) as small:
        assert [node["node"] for node in (await small.request("GET", "/nodes")).data] == ["solo"]
    await control.ask("PUT", "/world", dumped)
    assert await control.ask("GET", "/world") == dumped
    async with open_api(api.cluster) as again:
        config = (await again.request("GET", "/nodes/pve1/qemu/108/config")).data
        assert config["description"] == "remembered"


@pytest.mark.parametrize(
    ("method", "path", "body", "error"),
    [
        ("POST", "/advance", {"seconds": -1}, "zero or more seconds"),
        ("POST", "/advance", {"seconds": True}, "zero or more seconds"),
        ("POST", "/advance", "no json", "the body is not JSON"),
        ("POST", "/faults", [], "the body is not a JSON object"),
        ("POST", "/faults", {"fault": "no-such-fault"}, "unknown fault 'no-such-fault'"),
        ("POST", "/faults", {"fault": "no-quorum;count=x"}, "invalid literal"),
        ("PUT", "/world", "nodes: []", "length >= 1"),
        (
            "PUT",
            "/world",
            {**SMALL, "guests": [{"vmid": 100, "type": "qemu", "node": "away"}]},
            "there is no node away",
        ),
    ],
)
async def test_a_mistake_is_refused_and_changes_nothing(
    api: Api, control: Control, method: str, path: str, body: Any, error: str
) -> None:
    before = await control.ask("GET", "/world")
    assert error in (await control.ask(method, path, body, status=400))["error"]
    assert await control.ask("GET", "/world") == before
    assert await control.ask("GET", "/faults") == []


@pytest.mark.parametrize("headers", [{"Host": "evil.example"}, {"Origin": "https://evil.example"}])
async def test_web_pages_are_refused(control: Control, headers: dict[str, str]) -> None:
    refused = await control.ask("POST", "/reset", status=403, **headers)
    assert refused["error"] == "The control API answers programs on this machine, not web pages."


async def test_time_that_passes_on_its_own_is_not_turned() -> None:
    async with simulated_api(clock=RealClock()) as api, controlled(api.cluster) as control:
        refused = await control.ask("POST", "/advance", {"seconds": 1}, status=409)
        assert "--speed 0" in refused["error"]
