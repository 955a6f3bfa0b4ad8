"""Looks at the simulated world, beside the product: whether the thing has really happened."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from quorate.sim.guests import GIB, Snapshot, parse_size, size_of_drive
from quorate.sim.storages import Volume
from quorate.sim.world import World
from tests.coverage.rows import Done, volumes

Look = Callable[[Done], Any]


# -- guests ------------------------------------------------------------------------------------------------------------


def is_running(done: Done) -> None:
    assert not done.runs_before[done.guest().vmid][0]
    assert done.guest().running


def is_stopped(done: Done) -> None:
    assert done.runs_before[done.guest().vmid][0]
    assert not done.guest().running


def was_rebooted(done: Done) -> None:
    guest = done.guest()
    assert guest.running
    assert guest.started_at > done.runs_before[guest.vmid][1]


def is_paused(done: Done) -> None:
    assert done.guest().paused


def goes_on(done: Done) -> None:
    assert done.guest().running
    assert not done.guest().paused


def is_gone(done: Done) -> None:
    vmid = int(done.given["vmid"])
    assert vmid in done.runs_before
    assert vmid not in done.world.guests
    assert not [volid for volid in volumes(done.world) if f"-{vmid}-disk-" in volid]


def is_on(parameter: str) -> Look:
    """It has moved to the node that the parameter names, and runs there if it did before."""

    def look(done: Done) -> None:
        guest = done.guest()
        assert guest.node == done.given[parameter]
        assert guest.running == done.runs_before[guest.vmid][0]

    return look


def is_template(done: Done) -> None:
    assert done.guest().template


def is_made(kind: str, *, vmid: str = "vmid", **config: Any) -> Look:
    """A new guest of that kind with these options; a value may be a test of the option's text."""

    def look(done: Done) -> None:
        guest = done.guest(vmid) if vmid in done.given else done.world.guests[done.facts["vmid"]]
        assert guest.vmid not in done.runs_before
        assert guest.kind == kind
        if "node" in done.given:
            assert guest.node == done.given["node"]
        has(guest.config, **config)

    return look


def is_cloned(kind: str, *, source: str = "vmid", new: str = "newid", linked: bool = False, **config: Any) -> Look:
    """The clone is there beside its source, with disks of its own, which point back if it is a linked clone."""

    def look(done: Done) -> None:
        clone, original = done.guest(new), done.guest(source)
        assert clone.kind == original.kind == kind
        assert clone.vmid not in done.runs_before
        has(clone.config, **config)
        disks = [done.volume(volume) for _, volume in clone.drives() if volume in done.new_volumes()]
        assert disks
        assert any(disk.parent is not None for disk in disks) == linked

    return look


def has(config: dict[str, Any], **wanted: Any) -> None:
    for key, value in wanted.items():
        found = config.get(key.replace("__", "-"))
        assert value(str(found)) if callable(value) else str(found) == str(value), f"{key} is {found!r}"


def config_has(**wanted: Any) -> Look:
    """The options, as they will be after a restart at the latest."""
    return lambda done: has(done.guest().effective_config(), **wanted)


def holds(*parts: str) -> Callable[[str], bool]:
    return lambda text: all(part in text for part in parts)


def lacks(key: str) -> Look:
    def look(done: Done) -> None:
        assert key not in done.guest().effective_config()

    return look


def disk_is(key: str, *, storage: str | None = None, size: str | None = None) -> Look:
    def look(done: Done) -> None:
        drive = str(done.guest().config[key])
        assert storage is None or drive.startswith(f"{storage}:")
        assert size is None or size_of_drive(drive) == parse_size(size)
        assert done.volume(drive.split(",")[0]).size == size_of_drive(drive)

    return look


def disk_was_moved(key: str) -> Look:
    """It is on the other storage, and the copy on the old one is gone."""

    def look(done: Done) -> None:
        drive = str(done.guest().config[key]).split(",")[0]
        assert drive.startswith(f"{done.given['storage']}:")
        assert drive in done.new_volumes()
        assert len(done.volumes_before - volumes(done.world)) == 1

    return look


