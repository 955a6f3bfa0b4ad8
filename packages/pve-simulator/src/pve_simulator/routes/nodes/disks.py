"""Disks of a node: lists, health, and the pools on them."""

from __future__ import annotations

from typing import Any

from pve_simulator.http.parameters import split_list
from pve_simulator.http.refusals import failure
from pve_simulator.http.routing import Call, route
from pve_simulator.nodes import disks
from pve_simulator.nodes.disks import Disks, NodeDisks, uuid_of
from pve_simulator.nodes.tasks import TaskContext, failing

_BASE = "/nodes/{node}/disks"
_DIRECTORY_CONTENT = "rootdir,images,iso,backup,vztmpl,snippets"


def _disks(call: Call) -> NodeDisks:
    return call.world.part(Disks).of(call.node)


@route(f"GET {_BASE}/list")
def list_disks(call: Call) -> list[dict[str, Any]]:
    rows = []
    for disk in _disks(call).disks.values():
        row = disk.row()
        if call.params.get("skipsmart"):
            row |= {"health": "UNKNOWN", "wearout": "N/A"}
        if call.params.get("type") == "unused" and disk.used is not None:
            continue
        if call.params.get("type") == "journal_disks" and disk.used not in (None, "LVM", "partitions"):
            continue
        rows.append(row)
        if call.params.get("include-partitions"):
            rows += disk.partition_rows()
    return rows


@route(f"GET {_BASE}/smart")
def smart(call: Call) -> dict[str, Any]:
    data = _disks(call).find(call.params["disk"]).smart()
    return {"health": data["health"]} if call.params.get("healthonly") else data


@route(f"POST {_BASE}/initgpt")
def initialize(call: Call) -> str:
    path = call.params["disk"]
    disk = _disks(call).find(path)
    if path != disk.devpath:
        raise failure(f"{path} is a partition")
    if disk.used is not None:
        raise failure(f"disk {path} already in use")

    async def work(context: TaskContext) -> None:
        await context.sleep(1.0)
        disk.gpt = True

    return call.start_task("diskinit", disk.name, work)


@route(f"PUT {_BASE}/wipedisk")
def wipe(call: Call) -> str:
    path = call.params["disk"]
    disk = _disks(call).find(path)
    for partition, (used, _) in disk.partitions().items():
        if used.startswith("mounted"):
            raise failure(f"disk/partition '{partition}' is mounted")
    if disk.holder is not None:
        raise failure(f"disk/partition '{path}' has a holder")

    async def work(context: TaskContext) -> None:
        context.log(f"wiping block device {path}")
        await context.sleep(2.0)
        context.log("209715200 bytes (210 MB, 200 MiB) copied")
        disk.wipe()

    return call.start_task("wipedisk", path.rpartition("/")[2], work)


def _require_allocation(call: Call) -> None:
    """Adding or removing the storage requires Datastore.Allocate in addition to Sys.Modify."""
    if call.params.get("add_storage") or call.params.get("cleanup-config"):
        call.require("/storage", "Datastore.Allocate")


@route(f"GET {_BASE}/lvm")
def volume_groups(call: Call) -> dict[str, Any]:
    return {"leaf": 0, "children": disks.volume_groups(call.world, call.node)}


@route(f"GET {_BASE}/lvmthin")
def thin_pools(call: Call) -> list[dict[str, Any]]:
    return disks.thin_pools(call.world, call.node)


@route(f"POST {_BASE}/lvm", f"POST {_BASE}/lvmthin")
def create_volume_group(call: Call) -> str:
    """Create a volume group on a whole disk, for LVM-thin with one pool that fills it."""
    _require_allocation(call)
    world, node, name = call.world, call.node, call.params["name"]
    kind = "lvmthin" if call.endpoint.template.endswith("lvmthin") else "lvm"
    disk = _disks(call).require_unused(call.params["device"])
    if call.params.get("add_storage"):
        disks.check_storage_name(world, node, name, kind)

    def finish() -> None:
        disk.occupy("LVM", f"vg:{name}")
        if call.params.get("add_storage"):
            thin = {"thinpool": name} if kind == "lvmthin" else {}
            disks.add_storage(world, node, name, kind, disk.size, "rootdir,images", vgname=name, **thin)

    steps = [f'Physical volume "{disk.devpath}" successfully created.', f'Volume group "{name}" successfully created']
    if kind == "lvmthin":
        steps.append(f'Logical volume "{name}" created.')
    work = disks.create_work([disk], steps, finish)
    if any(group["name"] == name for group in disks.volume_groups(world, node)):
        work = failing(f"volume group with name '{name}' already exists on node '{node}'")
    return call.start_task(f"{kind}create", name, work)


