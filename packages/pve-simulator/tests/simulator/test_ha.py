"""High availability: resources, rules, and a manager that carries out requested states."""

from __future__ import annotations

import pytest

from pve_simulator.api_client import Api
from pve_simulator.cluster.ha_manager import HaManager
from simulator.consistency import at_rest

RESOURCES = "/cluster/ha/resources"
RULES = "/cluster/ha/rules"
MANAGED = "/nodes/pve1/qemu/101"  # running, on shared storage, under HA from the start


async def state_of(api: Api, sid: str) -> str:
    rows = (await api.get("/cluster/ha/status/current")).data
    return next(str(row["state"]) for row in rows if row.get("sid") == sid)


async def test_a_new_resource_is_queued_and_then_started(api: Api) -> None:
    assert (await api.post(RESOURCES, sid="vm:108", state="started")).data is None
    assert await state_of(api, "vm:108") == "queued"
    listed = (await api.get(f"{RESOURCES}/vm:108")).data
    assert set(listed) == {"sid", "type", "state", "digest"}
    await api.clock.advance(30)
    assert await state_of(api, "vm:108") == "started"
    assert (await api.get("/nodes/pve1/qemu/108/status/current")).data["status"] == "running"
    tasks = (await api.get("/nodes/pve1/tasks", vmid=108, limit=1)).data
    assert (tasks[0]["type"], tasks[0]["user"]) == ("qmstart", "root@pam")


async def test_power_actions_become_wishes(api: Api) -> None:
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


async def test_a_guest_that_falls_over_is_started_again(api: Api) -> None:
    api.cluster.world.guests[101].stop_running()
    await api.clock.advance(30)
    assert api.cluster.world.guests[101].running


async def test_migration_of_a_managed_guest_is_a_request(api: Api) -> None:
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


async def node_of(api: Api, sid: str) -> tuple[str, str]:
    rows = (await api.get("/cluster/ha/status/current")).data
    return next((str(row["node"]), str(row["state"])) for row in rows if row.get("sid") == sid)


async def places(api: Api, sid: str, seconds: int) -> list[tuple[str, str]]:
    """Where the manager shows a resource and in which state, each once and in order."""
    seen = [await node_of(api, sid)]
    for _ in range(seconds):
        await api.clock.advance(1)
        if (now := await node_of(api, sid)) != seen[-1]:
            seen.append(now)
    return seen


@pytest.mark.parametrize("strict", [0, 1])
async def test_a_resource_moved_against_a_rule_about_nodes_is_moved_and_then_moved_back(api: Api, strict: int) -> None:
    await api.post(RULES, rule="pin", type="node-affinity", resources="vm:101", nodes="pve1", strict=strict)
    preconditions = (await api.get(f"{MANAGED}/migrate", target="pve2")).data
    assert not any(preconditions["not_allowed_nodes"].values())
    assert "pve2" in preconditions["allowed_nodes"]
    answer = (await api.post(f"{RESOURCES}/vm:101/migrate", node="pve2")).data
    assert answer == {"sid": "vm:101", "requested-node": "pve2"}
    assert await places(api, "vm:101", 90) == [
        ("pve1", "started"), ("pve1", "migrate"), ("pve2", "migrate"), ("pve1", "migrate"),
        ("pve1", "starting"), ("pve1", "started"),
    ]  # fmt: skip
    assert not list(at_rest(api.cluster.world))


async def test_a_node_in_maintenance_loses_its_resources_until_the_maintenance_ends(api: Api) -> None:
    manager = api.cluster.world.part(HaManager)
    manager.request_maintenance("pve1", enable=True)
    assert await places(api, "vm:101", 60) == [
        ("pve1", "started"), ("pve1", "migrate"), ("pve2", "migrate"), ("pve2", "starting"), ("pve2", "started"),
    ]  # fmt: skip
    rows = {row["id"]: row for row in (await api.get("/cluster/ha/status/current")).data}
    assert "(maintenance mode" in rows["lrm:pve1"]["status"]
    assert "maintenance" not in rows["lrm:pve2"]["status"]
    status = (await api.get("/cluster/ha/status/manager_status")).data
    assert status["manager_status"]["node_status"]["pve1"] == "maintenance"
    await api.post(f"{RESOURCES}/vm:101/migrate", node="pve1")
    await api.clock.advance(90)
    assert await node_of(api, "vm:101") == ("pve2", "started")
    manager.request_maintenance("pve1", enable=False)
    await api.clock.advance(90)
    assert await node_of(api, "vm:101") == ("pve1", "started")
    assert not list(at_rest(api.cluster.world))


