"""High availability: resources, rules, and a manager that carries out requested states."""

from __future__ import annotations

import pytest

from pve_simulator.api_client import Api, run, simulated_api
from simulator.consistency import at_rest

RESOURCES = "/cluster/ha/resources"
RULES = "/cluster/ha/rules"
MANAGED = "/nodes/pve1/qemu/101"  # running, on shared storage, under HA from the start


async def state_of(api: Api, sid: str) -> str:
    rows = (await api.get("/cluster/ha/status/current")).data
    return next(str(row["state"]) for row in rows if row.get("sid") == sid)


def test_a_new_resource_is_queued_and_then_started() -> None:
    async def scenario() -> None:
        async with simulated_api() as api:
            assert (await api.post(RESOURCES, sid="vm:108", state="started")).data is None
            assert await state_of(api, "vm:108") == "queued"
            listed = (await api.get(f"{RESOURCES}/vm:108")).data
            assert set(listed) == {"sid", "type", "state", "digest"}
            await api.clock.advance(30)
            assert await state_of(api, "vm:108") == "started"
            assert (await api.get("/nodes/pve1/qemu/108/status/current")).data["status"] == "running"
            tasks = (await api.get("/nodes/pve1/tasks", vmid=108, limit=1)).data
            assert (tasks[0]["type"], tasks[0]["user"]) == ("qmstart", "root@pam")

    run(scenario())


def test_power_actions_become_wishes() -> None:
    async def scenario() -> None:
        async with simulated_api() as api:
            reply = await api.post(f"{MANAGED}/status/shutdown")
            assert ":hastop:101:" in reply.data
            await api.clock.advance(1)
            assert (await api.task(reply.data))["exitstatus"] == "OK"
            assert (await api.get(f"{MANAGED}/status/current")).data["status"] == "running"
            await api.clock.advance(60)
            assert (await api.get(f"{MANAGED}/status/current")).data["status"] == "stopped"
            assert await state_of(api, "vm:101") == "stopped"
            assert ":hastart:101:" in (await api.post(f"{MANAGED}/status/start")).data
            await api.clock.advance(60)
            assert (await api.get(f"{MANAGED}/status/current")).data["status"] == "running"

    run(scenario())


def test_a_guest_that_falls_over_is_started_again() -> None:
    async def scenario() -> None:
        async with simulated_api() as api:
            api.cluster.world.guests[101].stop_running()
            await api.clock.advance(30)
            assert api.cluster.world.guests[101].running

    run(scenario())


def test_migration_of_a_managed_guest_is_a_request() -> None:
    async def scenario() -> None:
        async with simulated_api() as api:
            reply = await api.post(f"{MANAGED}/migrate", target="pve2", online=1)
            assert ":hamigrate:101:" in reply.data
            await api.clock.advance(1)
            assert (await api.task(reply.data))["exitstatus"] == "OK"
            assert api.cluster.world.guests[101].node == "pve1"
            await api.clock.advance(60)
            assert api.cluster.world.guests[101].node == "pve2"
            assert api.cluster.world.guests[101].running
            moved = (await api.post(f"{RESOURCES}/vm:101/relocate", node="pve3")).data
            assert moved == {"sid": "vm:101", "requested-node": "pve3"}
            await api.clock.advance(120)
            assert api.cluster.world.guests[101].node == "pve3"
            assert api.cluster.world.guests[101].running
            assert not list(at_rest(api.cluster.world))

    run(scenario())


def test_a_start_that_fails_again_and_again_ends_in_error() -> None:
    async def scenario() -> None:
        async with simulated_api(faults=["task-fails:qmstart:no such bridge"]) as api:
            await api.post(RESOURCES, sid="vm:108", max_restart=1)
            await api.clock.advance(60)
            assert await state_of(api, "vm:108") == "error"
            reply = await api.put(f"{RESOURCES}/vm:108", state="started")
            assert reply.reason == "service 'vm:108' in error state, must be disabled and fixed first"
            assert (await api.put(f"{RESOURCES}/vm:108", state="disabled")).data is None
            await api.clock.advance(30)
            assert await state_of(api, "vm:108") == "disabled"

    run(scenario())


