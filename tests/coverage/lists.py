"""Looks at what the product lists and tells, against what the world holds or PVE itself says."""

from __future__ import annotations

from tests.coverage.rows import Done

PAST_TASK = "UPID:pve1:000004CC:13EF7460:6966EB58:vzdump:102:root@pam:"


def cluster_is_told(done: Done) -> None:
    assert done.facts["quorate"] is done.world.quorate
    assert done.facts["nodes"] == f"{len(done.world.nodes)} of {len(done.world.nodes)} online"
    assert sum(done.facts["guests"].values()) == len(done.world.guests)


def nodes_are_listed(done: Done) -> None:
    assert {row["node"]: row["cores"] for row in done.rows} == {n.name: n.cpus for n in done.world.nodes.values()}


def node_is_told(done: Done) -> None:
    node = done.world.nodes[done.given["node"]]
    assert (done.facts["node"], done.facts["kernel"]) == (node.name, node.kernel)
    assert done.facts["guests"]["all"] == len(list(done.world.guests_on(node.name)))


def next_id_is_free(done: Done) -> None:
    vmid = int(done.facts["data"])
    assert vmid == min(set(range(100, 1000)) - set(done.world.guests))


async def task_is_told(done: Done) -> None:
    status = await done.get(f"/nodes/pve1/tasks/{done.given['upid']}/status")
    assert status["exitstatus"] == "OK"
    assert (done.facts["status"], done.facts["task"]) == ("ok", status["upid"])


async def task_log_is_told(done: Done) -> None:
    log = await done.get(f"/nodes/pve1/tasks/{done.given['upid']}/log", limit=500)
    assert done.facts["log"] == [line["t"] for line in log][-done.given.get("limit", 10) :]
    assert done.facts["log"]


async def tasks_are_listed(done: Done) -> None:
    node = done.given.get("node")
    everything = [
        task
        for name in ([node] if node else done.world.nodes)
        for task in await done.get(f"/nodes/{name}/tasks", source="all", limit=500)
        if done.given.get("user") in (None, task["user"].split("!")[0])
        and str(done.given.get("vmid", task["id"])) == task["id"]
    ]  # fmt: skip
    newest = sorted(everything, key=lambda task: -task["starttime"])[: done.given["limit"]]
    assert {row["task"] for row in done.rows} == {task["upid"] for task in newest}
    assert newest


def pool_is_listed(done: Done) -> None:
    pool = done.world.access.pools[done.given["pool"]]
    assert {row["id"] for row in done.rows} == pool.vms | pool.storages


async def usage_is_told(done: Done) -> None:
    """The statistics are those of the points that PVE gives."""
    guest = done.guest() if "vmid" in done.given else None
    kind = f"/{guest.kind}/{guest.vmid}" if guest else ""
    path = f"/nodes/{guest.node if guest else done.given['node']}{kind}/rrddata"
    query = {"timeframe": done.given["timeframe"], "cf": done.given.get("cf", "AVERAGE")}
    points = [point["cpu"] * 100 for point in await done.get(path, **query) if point.get("cpu") is not None]
    cpu = next(row for row in done.rows if row["field"] == "cpu")
    assert abs(cpu["max"] - max(points)) < 0.01
    assert abs(cpu["mean"] - sum(points) / len(points)) < 0.01


def storages_are_listed(done: Done) -> None:
    node = done.given.get("node")
    expected = {storage.id for storage in done.world.storages.values() if node is None or storage.on_node(node)}
    assert {row["storage"] for row in done.rows} == expected


def content_is_listed(done: Done) -> None:
    node, wanted = done.given["node"], done.given.get("content")
    expected = {
        volume.volid
        for volume in done.world.storages[done.given["storage"]].volumes(node)
        if wanted in (None, volume.content)
    }
    assert {row["volume"] for row in done.rows} == expected
    assert expected


async def backups_are_listed(done: Done) -> None:
    node = done.given.get("node", "pve1")
    storages = [done.given["storage"]] if "storage" in done.given else ["local", "nas", "pbs"]
    expected = {
        one["volid"]
        for storage in storages
        for one in await done.get(f"/nodes/{node}/storage/{storage}/content", content="backup")
        if done.given.get("vmid") in (None, one["vmid"])
    }
    assert {row["backup"] for row in done.rows} == expected
    assert expected


def templates_are_listed(done: Done) -> None:
    present = {row["template"] for row in done.rows if done.given.get("storage", "local") in row["present_on"]}
    held = done.world.storages["local"].volumes("pve1")
    assert present == {volume.name.removeprefix("vztmpl/") for volume in held if volume.content == "vztmpl"}
    assert present