async def test_a_container_is_down_from_its_shutdown_until_the_other_node_starts_it(api: Api) -> None:
    await api.post(RESOURCES, sid="ct:201")
    await api.clock.advance(30)
    reply = await api.post("/nodes/pve1/lxc/201/migrate", target="pve2", restart=1)
    await api.clock.advance(1)
    assert (await api.task(reply.data))["exitstatus"] == "OK"
    guest = api.cluster.world.guests[201]
    assert (guest.node, guest.running) == ("pve1", True)
    while guest.node == "pve1":
        await api.clock.advance(1)
    assert not guest.running
    assert await node_of(api, "ct:201") == ("pve2", "migrate")
    seen = await places(api, "ct:201", 40)
    assert seen == [("pve2", "migrate"), ("pve2", "starting"), ("pve2", "started")]
    assert guest.running


async def test_a_container_removed_from_ha_on_its_way_stays_stopped(api: Api) -> None:
    await api.post(RESOURCES, sid="ct:201")
    await api.clock.advance(30)
    await api.post(f"{RESOURCES}/ct:201/migrate", node="pve2")
    guest = api.cluster.world.guests[201]
    while guest.node == "pve1":
        await api.clock.advance(1)
    await api.delete(f"{RESOURCES}/ct:201")
    rows = {row["id"]: row for row in (await api.get("/cluster/ha/status/current")).data}
    assert rows["service:ct:201"]["state"] == "deleting"
    assert "request_state" not in rows["service:ct:201"]
    await api.clock.advance(60)
    assert (guest.node, guest.running) == ("pve2", False)


@pytest.mark.api(faults=["task-fails:qmstart:no such bridge"])
async def test_a_start_that_fails_again_and_again_ends_in_error(api: Api) -> None:
    """Twice where it is, and after an attempt to move it elsewhere again."""
    await api.post(RESOURCES, sid="vm:108", max_restart=1)
    assert [state for _, state in await places(api, "vm:108", 90)] == [
        "queued", "starting", "migrate", "starting", "error",
    ]  # fmt: skip
    reply = await api.put(f"{RESOURCES}/vm:108", state="started")
    assert reply.reason == "service 'vm:108' in error state, must be disabled and fixed first"
    assert (await api.put(f"{RESOURCES}/vm:108", state="disabled")).data is None
    await api.clock.advance(30)
    assert await state_of(api, "vm:108") == "disabled"


async def test_a_guest_of_a_dead_node_is_recovered_elsewhere(api: Api) -> None:
    api.cluster.faults.set_online("pve1", online=False)
    await api.clock.advance(10)
    assert await state_of(api, "vm:101") == "fence"
    await api.clock.advance(120)
    guest = api.cluster.world.guests[101]
    assert guest.node in ("pve2", "pve3")
    assert guest.running
    assert not list(at_rest(api.cluster.world))


async def test_ignored_resources_are_left_alone(api: Api) -> None:
    await api.put(f"{RESOURCES}/vm:101", state="ignored")
    assert ":qmstop:101:" in (await api.post(f"{MANAGED}/status/stop")).data
    await api.clock.advance(60)
    assert not api.cluster.world.guests[101].running
    assert await state_of(api, "vm:101") == "ignored"


async def test_unknown_resources(api: Api) -> None:
    assert (await api.get(f"{RESOURCES}/vm:999")).reason == "no such resource 'vm:999'"
    assert (await api.delete(f"{RESOURCES}/vm:100")).reason == "cannot delete service 'vm:100', not HA managed!"
    assert (await api.put(f"{RESOURCES}/vm:100", comment="x")).reason == (
        "update resources config failed: no such resource 'vm:100'"
    )