def test_a_guest_of_a_dead_node_is_recovered_elsewhere() -> None:
    async def scenario() -> None:
        async with simulated_api() as api:
            api.cluster.faults.set_online("pve1", online=False)
            await api.clock.advance(10)
            assert await state_of(api, "vm:101") == "fence"
            await api.clock.advance(120)
            guest = api.cluster.world.guests[101]
            assert guest.node in ("pve2", "pve3")
            assert guest.running
            assert not list(at_rest(api.cluster.world))

    run(scenario())


def test_ignored_resources_are_left_alone() -> None:
    async def scenario() -> None:
        async with simulated_api() as api:
            await api.put(f"{RESOURCES}/vm:101", state="ignored")
            assert ":qmstop:101:" in (await api.post(f"{MANAGED}/status/stop")).data
            await api.clock.advance(60)
            assert not api.cluster.world.guests[101].running
            assert await state_of(api, "vm:101") == "ignored"

    run(scenario())


@pytest.mark.parametrize(
    ("sid", "text"),
    [
        ("vm:999", "resource 'vm:999' does not exist in cluster"),
        ("ct:100", "resource 'ct:100' - guest with ID 100 is not a container"),
        ("vm:101", "create resource failed: resource ID 'vm:101' already defined"),
    ],
)
def test_resources_that_cannot_be_made(sid: str, text: str) -> None:
    async def scenario() -> None:
        async with simulated_api() as api:
            reply = await api.post(RESOURCES, sid=sid)
            assert (reply.status, reply.reason) == (500, text)

    run(scenario())


def test_unknown_resources() -> None:
    async def scenario() -> None:
        async with simulated_api() as api:
            assert (await api.get(f"{RESOURCES}/vm:999")).reason == "no such resource 'vm:999'"
            assert (await api.delete(f"{RESOURCES}/vm:100")).reason == "cannot delete service 'vm:100', not HA managed!"
            assert (await api.put(f"{RESOURCES}/vm:100", comment="x")).reason == (
                "update resources config failed: no such resource 'vm:100'"
            )

    run(scenario())


def test_a_deleted_resource_leaves_the_guest_as_it_is() -> None:
    async def scenario() -> None:
        async with simulated_api() as api:
            assert (await api.delete(f"{RESOURCES}/vm:101")).data is None
            assert (await api.get(RESOURCES)).data == []
            assert (await api.get(f"{MANAGED}/status/current")).data["ha"] == {"managed": 0}
            assert ":qmshutdown:101:" in (await api.post(f"{MANAGED}/status/shutdown")).data

    run(scenario())


def test_a_node_rule_brings_a_resource_to_its_node() -> None:
    async def scenario() -> None:
        async with simulated_api() as api:
            options = {"rule": "home", "type": "node-affinity", "resources": "vm:101", "nodes": "pve3:2,pve2:1"}
            assert (await api.post(RULES, **options)).data is None
            rule = (await api.get(f"{RULES}/home")).data
            assert (rule["nodes"], rule["order"]) == ("pve2:1,pve3:2", 1)
            await api.clock.advance(90)
            assert api.cluster.world.guests[101].node == "pve3"
            twice = await api.post(RULES, rule="home2", type="node-affinity", resources="vm:101", nodes="pve1")
            assert (twice.status, twice.reason) == (500, "create ha rule failed: 400 Rule 'home2' is invalid.")
            assert "resource 'vm:101' is already used in another node affinity rule" in twice.body["message"]
            assert (await api.delete(f"{RULES}/home")).data is None
            assert (await api.get(RULES)).data == []

    run(scenario())


def test_resources_that_must_be_apart_block_each_other() -> None:
    async def scenario() -> None:
        async with simulated_api() as api:
            await api.post(RESOURCES, sid="ct:203", state="started")
            rule = {"rule": "apart", "type": "resource-affinity", "affinity": "negative"}
            assert (await api.post(RULES, resources="vm:101,ct:203", **rule)).data is None
            answer = (await api.post(f"{RESOURCES}/vm:101/migrate", node="pve2")).data
            assert answer["blocking-resources"] == [{"sid": "ct:203", "cause": "resource-affinity"}]
            found = (await api.get(f"{MANAGED}/migrate")).data
            assert "pve2" not in found["allowed_nodes"]
            assert found["not_allowed_nodes"]["pve2"]["blocking-ha-resources"][0]["sid"] == "ct:203"
            reply = await api.post(f"{MANAGED}/migrate", target="pve2", online=1)
            assert await api.finish_task(reply) == "command 'ha-manager migrate vm:101 pve2' failed: exit code 255"
            assert api.cluster.world.guests[101].node == "pve1"

    run(scenario())


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"type": "node-affinity", "resources": "vm:100", "nodes": "pve1"},
            "create ha rule failed: cannot use unmanaged resource(s) vm:100.",
        ),
        (
            {"type": "node-affinity", "resources": "vm:101", "nodes": "pve1,moon"},
            "create ha rule failed: cannot use non-existent node(s) moon.",
        ),
    ],
)
def test_rules_that_cannot_be_made(options: dict[str, str], text: str) -> None:
    async def scenario() -> None:
        async with simulated_api() as api:
            reply = await api.post(RULES, rule="r1", **options)
            assert (reply.status, reply.reason) == (500, text)

    run(scenario())


