"""A node that loses its power, and what a cluster without quorum refuses: the texts and times of a real one."""

from __future__ import annotations

import asyncio

import pytest

from pve_simulator.api_client import Api, Reply
from pve_simulator.world import HaResource

DENIED = "unable to open file '/etc/pve/nodes/pve1/qemu-server/108.conf.tmp.{pid}' - Permission denied"
VM = "/nodes/pve1/qemu/108"


async def timed(api: Api, method: str, path: str, **params: str) -> tuple[float, Reply]:
    """The answer, and after how many simulated seconds it came."""
    started = api.clock.now()
    asked = asyncio.ensure_future(api.request(method, path, data=params or None))
    while not (await asyncio.wait({asked}, timeout=0.02))[0]:
        await api.clock.advance(0.1)
    return api.clock.now() - started, asked.result()


async def guests_of(api: Api, node: str) -> list[dict[str, object]]:
    return [row for row in (await api.get("/cluster/resources", type="vm")).data if row["node"] == node]


@pytest.mark.parametrize(("after", "seconds", "reason"), [(0, 30, "Connection timed out"), (60, 3, "No route to host")])
async def test_a_dead_node_costs_thirty_seconds_at_first_and_three_later(
    api: Api, after: float, seconds: float, reason: str
) -> None:
    api.cluster.faults.add("node-dead:pve3")
    await api.clock.advance(after)
    waited, reply = await timed(api, "GET", "/nodes/pve3/status")
    assert (reply.status, reply.reason, reply.text) == (595, reason, "")
    assert waited == pytest.approx(seconds, abs=0.5)


async def test_the_last_reports_of_a_dead_node_are_shown_for_three_minutes(api: Api) -> None:
    before = {row["vmid"]: (row["name"], row["status"]) for row in await guests_of(api, "pve3")}
    fault = api.cluster.faults.add("node-dead:pve3")
    await api.clock.advance(170)
    assert {row["vmid"]: (row["name"], row["status"]) for row in await guests_of(api, "pve3")} == before
    await api.clock.advance(20)
    rows = await guests_of(api, "pve3")
    assert {row["vmid"] for row in rows} == before.keys()
    assert all(row["status"] == "unknown" and not row.keys() & {"name", "template", "uptime"} for row in rows)
    api.cluster.faults.remove(fault)
    assert {row["status"] for row in await guests_of(api, "pve3")} == {"unknown"}  # until the next report
    await api.clock.advance(11)
    assert {row["name"] for row in await guests_of(api, "pve3")} == {name for name, _ in before.values()}


async def test_guests_and_tasks_end_with_their_node(api: Api) -> None:
    upid = (await api.post("/nodes/pve3/vzdump", all=1, storage="local")).data
    await api.clock.advance(0.5)
    fault = api.cluster.faults.add("node-dead:pve3")
    assert [guest.vmid for guest in api.cluster.world.guests_on("pve3") if guest.running] == []
    api.cluster.faults.remove(fault)
    assert (await api.task(upid))["exitstatus"] == "unexpected status"


@pytest.mark.parametrize(
    ("method", "path", "params", "seconds", "text"),
    [
        ("POST", f"{VM}/status/start", {}, 0, "cluster not ready - no quorum?"),
        ("POST", "/nodes/pve1/qemu", {"vmid": "150", "memory": "64"}, 0, "cluster not ready - no quorum?"),
        ("GET", f"{VM}/migrate", {}, 0, "cluster not ready - no quorum?"),
        ("POST", "/cluster/ha/resources", {"sid": "vm:108"}, 0, "cluster not ready - no quorum?"),
        ("PUT", f"{VM}/config", {"description": "x"}, 0, DENIED),
        ("PUT", "/nodes/pve1/lxc/999/config", {"description": "x"}, 0,
         "Configuration file 'nodes/pve1/lxc/999.conf' does not exist"),
        ("POST", "/cluster/ha/resources/vm:101/migrate", {"node": "pve2"}, 10,
         "cfs-lock 'domain-ha' error: no quorum!"),
        ("POST", "/access/users", {"userid": "nq@pve"}, 10,
         "create user failed: cfs-lock 'file-user_cfg' error: no quorum!"),
        ("POST", "/pools", {"poolid": "nq"}, 10, "create pool failed: cfs-lock 'file-user_cfg' error: no quorum!"),
        ("PUT", "/cluster/options", {"description": "x"}, 10, "cfs-lock 'file-datacenter_cfg' error: no quorum!"),
    ],
)  # fmt: skip
async def test_without_quorum_each_change_is_refused_in_its_own_words(
    api: Api, method: str, path: str, params: dict[str, str], seconds: float, text: str
) -> None:
    api.cluster.world.ha["vm:101"] = HaResource("vm:101")
    api.cluster.faults.add("no-quorum")
    waited, reply = await timed(api, method, path, **params)
    expected = text.format(pid=api.cluster.world.nodes["pve1"].last_pid)
    assert (reply.status, reply.reason) == (500, expected)
    assert waited == pytest.approx(seconds, abs=0.5)


@pytest.mark.parametrize(
    ("method", "path", "params", "exitstatus"),
    [
        ("POST", f"{VM}/snapshot", {"snapname": "nq"}, DENIED),
        ("DELETE", VM, {}, DENIED),
        ("POST", "/nodes/pve1/vzdump", {"vmid": "108", "storage": "local"}, "job errors"),
    ],
)
async def test_without_quorum_some_changes_fail_only_in_their_task(
    api: Api, method: str, path: str, params: dict[str, str], exitstatus: str
) -> None:
    api.cluster.faults.add("no-quorum")
    reply = await api.request(method, path, data=params or None)
    ended = await api.finish_task(reply)
    assert ended == exitstatus.format(pid=api.cluster.world.nodes["pve1"].last_pid)
    assert "Permission denied" in (await api.log(reply.data)).text
    assert 108 in api.cluster.world.guests


async def test_a_deletion_without_quorum_waits_for_the_lock_of_a_shared_storage(api: Api) -> None:
    shared = next(storage for storage in api.cluster.world.storages.values() if storage.shared)
    guest = api.cluster.world.guests[108]
    guest.config = {
        key: str(value).replace("local-lvm:", f"{shared.id}:108/") if key.startswith("scsi") else value
        for key, value in guest.config.items()
    }
    api.cluster.faults.add("no-quorum")
    reply = await api.request("DELETE", VM)
    await api.clock.advance(9)
    assert (await api.task(reply.data))["status"] == "running"
    await api.finish_task(reply)
    lines = [row["t"] for row in (await api.log(reply.data)).data]
    assert lines.count(f"trying to acquire cfs lock 'storage-{shared.id}' ...") == 6
    assert lines[6].endswith(f", check manually: cfs-lock 'storage-{shared.id}' error: no quorum!")


async def test_a_running_guest_can_be_stopped_without_quorum(api: Api) -> None:
    guest = next(guest for guest in api.cluster.world.guests_on("pve1", "qemu") if guest.running)
    api.cluster.faults.add("no-quorum")
    assert await api.finish_task(await api.post(f"/nodes/pve1/qemu/{guest.vmid}/status/stop")) == "OK"
    assert not guest.running
