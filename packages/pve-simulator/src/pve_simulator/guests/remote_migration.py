"""Migrating a guest to another simulated cluster of this process, found by the address of its API."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass

from pve_simulator.guests import drives, guest_volumes
from pve_simulator.guests.guest import Guest, OperatingSystem, Value, size_of_drive
from pve_simulator.guests.new_guests import addresses_of
from pve_simulator.http.refusals import Refusal, existing, failure
from pve_simulator.nodes.tasks import TaskContext, TaskError, Work
from pve_simulator.storage import volumes
from pve_simulator.storage.archives import transfer_steps
from pve_simulator.storage.storages import Volume
from pve_simulator.world import Node, World

_REACHABLE: dict[tuple[str, int], tuple[World, Node]] = {}
_ABORTED = "migration aborted"


def reachable(host: str, port: int, world: World, node: Node) -> None:
    """Register the API address of this node."""
    _REACHABLE[host, port] = (world, node)


def unreachable(world: World) -> None:
    for address in [api_address for api_address, (known, _) in _REACHABLE.items() if known is world]:
        del _REACHABLE[address]


@dataclass(frozen=True, slots=True)
class RemoteMigration:
    source: World
    guest: Guest
    target: World
    node: Node
    vmid: int
    storages: Mapping[str, str]
    bridges: Mapping[str, str]
    delete: bool


def connect(endpoint: Mapping[str, str]) -> tuple[World, Node]:
    """Connect to the target, or refuse as PVE does if address, certificate or token is wrong."""
    host, port = endpoint.get("host", ""), int(endpoint.get("port", "8006"))
    world, node = existing(_REACHABLE.get((host, port)), _refusal(host, port, "Connection timed out"))
    if endpoint.get("fingerprint", node.fingerprint).upper() != node.fingerprint.upper():
        raise _refusal(host, port, "certificate verify failed")
    if not _is_valid(world, endpoint.get("apitoken", "")):
        raise failure("401 permission denied - invalid PVE ticket")
    return world, node


def _refusal(host: str, port: int, why: str) -> Refusal:
    return failure(f"500 Can't connect to {host}:{port} ({why})")


def _is_valid(world: World, text: str) -> bool:
    name, _, secret = text.removeprefix("PVEAPIToken=").partition("=")
    user, _, token = name.partition("!")
    known = world.access.users.get(user)
    api_token = known.tokens.get(token) if known is not None else None
    return api_token is not None and hmac.compare_digest(api_token.secret, secret)


def mapping(text: str) -> dict[str, str]:
    """Parse `old:new,…`; "" is the default for others, and 1 keeps the names."""
    names: dict[str, str] = {}
    for part in text.split(","):
        old, _, new = part.rpartition(":")
        if new and new != "1":
            names[old] = new
    return names


def run(migration: RemoteMigration) -> Work:
    async def work(context: TaskContext) -> None:
        try:
            async with context.config_lock(migration.guest):
                await _migrate(context, migration)
        except TaskError as error:
            context.log(f"ERROR: migration aborted: {error}")
            raise TaskError(_ABORTED) from error

    return work


async def _migrate(context: TaskContext, migration: RemoteMigration) -> None:
    guest, target = migration.guest, migration.target
    context.log(f"remote: started tunnel worker on {migration.node.name}")
    if migration.vmid in target.guests:
        raise TaskError(f"Guest with ID '{migration.vmid}' already exists on remote cluster")
    config, disks = _arrive(migration)
    with guest.hold_lock("migrate"), volumes.free_on_failure(target, migration.node.name, disks):
        for step in transfer_steps(sum(volume.size for volume in disks)):
            await context.sleep(step.seconds)
            context.log(f"mirror: transferred {step.percent}%")
    moved = Guest(migration.vmid, guest.kind, migration.node.name, config, system=guest.system or OperatingSystem())
    moved.addresses = addresses_of(target, moved)
    target.guests[migration.vmid] = moved
    if guest.running:
        moved.start_running(context.clock.now(), migration.node.next_pid())
        guest.stop_running()
    moved.touch()
    guest.touch()
    if migration.delete:
        for volid in guest_volumes.all_volumes(guest):
            if guest_volumes.owns(migration.source, guest, volid):
                volumes.free(migration.source, guest.node, volid)
        del migration.source.guests[guest.vmid]


def _arrive(migration: RemoteMigration) -> tuple[dict[str, Value], list[Volume]]:
    """The configuration with the disks and bridges of the target."""
    guest, target, node = migration.guest, migration.target, migration.node.name
    config: dict[str, Value] = {key: value for key, value in guest.config.items() if key not in ("parent", "lock")}
    disks: list[Volume] = []
    for drive in list(drives.disks(config)):
        storage = migration.storages.get(drive.storage, migration.storages.get("", drive.storage))
        if storage not in target.storages or not target.storages[storage].on_node(node):
            raise TaskError(f"remote storage '{storage}' does not exist on node '{node}'")
        volume = volumes.allocate(target, node, storage, migration.vmid, guest.kind, size_of_drive(drive.text))
        disks.append(volume)
        config[drive.key] = drive.with_volume(volume.volid, volumes.size_text(volume.size))
    for key in [key for key in config if drives.is_net(key)]:
        card = drives.parse(target, guest.kind, key, str(config[key]))
        bridge = card.get("bridge", "")
        card["bridge"] = migration.bridges.get(bridge, migration.bridges.get("", bridge))
        if card["bridge"] and card["bridge"] not in migration.node.bridges:
            raise TaskError(f"remote bridge '{card['bridge']}' does not exist")
        config[key] = drives.render(target, guest.kind, key, card)
    return config, disks