def test_groups_are_history_in_pve_9() -> None:
    async def scenario() -> None:
        async with simulated_api() as api:
            assert (await api.get("/cluster/ha/groups")).reason == (
                "cannot index groups: ha groups have been migrated to rules"
            )
            assert (await api.get("/cluster/ha/groups/g1")).reason == (
                "cannot read group: ha groups have been migrated to rules"
            )
            assert (await api.post(RESOURCES, sid="vm:108", group="g1")).reason == (
                "invalid parameter 'group': ha groups have been migrated to rules"
            )

    run(scenario())


def test_groups_work_in_pve_8() -> None:
    async def scenario() -> None:
        async with simulated_api(version="8.4.14") as api:
            assert (await api.post("/cluster/ha/groups", group="g1", nodes="pve2", restricted=1)).data is None
            assert (await api.get("/cluster/ha/groups/g1")).data["nodes"] == "pve2"
            assert (await api.put(f"{RESOURCES}/vm:101", group="nope")).reason == "HA group 'nope' does not exist"
            assert (await api.put(f"{RESOURCES}/vm:101", group="g1")).data is None
            await api.clock.advance(90)
            assert api.cluster.world.guests[101].node == "pve2"
            assert (await api.delete("/cluster/ha/groups/g1")).status == 500
            assert (await api.get(RULES)).status == 501

    run(scenario())


def test_the_status_shows_the_manager_at_work() -> None:
    async def scenario() -> None:
        async with simulated_api() as api:
            rows = {row["id"]: row for row in (await api.get("/cluster/ha/status/current")).data}
            assert set(rows) == {
                "quorum", "master", "fencing", "lrm:pve1", "lrm:pve2", "lrm:pve3", "service:vm:101",
            }  # fmt: skip
            assert rows["fencing"]["armed-state"] == "armed"
            status = (await api.get("/cluster/ha/status/manager_status")).data
            assert status["manager_status"]["service_status"]["vm:101"]["state"] == "started"
            await api.delete(f"{RESOURCES}/vm:101")
            await api.clock.advance(10)
            rows = {row["id"]: row for row in (await api.get("/cluster/ha/status/current")).data}
            assert set(rows) == {"quorum", "fencing"}
            assert rows["fencing"]["armed-state"] == "standby"

    run(scenario())


def test_a_disarmed_manager_does_nothing() -> None:
    async def scenario() -> None:
        async with simulated_api() as api:
            await api.post("/cluster/ha/status/disarm-ha", **{"resource-mode": "freeze"})
            api.cluster.world.guests[101].stop_running()
            await api.clock.advance(60)
            assert not api.cluster.world.guests[101].running
            await api.post("/cluster/ha/status/arm-ha")
            await api.clock.advance(60)
            assert api.cluster.world.guests[101].running

    run(scenario())


def test_a_purged_guest_leaves_its_rules() -> None:
    async def scenario() -> None:
        async with simulated_api() as api:
            await api.post(RESOURCES, sid="vm:108", state="stopped")
            await api.post(RULES, rule="r1", type="node-affinity", resources="vm:101,vm:108", nodes="pve1")
            used = await api.delete("/nodes/pve1/qemu/108")
            assert used.reason == "unable to remove VM 108 - used in HA resources and purge parameter not set."
            assert await api.finish_task(await api.delete("/nodes/pve1/qemu/108?purge=1")) == "OK"
            assert (await api.get(f"{RULES}/r1")).data["resources"] == "vm:101"
            assert [row["sid"] for row in (await api.get(RESOURCES)).data] == ["vm:101"]

    run(scenario())