@route(*(f"DELETE {_BASE}/{kind}/{{name}}" for kind in ("lvm", "lvmthin", "directory", "zfs")))
def remove(call: Call) -> str:
    """Remove a volume group, pool or directory, and its storages on request."""
    _require_allocation(call)
    world, node, name, kind = call.world, call.node, call.values["name"], call.endpoint.template.split("/")[4]
    if kind == "directory":
        unit = f"systemctl stop mnt-pve-{name}.mount"
        storages = disks.matching_storages(world, node, "dir", path=f"/mnt/pve/{name}")
        missing, busy = (f"command '{unit}' failed: exit code {code}" for code in (5, 1))
        work = disks.removal_work(world, node, f"dir:{name}", storages, missing, busy, call.params)
        return call.start_task("dirremove", name, work)
    if kind == "zfs":
        storages, missing = (
            disks.pool_storages(world, node, name),
            f"command 'zpool destroy {name}' failed: exit code 1",
        )
        work = disks.removal_work(world, node, f"zfs:{name}", storages, missing, missing, call.params)
        return call.start_task("zfsremove", name, work)
    group, target, tool, missing = name, name, "vgremove", f"no such volume group '{name}'"
    if kind == "lvmthin":
        group, tool = call.params["volume-group"], "lvremove"
        target, missing = f"{group}-{name}", f"no such thin pool {group}/{name}"
    storages = [
        storage for kind in ("lvm", "lvmthin") for storage in disks.matching_storages(world, node, kind, vgname=group)
    ]
    busy = f"command '/sbin/{tool} -y {group}' failed: exit code 5"
    work = disks.removal_work(world, node, f"vg:{group}", storages, missing, busy, call.params)
    return call.start_task(f"{kind}remove", target, work)


@route(f"GET {_BASE}/directory")
def directories(call: Call) -> list[dict[str, Any]]:
    return [directory.row() for directory in _disks(call).directories.values()]


@route(f"POST {_BASE}/directory")
def create_directory(call: Call) -> str:
    _require_allocation(call)
    world, node, name = call.world, call.node, call.params["name"]
    filesystem = call.params.get("filesystem", "ext4")
    own = _disks(call)
    disk = own.require_unused(call.params["device"])
    if call.params.get("add_storage"):
        disks.check_storage_name(world, node, name, "dir")
    if name in own.directories:
        raise failure(f"a systemd mount unit already exists: {own.directories[name].row()['unitfile']}")

    def finish() -> None:
        disks.make_directory(world, node, disk, name, filesystem)
        if call.params.get("add_storage"):
            path = f"/mnt/pve/{name}"
            size = disk.size * 98 // 100
            disks.add_storage(world, node, name, "dir", size, _DIRECTORY_CONTENT, path=path, is_mountpoint="1")

    part = disk.partition(1)
    steps = [
        f"# /sbin/sgdisk -n1 -t1:8300 {disk.devpath}",
        f"# /sbin/mkfs -t {filesystem} {part}",
        f"Filesystem UUID: {uuid_of(disk)}",
        f"# /sbin/blkid {part} -o export",
    ]
    return call.start_task("dircreate", name, disks.create_work([disk], steps, finish))


@route(f"GET {_BASE}/zfs")
def zfs_pools(call: Call) -> list[dict[str, Any]]:
    return disks.zfs_pools(call.world, call.node)


@route(f"GET {_BASE}/zfs/{{name}}")
def zfs_pool(call: Call) -> dict[str, Any]:
    return disks.zfs_detail(call.world, call.node, call.values["name"])


@route(f"POST {_BASE}/zfs")
def create_zfs_pool(call: Call) -> str:
    _require_allocation(call)
    world, node, params = call.world, call.node, call.params
    name, level = params["name"], params["raidlevel"]
    if "draid-config" in params and not level.startswith("draid"):
        raise failure("draid-config set without using dRAID level")
    own = _disks(call)
    paths = split_list(params["devices"])
    members = [own.require_unused(path) for path in paths]
    if params.get("add_storage"):
        disks.check_storage_name(world, node, name, "zfspool")
    if name in own.raid_levels:
        raise failure(f"pool '{name}' already exists on node '{node}'")
    disks.check_raid(level, paths)

    def finish() -> None:
        own.raid_levels[name] = level
        for disk in members:
            disk.gpt = True
            disk.parts = [("ZFS", disk.size - 8 * 1024**2), ("ZFS reserved", 8 * 1024**2)]
            disk.occupy("ZFS", f"zfs:{name}")
        if params.get("add_storage"):
            size = next(row["size"] for row in disks.zfs_pools(world, node) if row["name"] == name)
            disks.add_storage(world, node, name, "zfspool", size, "rootdir,images", pool=name)

    vdevs = " ".join([level, *paths] if level != "single" else paths)
    steps = [
        f"# /sbin/zpool create -o ashift={params.get('ashift', 12)} {name} {vdevs}",
        f"# /sbin/zfs set compression={params.get('compression', 'on')} {name}",
        f"# systemctl enable zfs-import@{name}.service",
    ]
    return call.start_task("zfscreate", name, disks.create_work(members, steps, finish))
