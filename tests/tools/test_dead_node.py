"""A node that loses its power: its guests keep their names, and nothing waits for it twice."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from pve_simulator.clock import RealClock
from pve_simulator.simulator import SimulatedCluster
from quorate.app import simulated_cluster
from quorate.problems import NodeOffline
from quorate.pve.client import PveClient
from quorate.pve.connection import Limits
from tests.rigs.mcp_session import rig

pytestmark = pytest.mark.anyio


async def test_guests_of_a_dead_node_keep_their_names_and_are_not_said_to_run(tmp_path):
    async with rig(tmp_path, in_memory=True) as quorate:
        before = {row["vmid"]: row for row in await quorate.rows("guest_list", node="pve3")}
        quorate.sim.faults.add("node-dead:pve3")
        for seconds, ago in ((60, "1m"), (300, "6m")):  # PVE shows them as running at first, then without a name
            await quorate.clock.advance(seconds)
            facts = await quorate.facts("guest_list", node="pve3")
            assert facts["offline"] == [f"pve3 is offline, last seen {ago} ago: its guests are as they were then"]
            rows = {row["vmid"]: row for row in await quorate.rows("guest_list", node="pve3")}
            assert {vmid: row["name"] for vmid, row in rows.items()} == {
                vmid: row["name"] for vmid, row in before.items()
            }
            for vmid, row in rows.items():
                was = before[vmid]["status"]
                assert row["status"] == ("template" if was == "template" else f"unknown, was {was}")


async def test_a_guest_of_a_dead_node_is_described_by_what_is_known(tmp_path):
    async with rig(tmp_path, in_memory=True) as quorate:
        before = await quorate.facts("guest_get", guest=105)
        quorate.sim.faults.add("node-dead:pve3")
        await quorate.clock.advance(240)
        begun = quorate.clock.now()
        after = await quorate.facts("guest_get", guest=before["name"])
        assert (after["name"], after["status"]) == (before["name"], f"unknown, was {before['status']}")
        assert after["not_read"]
        assert quorate.clock.now() - begun < 1


async def test_a_dead_node_is_waited_for_once(tmp_path):
    async with rig(tmp_path, in_memory=True) as quorate:
        await quorate.facts("cluster_status")
        fault = quorate.sim.faults.add("node-dead:pve3")
        await quorate.clock.advance(60)
        begun = quorate.clock.now()
        for _ in range(4):
            assert "pve3" in await quorate.refusal("api_call", method="GET", path="/nodes/pve3/storage")
        assert quorate.clock.now() - begun < 5
        quorate.sim.faults.remove(fault)
        await quorate.clock.advance(5)
        await quorate.facts("api_call", method="GET", path="/nodes/pve3/storage")


async def test_the_others_are_asked_about_a_node_that_is_silent(tmp_path):
    async with SimulatedCluster(clock=RealClock(), auth_delay=0.0) as sim:
        settings = simulated_cluster(sim)
        client = PveClient(replace(settings.connection, limits=Limits(silence_seconds=0.2)))
        try:
            assert await client.get("/nodes/pve3/version")
            sim.faults.add("node-dead:pve3")
            begun = time.monotonic()
            for _ in range(3):
                with pytest.raises(NodeOffline, match="pve3 is offline"):
                    await client.get("/nodes/pve3/storage")
            assert time.monotonic() - begun < 10  # PVE would have kept it waiting for 30 seconds each time
        finally:
            await client.close()


async def test_a_template_of_a_dead_node_is_not_counted_as_a_guest_of_it(tmp_path):
    async with rig(tmp_path, in_memory=True) as quorate:
        await quorate.facts("cluster_status")
        guests = quorate.sim.world.guests_on("pve3")
        guests[0].stop_running()
        guests[0].config["template"] = 1
        guests[0].touch()
        await quorate.clock.advance(15)
        await quorate.facts("cluster_status")
        quorate.sim.faults.add("node-dead:pve3")
        await quorate.clock.advance(300)
        finding = next(
            row for row in await quorate.rows("cluster_health") if "pve3" in " ".join(map(str, row.values()))
        )
        assert f"{len(guests) - 1} guests are on it" in " ".join(map(str, finding.values()))
