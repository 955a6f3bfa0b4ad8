"""The inventory under concurrency: shared reads, canceled readers, changes that come in between."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from pve_simulator.clock import ManualClock
from pve_simulator.simulator import SimulatedCluster
from quorate.app import simulated_cluster
from quorate.pve.cluster import Cluster
from quorate.pve.inventory import Resource
from tests.rigs.mcp_session import DrivenTime

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def inventory_of(**simulator):
    clock = ManualClock()
    async with SimulatedCluster(clock=clock, auth_delay=0.0, **simulator) as sim:
        cluster = Cluster("test", simulated_cluster(sim).connection, clock=DrivenTime(clock))
        try:
            yield cluster.inventory, sim, clock
        finally:
            await cluster.close()


async def asked(sim, times):
    while sim.requests.count(("GET", "/cluster/resources")) < times:
        await asyncio.sleep(0)


async def test_a_cancelled_reader_leaves_nothing_old_behind():
    async with inventory_of(faults=["latency:1;count=1"]) as (inventory, sim, clock):
        reader = asyncio.create_task(inventory.rows())
        await asked(sim, 1)
        reader.cancel()
        await clock.advance(600)
        vmid = next(iter(sim.world.guests))
        sim.world.remove_guest(sim.world.guests[vmid])
        assert vmid not in {row.vmid for row in await inventory.guests()}


async def test_a_read_that_began_before_a_change_does_not_count_after_it():
    async with inventory_of(faults=["latency:1;count=1"]) as (inventory, sim, clock):
        reader = asyncio.create_task(inventory.rows())
        await asked(sim, 1)
        inventory.forget()
        await clock.advance(1.5)
        await reader
        await inventory.rows()
        assert sim.requests.count(("GET", "/cluster/resources")) == 2


async def test_one_cancelled_caller_does_not_fail_the_others():
    async with inventory_of(faults=["latency:1;count=1"]) as (inventory, sim, clock):
        first, second = asyncio.create_task(inventory.rows()), asyncio.create_task(inventory.rows())
        await asked(sim, 1)
        first.cancel()
        await clock.advance(1.5)
        assert await second
        assert sim.requests.count(("GET", "/cluster/resources")) == 1


async def test_a_guest_that_leaves_while_its_node_is_asked_is_not_on_it():
    """A container that moves is stopped first: its node no longer lists it, and the view still calls it running."""
    async with inventory_of(faults=["latency:1:GET:/nodes/pve3/lxc;count=1"]) as (inventory, sim, clock):
        moving = next(guest for guest in sim.world.guests.values() if guest.node == "pve3" and guest.kind == "lxc")
        reader = asyncio.create_task(inventory.fresh_guests("pve3"))
        while ("GET", "/nodes/pve3/lxc") not in sim.requests:
            await asyncio.sleep(0)
        moving.node = "pve1"
        await clock.advance(1.5)
        there = {row.vmid for row in await reader}
        assert there
        assert moving.vmid not in there
        assert moving.vmid in {row.vmid for row in await inventory.fresh_guests("pve1")}


async def test_guests_of_a_node_that_does_not_answer_stay_as_the_cluster_knows_them():
    async with inventory_of(faults=["500:no reply:GET:/nodes/pve3/qemu"]) as (inventory, sim, _):
        there = {row.vmid for row in await inventory.fresh_guests("pve3")}
        assert there == {guest.vmid for guest in sim.world.guests.values() if guest.node == "pve3"}


@pytest.mark.parametrize(
    "field", ["node", "status", "name", "template", "pool", "cpu", "maxmem", "disk", "plugintype", "content", "shared"]
)
async def test_a_null_counts_as_absent_and_spoils_no_other_row(field):
    async with inventory_of() as (inventory, sim, _):
        whole = await inventory.rows()
        sim.faults.add(f"null:{field}:GET:/cluster/resources")
        inventory.forget()
        now = await inventory.rows()
        changed = [
            (old, new) for old, new in zip(whole, now, strict=True) if getattr(old, field) != getattr(new, field)
        ]
        assert len(changed) <= 1  # none, if it was the default that was null
        assert all(getattr(new, field) == getattr(Resource(type="", id=""), field) for _, new in changed)