async def test_a_deleted_resource_leaves_the_guest_as_it_is(api: Api) -> None:
    assert (await api.delete(f"{RESOURCES}/vm:101")).data is None
    assert (await api.get(RESOURCES)).data == []
    assert (await api.get(f"{MANAGED}/status/current")).data["ha"] == {"managed": 0}
    assert ":qmshutdown:101:" in (await api.post(f"{MANAGED}/status/shutdown")).data


async def test_a_node_rule_brings_a_resource_to_its_node(api: Api) -> None:
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


async def test_resources_that_must_be_apart_block_each_other(api: Api) -> None:
    await api.post(RESOURCES, sid="ct:203", state="started")
    rule = {"rule": "apart", "type": "resource-affinity", "affinity": "negative"}
    assert (await api.post(RULES, resources="vm:101,ct:203", **rule)).data is None
    answer = (await api.post(f"{RESOURCES}/vm:101/migrate", node="pve2")).data
    assert answer["blocking-resources"] == [{"sid": "ct:203", "cause": "resource-affinity"}]
    preconditions = (await api.get(f"{MANAGED}/migrate")).data
    assert "pve2" not in preconditions["allowed_nodes"]
    assert preconditions["not_allowed_nodes"]["pve2"]["blocking-ha-resources"][0]["sid"] == "ct:203"
    reply = await api.post(f"{MANAGED}/migrate", target="pve2", online=1)
    assert await api.finish_task(reply) == "command 'ha-manager migrate vm:101 pve2' failed: exit code 255"
    assert api.cluster.world.guests[101].node == "pve1"


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
async def test_refused_rules(api: Api, options: dict[str, str], text: str) -> None:
    reply = await api.post(RULES, rule="r1", **options)
    assert (reply.status, reply.reason) == (500, text)


async def test_groups_are_history_in_pve_9(api: Api) -> None:
    assert (await api.get("/cluster/ha/groups")).reason == (
        "cannot index groups: ha groups have been migrated to rules"
    )
    assert (await api.get("/cluster/ha/groups/g1")).reason == (
        "cannot read group: ha groups have been migrated to rules"
    )
    assert (await api.post(RESOURCES, sid="vm:108", group="g1")).reason == (
        "invalid parameter 'group': ha groups have been migrated to rules"
    )


@pytest.mark.api(version="8.4.14")
async def test_groups_work_in_pve_8(api: Api) -> None:
    assert (await api.post("/cluster/ha/groups", group="g1", nodes="pve2", restricted=1)).data is None
    assert (await api.get("/cluster/ha/groups/g1")).data["nodes"] == "pve2"
    assert (await api.put(f"{RESOURCES}/vm:101", group="nope")).reason == "HA group 'nope' does not exist"
    assert (await api.put(f"{RESOURCES}/vm:101", group="g1")).data is None
    await api.clock.advance(90)
    assert api.cluster.world.guests[101].node == "pve2"
    assert (await api.delete("/cluster/ha/groups/g1")).status == 500
    assert (await api.get(RULES)).status == 501


async def test_the_status_shows_the_manager_at_work(api: Api) -> None:
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


async def test_a_disarmed_manager_does_nothing(api: Api) -> None:
    await api.post("/cluster/ha/status/disarm-ha", **{"resource-mode": "freeze"})
    api.cluster.world.guests[101].stop_running()
    await api.clock.advance(60)
    assert not api.cluster.world.guests[101].running
    await api.post("/cluster/ha/status/arm-ha")
    await api.clock.advance(60)
    assert api.cluster.world.guests[101].running


async def test_a_purged_guest_leaves_its_rules(api: Api) -> None:
    await api.post(RESOURCES, sid="vm:108", state="stopped")
    await api.post(RULES, rule="r1", type="node-affinity", resources="vm:101,vm:108", nodes="pve1")
    used = await api.delete("/nodes/pve1/qemu/108")
    assert used.reason == "unable to remove VM 108 - used in HA resources and purge parameter not set."
    assert await api.finish_task(await api.delete("/nodes/pve1/qemu/108?purge=1")) == "OK"
    assert (await api.get(f"{RULES}/r1")).data["resources"] == "vm:101"
    assert [row["sid"] for row in (await api.get(RESOURCES)).data] == ["vm:101"]