def is_detached(key: str) -> Look:
    def look(done: Done) -> None:
        config = done.guest().config
        assert key not in config
        assert [name for name in config if name.startswith("unused")]
        assert volumes(done.world) == done.volumes_before

    return look


def is_listed(*, kind: str | None = None, **wanted: Any) -> Look:
    """The guests of the answer are those of the world."""

    def look(done: Done) -> None:
        expected = {
            guest.vmid
            for guest in done.world.guests.values()
            if kind in (None, guest.kind) and all(getattr(guest, key) == value for key, value in wanted.items())
        }
        assert {row["vmid"] for row in done.rows} == expected
        assert expected

    return look


def is_described(done: Done) -> None:
    """State, hardware and disks of the answer are those of the world."""
    guest = done.guest()
    assert (done.facts["vmid"], done.facts["name"]) == (guest.vmid, guest.name)
    assert done.facts["node"] == guest.node
    assert done.facts["status"] == ("template" if guest.template else "paused" if guest.paused else guest.status)
    assert done.facts["hardware"]["cores"] == guest.config["cores"]
    assert str(done.facts["hardware"]["memory"]) == str(guest.config["memory"])
    assert set(done.facts["networks"]) == {key for key in guest.config if key.startswith("net")}
    drives = {key: str(guest.config[key]) for key, _ in guest.drives()}
    assert done.facts["disks"].items() <= drives.items()
    assert done.facts["disks"]


# -- snapshots ---------------------------------------------------------------------------------------------------------


def has_snapshot(done: Done) -> None:
    snapshot = done.guest().snapshots[done.given["snapname"]]
    assert (snapshot.description or "").strip() == done.given.get("description", "")


def lacks_snapshot(done: Done) -> None:
    assert done.given["snapname"] not in done.guest().snapshots


def snapshots_are_listed(done: Done) -> None:
    assert {row["snapshot"] for row in done.rows} == set(done.guest().snapshots)
    assert done.guest().snapshots


def changed_since(vmid: int, snapshot: str) -> Callable[[World], None]:
    """A guest with that snapshot, and another description since."""

    def prepare(world: World) -> None:
        guest = world.guests[vmid]
        if snapshot not in guest.snapshots:
            guest.snapshots[snapshot] = Snapshot(
                snapshot, int(world.clock.now()) - 60, dict(guest.config), "", None, False
            )
            guest.config["parent"] = snapshot
        guest.config["tags"] = "changed"

    return prepare


def is_rolled_back(done: Done) -> None:
    guest = done.guest()
    snapshot = guest.snapshots[done.given["snapname"]]
    assert guest.config.get("tags") == snapshot.config.get("tags")
    assert guest.config["parent"] == snapshot.name


# -- storages and backups ----------------------------------------------------------------------------------------------


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


def is_backed_up(done: Done) -> None:
    (volid,) = done.new_volumes()
    assert volid.startswith(f"{done.given['storage']}:backup/")
    assert done.volume(volid).vmid == done.guest().vmid
    notes = done.given.get("notes")
    assert notes is None or done.volume(volid).notes == notes


def is_restored(kind: str, *, over_old: bool = False) -> Look:
    def look(done: Done) -> None:
        guest = done.guest()
        assert guest.kind == kind
        assert (guest.vmid in done.runs_before) == over_old
        storage = done.given.get("storage")
        drives = [volume for key, volume in guest.drives() if key in ("scsi0", "rootfs")]
        assert drives
        assert set(drives) <= volumes(done.world)
        assert storage in (None, "nas", *(volume.partition(":")[0] for volume in drives))

    return look


def volume_is_gone(volid: str) -> Look:
    def look(done: Done) -> None:
        assert volid in done.volumes_before
        assert volid not in volumes(done.world)

    return look


def is_uploaded(volid: str, size: int) -> Look:
    def look(done: Done) -> None:
        assert done.new_volumes() == {volid}
        assert done.volume(volid).size == size

    return look


