"""The work of migration tasks: moving a guest with its local disks to another node.

The log says what blocks a migration; the task itself always ends with `migration aborted`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pve_simulator.clock import log_time
from pve_simulator.cluster.config_files import Section
from pve_simulator.cluster.datacenter import Datacenter
from pve_simulator.guests import power
from pve_simulator.guests.guest import MIB, Guest, Kind
from pve_simulator.guests.local_volumes import (
    LocalVolume,
    StorageMap,
    carry_over,
    local_volumes,
    obstacle,
    switch_volumes,
)
from pve_simulator.guests.power import GuestAddress
from pve_simulator.guests.tool_output import amount, copy_image, mirror_image
from pve_simulator.nodes.tasks import TaskContext, TaskError, Work
from pve_simulator.routes.replication import Replication
from pve_simulator.storage import volumes
from pve_simulator.world import World

_ABORTED = "migration aborted"
_RESTART_TIMEOUT = 180
_MAPPED_KINDS = {"hostpci": "pci", "usb": "usb"}
_MAPPED = re.compile(r"(?:^|,)mapping=([^,]+)")


@dataclass(slots=True)
class Migration:
    """One requested migration."""

    address: GuestAddress
    target: str
    online: bool = False
    restart: bool = False
    with_local_disks: bool = False
    force: bool = False
    timeout: int = _RESTART_TIMEOUT
    storages: StorageMap = field(default_factory=StorageMap)

    @property
    def world(self) -> World:
        return self.address.world

    @property
    def kind(self) -> Kind:
        return self.address.kind


class _Log:
    """Migration logs carry the time on every line."""

    def __init__(self, context: TaskContext) -> None:
        self.context = context
        self._began = context.clock.now()

    def info(self, line: str) -> None:
        self.context.log(f"{log_time(self.context.clock.now())} {line}")

    def duration(self) -> str:
        seconds = int(self.context.clock.now() - self._began)
        return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def run(migration: Migration) -> Work:
    """The task; the guest has the lock `migrate` and stays where it is if anything fails."""

    async def work(context: TaskContext) -> None:
        log = _Log(context)
        try:
            guest = migration.address.load()
            await _migrate(context, log, migration, guest)
        except TaskError as error:
            log.info(f"ERROR: migration aborted (duration {log.duration()}): {error}")
            raise TaskError(_ABORTED) from error
        log.info(f"migration finished successfully (duration {log.duration()})")

    return work


async def _migrate(context: TaskContext, log: _Log, migration: Migration, guest: Guest) -> None:
    if not (guest.kind == "lxc" and guest.running and migration.restart):
        await _move(context, log, migration, guest)
        return
    await _shut_down(context, log, migration, guest)
    try:
        await _move(context, log, migration, guest)
        log.info("start container on target node")
        await context.sleep(power.SECONDS["lxc"]["start"])
    finally:  # it keeps running on one of the nodes
        guest.start_running(context.clock.now(), migration.world.nodes[guest.node].next_pid())


async def _shut_down(context: TaskContext, log: _Log, migration: Migration, guest: Guest) -> None:
    guest.check_lock()
    log.info(f"shutdown CT {guest.vmid}")
    down = power.shutdown(migration.address, timeout=migration.timeout, force_stop=True)
    await down(context)


async def _move(context: TaskContext, log: _Log, migration: Migration, guest: Guest) -> None:
    async with context.config_lock(guest):
        _prepare(migration, guest)
        word = "VM" if guest.kind == "qemu" else "CT"
        ip = migration.world.nodes[migration.target].ip
        with guest.hold_lock("migrate"):
            log.info(f"starting migration of {word} {guest.vmid} to node '{migration.target}' ({ip})")
            local = _scan(log, migration, guest)
            await _transfer(context, log, migration, guest, local)


def _prepare(migration: Migration, guest: Guest) -> None:
    guest.check_lock()
    if guest.kind == "lxc":
        if guest.running:
            raise TaskError("lxc live migration is currently not implemented")
    else:
        if guest.running and not migration.online:
            raise TaskError("can't migrate running VM without --online")
        _check_devices(migration, guest)
    if not migration.world.nodes[migration.target].online:
        raise TaskError("Can't connect to destination address using public key")
    for volume in local_volumes(migration.world, guest):
        if volume.is_host_cdrom:
            continue
        storage_id = migration.storages.target_of(volume.storage)
        volumes.usable_storage(migration.world, migration.target, storage_id)


def _check_devices(migration: Migration, guest: Guest) -> None:
    mapped = mapped_devices(migration.world, guest)
    devices = [key for key in local_devices(migration.world, guest) if key not in mapped]
    if devices and (guest.running or not migration.force):
        raise TaskError(f"can't migrate VM which uses local devices: {', '.join(devices)}")
    if missing := missing_mappings(migration.world, guest, migration.target):
        raise TaskError(f"can't migrate to '{migration.target}': missing mapped devices {', '.join(missing)}")
    bound = [f"{key}:{device['name']}" for key, device in mapped.items() if "live-migration" not in device]
    if guest.running and bound:
        raise TaskError(f"can't live migrate running VM which uses following mapped devices: {', '.join(bound)}")


def mapped_devices(world: World, guest: Guest) -> dict[str, dict[str, Any]]:
    """Options with mapped devices, which other nodes may have too."""
    devices: dict[str, dict[str, Any]] = {}
    for key, value in sorted(guest.config.items()):
        mapping = _MAPPED.search(str(value)) if key.startswith(tuple(_MAPPED_KINDS)) else None
        if mapping:
            devices[key] = {"name": mapping[1]}
            if _mappings(world, key).get(mapping[1], {}).get("live-migration-capable"):
                devices[key]["live-migration"] = 1
    return devices


def missing_mappings(world: World, guest: Guest, node: str) -> list[str]:
    """The mapped devices that the node lacks."""
    return [
        key
        for key, device in mapped_devices(world, guest).items()
        if not any(
            f"node={node}" in entry.split(",") for entry in _mappings(world, key).get(device["name"], {}).get("map", [])
        )
    ]


def _mappings(world: World, key: str) -> dict[str, Section]:
    return world.part(Datacenter).mappings[_MAPPED_KINDS[key.rstrip("0123456789")]].sections


def local_devices(world: World, guest: Guest) -> list[str]:
    """Options that tie a VM to hardware of its node. PVE counts mapped ones in; from 9 on PCI only if it must."""
    keys, mapped = [], mapped_devices(world, guest)
    for key, value in sorted(guest.config.items()):
        name, text = key.rstrip("0123456789"), str(value)
        movable = name == "hostpci" and key in mapped and (not guest.running or "live-migration" in mapped[key])
        if movable and world.version_at_least(9, 0):
            continue
        passed_through = name in ("hostpci", "usb") and not text.startswith("spice")
        if passed_through or (name == "serial" and text != "socket") or name in ("parallel", "ivshmem"):
            keys.append(key)
    return keys


def _scan(log: _Log, migration: Migration, guest: Guest) -> list[LocalVolume]:
    """The local volumes to migrate; all obstacles are reported at once."""
    movable, obstacles = [], []
    for volume in local_volumes(migration.world, guest):
        if volume.is_host_cdrom:
            obstacles.append("can't migrate local cdrom drive")
            continue
        reason = obstacle(migration.world, guest, volume, with_local_disks=migration.with_local_disks)
        if reason is None:
            log.info(f"found {volume.described}")
            movable.append(volume)
        else:
            obstacles.append(f"can't migrate local disk '{volume.volid}': {reason}")
    for reason in obstacles:
        log.info(reason)
    if obstacles:
        text = f"can't migrate {guest.word} - check log"
        log.info(f"ERROR: Problem found while scanning volumes - {text}")
        log.info("aborting phase 1 - cleanup resources")
        raise TaskError(f"Problem found while scanning volumes - {text}")
    return movable


async def _transfer(
    context: TaskContext, log: _Log, migration: Migration, guest: Guest, local: list[LocalVolume]
) -> None:
    world, source = migration.world, guest.node
    with _undo_on_failure(world, migration.target) as copies:
        moved: dict[str, str] = {}
        for volume in local:
            storage_id = migration.storages.target_of(volume.storage)
            log.info(f"copying local disk images: {volume.volid} to storage {storage_id}")
            copy = carry_over(world, guest, volume, migration.target, storage_id)
            copies.append(copy.volid)
            moved[volume.volid] = copy.volid
            if guest.running and volume.key:
                await mirror_image(context, volume.key, copy)
            else:
                await copy_image(context, copy)
        if guest.running:
            await _send_memory(context, log, guest)
        else:
            await context.sleep(1.0)
        _arrive(world, guest, migration.target, moved)
    for volid in moved:
        world.storages[volid.partition(":")[0]].remove(source, volid)
    world.part(Replication).switch_job_target(guest, source)


@contextmanager
def _undo_on_failure(world: World, node: str) -> Iterator[list[str]]:
    copies: list[str] = []
    try:
        yield copies
    except BaseException:
        for volid in copies:
            world.storages[volid.partition(":")[0]].remove(node, volid)
        raise


async def _send_memory(context: TaskContext, log: _Log, guest: Guest) -> None:
    log.info(f"start migrate command to unix:/run/qemu-server/{guest.vmid}.migrate")
    seconds = max(2, min(20, guest.memory // (1024 * MIB)))
    for second in range(1, seconds + 1):
        await context.sleep(1.0)
        done = guest.memory * second // seconds
        speed = amount(guest.memory // seconds)
        log.info(f"migration active, transferred {amount(done)} of {amount(guest.memory)} VM-state, {speed}/s")
    log.info(f"average migration speed: {amount(guest.memory // seconds)}/s - downtime 42 ms")
    log.info("migration status: completed")


def _arrive(world: World, guest: Guest, target: str, moved: dict[str, str]) -> None:
    switch_volumes(guest, moved)
    guest.node = target
    if guest.running:
        guest.pid, guest.arrived_at = world.nodes[target].next_pid(), world.clock.now()
    guest.touch()
