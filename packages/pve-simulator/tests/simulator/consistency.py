"""Invariants of a simulated world: at any time, and with no task running."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from pve_simulator.guests.guest import Guest, Value, volume_of_drive
from pve_simulator.storage.storages import Volume
from pve_simulator.world import World

_HOLDS_VOLUME = re.compile(r"(?:ide|sata|scsi|virtio|mp|unused)\d+|efidisk0|tpmstate0|rootfs|vmstate")
_DISK_CONTENT = frozenset({"images", "rootdir"})


def always(world: World) -> Iterator[str]:
    """Violations of the invariants that hold even while tasks run."""
    for guest in world.guests.values():
        if guest.node not in world.nodes:
            yield f"guest {guest.vmid} is on node {guest.node}, which does not exist"
    for storage in world.storages.values():
        for name, space in storage.spaces.items():
            used = sum(volume.used for volume in space.volumes.values())
            if space.volumes_used != used:
                yield f"{storage.id} on '{name}' counts {space.volumes_used} bytes, its volumes have {used}"
            if space.used > space.total:
                yield f"{storage.id} on '{name}' is fuller than full"
            yield from (
                f"{key} is filed as {volume.volid}" for key, volume in space.volumes.items() if key != volume.volid
            )
    for pool in world.access.pools.values():
        if any(vmid not in world.guests for vmid in pool.vms):
            yield f"pool {pool.id} has members that are gone"


def at_rest(world: World) -> Iterator[str]:
    """Violations of the invariants that hold with no task running."""
    yield from always(world)
    for guest in world.guests.values():
        if guest.lock_file_held:
            yield f"the lock file of {guest.vmid} is still held"
        if guest.lock is not None:
            yield f"{guest.vmid} is still locked ({guest.lock})"
        yield from _missing_volumes(world, guest)
    yield from _ownerless_volumes(world)
    yield from _crashed_tasks(world)


def _missing_volumes(world: World, guest: Guest) -> Iterator[str]:
    for volid in _volumes_of(guest):
        storage = world.storages.get(volid.partition(":")[0])
        if storage is not None and storage.volume(guest.node, volid) is None and not _is_file(volid):
            yield f"{guest.vmid} on {guest.node} names {volid}, which is not there"


def _ownerless_volumes(world: World) -> Iterator[str]:
    owned = {(volid, guest.node) for guest in world.guests.values() for volid in _volumes_of(guest)}
    everywhere = {volid for volid, _ in owned}
    for storage in world.storages.values():
        for node, space in storage.spaces.items():
            for volume in filter(_is_disk, space.volumes.values()):
                if volume.volid not in everywhere if storage.shared else (volume.volid, node) not in owned:
                    yield f"{volume.volid} on '{node}' belongs to nobody"


def _crashed_tasks(world: World) -> Iterator[str]:
    for node in world.nodes:
        for task in world.tasks.newest_first(node):
            if task.exitstatus == "unexpected status":
                yield f"{task.upid} crashed: {task.log}"


def _volumes_of(guest: Guest) -> set[str]:
    configs: list[Mapping[str, Value]] = [guest.config, guest.pending]
    configs += [snapshot.config for snapshot in guest.snapshots.values()]
    return {
        volid
        for config in configs
        for key, value in config.items()
        if _HOLDS_VOLUME.fullmatch(key) and ":" in (volid := volume_of_drive(str(value)))
    }


def _is_disk(volume: Volume) -> bool:
    return volume.content in _DISK_CONTENT


def _is_file(volid: str) -> bool:
    """ISO images may be removed while guests have them in a drive."""
    return volid.partition(":")[2].startswith(("iso/", "vztmpl/", "snippets/", "import/"))