# -- cluster, nodes, tasks ---------------------------------------------------------------------------------------------


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


PAST_TASK = "UPID:pve1:000004CC:13EF7460:6966EB58:vzdump:102:root@pam:"


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


# -- worlds that a row needs -------------------------------------------------------------------------------------------


def with_second_disk(vmid: int) -> Callable[[World], None]:
    """A disk or mount point beside the first, on the same storage."""

    def prepare(world: World) -> None:
        guest = world.guests[vmid]
        storage = world.storages["local-lvm"]
        volid = storage.disk_name(vmid, 7, guest.kind)
        size, content = 4 * GIB, "images" if guest.kind == "qemu" else "rootdir"
        storage.add(guest.node, Volume(volid, content, "raw", size, size, int(world.clock.now()), vmid))
        if guest.kind == "qemu":
            guest.config["scsi1"] = f"{volid},size=4G"
        else:
            guest.config["mp0"] = f"{volid},mp=/data,size=4G"

    return prepare


def nas_takes_containers(world: World) -> None:
    world.storages["nas"].content += ("rootdir",)


def both(*all_of: Look) -> Look:
    def look(done: Done) -> None:
        for one in all_of:
            one(done)

    return look


def runs_in_pool(done: Done) -> None:
    assert done.guest().running
    assert done.guest().vmid in done.world.access.pools[done.given["pool"]].vms


CLOUD_INIT_VM = (
    "vmid", "name", "node", "memory", "cores", "iso", "disk_size", "storage", "net", "start", "pool", "onboot",
    "protection", "agent", "scsihw", "boot", "bios", "machine", "cpu", "sockets", "description", "tags", "ciuser",
    "cipassword", "sshkeys", "ipconfig0", "nameserver", "searchdomain",
)  # fmt: skip


async def made_with_cloud_init(done: Done) -> None:
    """vm_create groups what these rows spread over many parameters."""
    same = ("vmid", "name", "node", "memory", "cores", "iso", "storage", "start", "pool", "onboot", "agent", "bios")
    given = done.given
    addresses = dict(part.split("=", 1) for part in given["ipconfig0"].split(","))
    await done.call(
        "vm_create",
        **{key: given[key] for key in (*same, "machine", "cpu", "sockets", "description")},
        disks=[given["disk_size"]],
        networks=[given["net"]],
        tags=given["tags"].split(";"),
        options={key: given[key] for key in ("protection", "scsihw", "boot")},
        cloud_init={
            "user": given["ciuser"],
            "password": given["cipassword"],
            "ssh_keys": given["sshkeys"].splitlines(),
            "ip": addresses["ip"],
            "gateway": addresses["gw"],
            "dns": given["nameserver"],
            "search_domain": given["searchdomain"],
        },
    )


async def made_with_address(done: Done) -> None:
    """container_create takes bridge and address as one network."""
    given = done.given
    await done.call(
        "container_create",
        **{key: given[key] for key in ("node", "vmid", "hostname", "cores", "storage", "dry_run")},
        template=given["ostemplate"],
        memory=given["memory_mb"],
        rootfs=f"{given['rootfs_gb']}G",
        networks=[{"bridge": given["bridge"], "ip": given["net_ip"]}],
    )


def snapshot_holds_memory(done: Done) -> None:
    assert done.guest().snapshots[done.given["snapname"]].vmstate


def disk_on_nas(vmid: int) -> Callable[[World], None]:
    """A VM whose only disk every node can reach."""

    def prepare(world: World) -> None:
        guest = world.guests[vmid]
        volid = f"nas:{vmid}/vm-{vmid}-disk-0.raw"
        world.storages["nas"].add(
            guest.node, Volume(volid, "images", "raw", 8 * GIB, GIB, int(world.clock.now()), vmid)
        )
        old = str(guest.config["scsi0"]).split(",")[0]
        world.storages["local-lvm"].remove(guest.node, old)
        guest.config["scsi0"] = f"{volid},size=8G"
        guest.snapshots.clear()
        guest.config.pop("parent", None)

    return prepare
