"""One task for many guests, of a node or of the cluster."""

from __future__ import annotations

import pytest

from pve_simulator.api_client import Api
from simulator.consistency import at_rest


async def texts(api: Api, upid: str) -> list[str]:
    return [line["t"] for line in (await api.log(upid, limit=0)).data]


async def test_startall_starts_what_starts_with_the_node(api: Api) -> None:
    nothing = await api.post("/nodes/pve1/startall", vms="108")
    assert ":startall::" in nothing.data
    assert await api.finish_task(nothing) == "OK"
    assert not api.cluster.world.guests[108].running
    assert await api.finish_task(await api.post("/nodes/pve1/startall", vms="108", force=1)) == "OK"
    assert api.cluster.world.guests[108].running


async def test_stopall_goes_backwards_through_the_start_order(api: Api) -> None:
    reply = await api.post("/nodes/pve1/stopall")
    assert await api.finish_task(reply, 600) == "OK"
    guests = api.cluster.world.guests_on("pve1")
    assert not any(guest.running for guest in guests)
    stopped = [line for line in await texts(api, reply.data) if line.startswith("Stopping")]
    assert stopped[-1].startswith("Stopping VM 100 ")
    assert not list(at_rest(api.cluster.world))


async def test_suspendall_is_for_vms(api: Api) -> None:
    reply = await api.post("/nodes/pve2/suspendall", vms="104,203")
    assert await api.finish_task(reply) == "WARNINGS: 1"
    assert api.cluster.world.guests[104].lock == "suspended"
    assert api.cluster.world.guests[203].running


async def test_migrateall_empties_a_node(api: Api) -> None:
    local = await api.post("/nodes/pve3/migrateall", target="pve3")
    assert local.errors == {"target": "target is local node."}
    reply = await api.post("/nodes/pve3/migrateall", target="pve1", **{"with-local-disks": 1})
    assert await api.finish_task(reply, 900) == "OK"
    assert not api.cluster.world.guests_on("pve3")
    assert not list(at_rest(api.cluster.world))


async def test_the_cluster_starts_guests_wherever_they_are(api: Api) -> None:
    reply = await api.request("POST", "/cluster/bulk-action/guest/start", json={"vms": [107, 108, 206, 100]})
    assert ":bulk-start::" in reply.data
    assert await api.finish_task(reply) == "WARNINGS: 1"
    assert all(api.cluster.world.guests[vmid].running for vmid in (107, 108, 206))
    assert "Starting guests: 107, 108, 206, 100" in await texts(api, reply.data)


@pytest.mark.api(faults=["locked:108:backup"])
async def test_a_bulk_action_fails_if_one_guest_does(api: Api) -> None:
    reply = await api.request("POST", "/cluster/bulk-action/guest/start", json={"vms": [107, 108]})
    assert await api.finish_task(reply) == "Some guests failed to start: 108"
    assert "WARN: Starting VM 108 failed: VM is locked (backup)" in await texts(api, reply.data)


async def test_bulk_migration_and_shutdown(api: Api) -> None:
    params = {"vms": [204, 105], "target": "pve1", "online": 1, "with-local-disks": 1}
    reply = await api.request("POST", "/cluster/bulk-action/guest/migrate", json=params)
    assert await api.finish_task(reply, 300) == "OK"
    guests = api.cluster.world.guests
    assert (guests[204].node, guests[105].node) == ("pve1", "pve1")
    down = await api.request("POST", "/cluster/bulk-action/guest/shutdown", json={"vms": [204, 105]})
    assert await api.finish_task(down, 300) == "OK"
    assert not guests[204].running
    assert not guests[105].running


async def test_a_privilege_is_needed_on_every_guest(api: Api) -> None:
    alice = api.as_token("alice@pve!ci")
    everything = await alice.post("/cluster/bulk-action/guest/start")
    assert everything.reason == "Permission check failed (/, VM.PowerMgmt)"
    refused = await alice.post("/nodes/pve1/startall", vms="100")
    assert refused.reason == "Permission check failed (/vms/100, VM.PowerMgmt)"
