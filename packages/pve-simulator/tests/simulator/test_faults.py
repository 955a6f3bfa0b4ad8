"""Injected faults, nodes that are down, and a cluster without quorum."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest

from pve_simulator.api_client import Api, simulated_api
from pve_simulator.clock import ManualClock
from pve_simulator.faults import parse_fault


@pytest.mark.api(faults=["drop:before:POST:/nodes/*/status/*;count=1"])
async def test_a_dropped_request_is_never_handled(api: Api) -> None:
    with pytest.raises(aiohttp.ClientError):
        await api.post("/nodes/pve1/qemu/108/status/start")
    assert api.cluster.world.tasks.active() == []
    assert (await api.post("/nodes/pve1/qemu/108/status/start")).status == 200


@pytest.mark.api(faults=["drop:after:POST:/nodes/*/qemu/*/status/*"])
async def test_a_request_whose_answer_is_lost_was_handled(api: Api) -> None:
    with pytest.raises(aiohttp.ClientError):
        await api.post("/nodes/pve1/qemu/108/status/start")
    assert len(api.cluster.world.tasks.active()) == 1
    assert (await api.get("/version")).status == 200


@pytest.mark.api(faults=["drop:mid:GET:/cluster/resources"])
async def test_a_body_can_end_in_the_middle(api: Api) -> None:
    with pytest.raises(aiohttp.ClientPayloadError):
        await api.get("/cluster/resources")


@pytest.mark.api(faults=["596:after:POST:/pools"])
async def test_a_node_may_do_the_work_although_the_proxy_has_given_up_on_it(api: Api):
    reply = await api.post("/pools", poolid="media")
    assert (reply.status, reply.reason, reply.text) == (596, "Connection timed out", "")
    assert "media" in [pool["poolid"] for pool in (await api.get("/pools")).data]


@pytest.mark.parametrize(
    ("fault", "status", "reason", "text"),
    [
        ("595:GET:/version", 595, "No route to host", ""),
        ("596:GET:/version", 596, "Connection timed out", ""),
        ("401", 401, "Authentication failed!", ""),
    ],
)
async def test_forced_statuses_have_an_empty_body(fault, status, reason, text):
    async with simulated_api(faults=[fault]) as api:
        reply = await api.get("/version")
        assert (reply.status, reply.reason, reply.text) == (status, reason, text)


async def test_a_forced_error_has_the_given_text(api: Api) -> None:
    fault = api.cluster.faults.add("500:got: no luck:GET:/version;count=2")
    assert fault.argument == "got: no luck"
    reply = await api.get("/version")
    assert reply.body == {"data": None, "message": "got: no luck\n"}
    api.cluster.faults.remove(fault)
    assert (await api.get("/version")).status == 200


async def test_latency_passes_on_the_clock() -> None:
    class TellingClock(ManualClock):
        reached: asyncio.Event

        async def sleep(self, seconds: float) -> None:
            self.reached.set()
            await super().sleep(seconds)

    clock = TellingClock()
    async with simulated_api(clock=clock, faults=["latency:30:GET:/version"]) as api:
        reached = clock.reached = asyncio.Event()
        waiting = asyncio.ensure_future(api.get("/version"))
        await reached.wait()
        assert not waiting.done()
        await clock.advance(30)
        assert (await waiting).status == 200


@pytest.mark.api(faults=["task-fails:qmstart:start failed: no memory;count=1"])
async def test_a_fault_makes_a_task_fail_without_an_effect(api: Api) -> None:
    path = "/nodes/pve1/qemu/108/status/start"
    assert await api.finish_task(await api.post(path)) == "start failed: no memory"
    assert not api.cluster.world.guests[108].running
    assert await api.finish_task(await api.post(path)) == "OK"


@pytest.mark.api(faults=["node-offline:pve3"])
async def test_an_offline_node_cannot_be_reached_but_is_still_listed(api: Api) -> None:
    reply = await api.get("/nodes/pve3/status")
    assert (reply.status, reply.reason, reply.text) == (595, "No route to host", "")
    nodes = {row["node"]: row for row in (await api.get("/cluster/resources", type="node")).data}
    assert nodes["pve3"] == {
        "id": "node/pve3", "type": "node", "node": "pve3", "status": "offline", "level": "",
    }  # fmt: skip
    guest = next(row for row in (await api.get("/cluster/resources", type="vm")).data if row["vmid"] == 105)
    assert guest["status"] == "unknown"
    assert "name" not in guest
    status = {row["name"]: row for row in (await api.get("/cluster/status")).data}
    assert (status["homelab"]["quorate"], status["pve3"]["online"]) == (1, 0)


@pytest.mark.api(faults=["node-offline:pve2", "node-offline:pve3"])
async def test_losing_most_nodes_is_losing_quorum(api: Api) -> None:
    reply = await api.post("/nodes/pve1/qemu/108/status/start")
    assert (reply.status, reply.reason) == (500, "cluster not ready - no quorum?")
    api.cluster.faults.clear()
    assert (await api.post("/nodes/pve1/qemu/108/status/start")).status == 200


@pytest.mark.api(faults=["no-quorum"])
async def test_without_quorum_reads_still_work(api: Api) -> None:
    assert (await api.get("/cluster/status")).data[0]["quorate"] == 0
    assert (await api.post("/nodes/pve1/qemu/108/status/start")).status == 500
    assert (await api.as_nobody().post("/access/ticket", username="root@pam", password="simulated-root")).data


async def test_a_probability_is_repeatable() -> None:
    async def pattern() -> list[int]:
        async with simulated_api(faults=["500:unlucky;p=0.5"], seed=7) as api:
            return [(await api.get("/version")).status for _ in range(12)]

    first, second = await pattern(), await pattern()
    assert first == second
    assert set(first) == {200, 500}


@pytest.mark.parametrize("text", ["nonsense", "latency:soon", "drop:sideways", "locked:abc", "latency:1;often=2"])
def test_an_unknown_fault_is_an_error(text):
    with pytest.raises(ValueError, match=r"fault|option"):
        parse_fault(text)
