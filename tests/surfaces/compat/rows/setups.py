"""Changes to the simulated world that a row needs before it runs."""

from __future__ import annotations

from collections.abc import Callable

from pve_simulator.clock import ManualClock
from pve_simulator.guests.guest import GIB, Snapshot
from pve_simulator.simulator import SimulatedCluster
from pve_simulator.storage.storages import Volume
from pve_simulator.world import World

_HISTORY = SimulatedCluster(clock=ManualClock()).world.tasks.newest_first("pve1")
PAST_TASK = next(str(task.upid) for task in _HISTORY if task.upid.type == "vzdump")
"""A task that the simulated cluster has already finished, for tools that read tasks."""


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


def with_second_disk(vmid: int) -> Callable[[World], None]:
    """A second disk or mount point, on the same storage."""

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
