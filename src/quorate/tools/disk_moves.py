"""Moving many disks to another storage: of one guest or of many, with what has to stay behind."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from quorate.hints import Advice, tools
from quorate.operations.placement import pick_storage
from quorate.operations.plan import Call, Failure, Plan, guest_call
from quorate.operations.preconditions import refuse_locked, snapshots_of
from quorate.problems import BadArgument, Conflict, Problem, catch_problem
from quorate.pve import values
from quorate.pve.cluster import Cluster, Guest
from quorate.pve.targets import owner
from quorate.pve.tasks import gather_bounded
from quorate.tools.disk_checks import existing_disk, format_of, size_of, with_room
from quorate.tools.guest_options import Config
from quorate.tools.guest_power import power_call, state_of
from quorate.tools.volume_references import NamedVolume, find_references
from quorate.units import count_of, shortlist, size

READS_AT_ONCE = 16
ALL = "all"
_MOVABLE = frozenset({*values.DISKS, "unused"})
_ONLY_WHEN_OFF = "tpmstate0"
"""QEMU does not copy the state of a TPM that is in use."""
_COPIED_LIVE = ("paused", "suspended")
"""States of a VM in which QEMU copies its disks as if it were running."""


@dataclass(slots=True)
class GuestMoves:
    """What moves of one guest, in order, and what stays."""

    guest: Guest
    volumes: dict[str, str] = field(default_factory=dict)
    """Slot -> volume."""
    room: int = 0
    left_behind: list[str] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    is_restarted: bool = False

    def leave(self, key: str, volume: str, why: str) -> None:
        self.volumes.pop(key, None)
        self.left_behind.append(f"{key} of {self.guest} ({volume}): {why}")


async def plan_disk_moves(
    pve: Cluster,
    guests: Sequence[Guest],
    disks: Sequence[str],
    storage: str,
    *,
    from_storage: str | None = None,
    format: str | None = None,
    delete: bool = True,
) -> Plan:
    """Move these disks of the guests, or all of them: drives for cloud-init, UEFI and TPM and detached disks too.

    VMs keep running, except for a TPM; running containers are shut down for their own moves only, and started again.
    """
    if from_storage == storage:
        raise BadArgument(f"The disks would move from {storage} to {storage}", next_step="Choose two storages")
    choose = partial(_choose, disks=disks, storage=storage, from_storage=from_storage, format=format)
    results = await gather_bounded(
        READS_AT_ONCE, [partial(catch_problem, choose(pve, guest, delete=delete)) for guest in guests]
    )
    refused = {str(guest): result for guest, result in zip(guests, results, strict=True) if isinstance(result, Problem)}
    moves = [result for result in results if not isinstance(result, Problem)]
    if delete:
        await _leave_what_others_use(pve, moves)
    await _require_room(pve, moves, storage)
    for move in moves:
        problem = await catch_problem(_add_calls(move, storage, format, delete=delete))
        if isinstance(problem, Problem):
            refused[str(move.guest)] = problem
    if len(refused) == len(guests):
        raise next(iter(refused.values()))
    moves = [move for move in moves if str(move.guest) not in refused]
    moving = [move for move in moves if move.calls]
    left = [line for move in moves for line in move.left_behind]
    count = sum(len(move.volumes) for move in moving)
    origin = f" from {from_storage}" if from_storage else ""
    summary = f"Move {count_of(count, 'disk')} of {shortlist([m.guest for m in moving], 5)}{origin} to {storage}"
    restarted = [move.guest for move in moving if move.is_restarted]
    return Plan(
        summary if moving else f"Move disks{origin} to {storage}",
        tuple(call for move in moving for call in move.calls),
        unchanged=tuple(
            f"{move.guest} has nothing {'that can move' if move.left_behind else 'to move'}"
            for move in moves
            if not move.calls
        ),
        failures=tuple(Failure.about(guest, str(problem)) for guest, problem in refused.items()),
        independent=len(moving) > 1,
        sequences=tuple(len(move.calls) for move in moving),
        facts={"moves": size(sum(move.room for move in moving)), **({"left_behind": left} if left else {})},
        warnings=tuple(f"{guest} is shut down for the move, and started again" for guest in restarted),
        if_it_fails=Advice(
            "Start what was shut down for a move and does not run",
            *(tools.guest_power(guest=guest.vmid, action="start") for guest in restarted),
        )
        if restarted
        else None,
        after=partial(_report, [move.guest for move in moving], from_storage) if from_storage and moving else None,
    )


async def _choose(
    pve: Cluster,
    guest: Guest,
    *,
    disks: Sequence[str],
    storage: str,
    from_storage: str | None,
    format: str | None,
    delete: bool,
) -> GuestMoves:
    config, current, snapshots = await asyncio.gather(
        guest.get("config"), guest.get("config", current=1), snapshots_of(guest)
    )
    refuse_locked(guest, config)
    await pick_storage(pve, guest.row.node, "images" if guest.is_vm else "rootdir", requested=storage)
    everything = list(disks) == [ALL]
    keys = (
        sorted(key for key in config if values.bus_of(key) in _MOVABLE)
        if everything
        else [existing_disk(guest, config, key) for key in dict.fromkeys(disks)]
    )
    saved = await _saved_volumes(guest, snapshots)
    move = GuestMoves(guest)
    for key in keys:
        value = str(config[key])
        volume = values.volume_of(value)
        here = volume.partition(":")[0]
        if ":" not in volume or (from_storage is not None and here != from_storage):
            continue
        if here == storage and format in (None, format_of(volume)):
            continue
        waits = values.volume_of(str(current.get(key, ""))) != volume
        reason = "it waits for a restart" if waits else _obstacle(guest, key, value, saved.get(volume, []) * delete)
        if reason:
            move.leave(key, volume, reason)
            continue
        move.volumes[key] = volume
        move.room += size_of(value)
    for volume, names in saved.items():
        if from_storage and volume.startswith(f"{from_storage}:") and volume not in _current(config):
            move.left_behind.append(f"{volume}: only the snapshots {', '.join(names)} of {guest} have it")
    return move


def _current(config: Config) -> set[str]:
    return {values.volume_of(str(value)) for key, value in config.items() if values.bus_of(key) in _MOVABLE}


async def _saved_volumes(guest: Guest, snapshots: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """The volumes that snapshots hold, with the names of the snapshots: disks and the memory of the guest."""
    saved: dict[str, list[str]] = {}
    for snapshot in snapshots:
        name = str(snapshot["name"])
        config = await guest.get(f"snapshot/{name}/config")
        for key, value in config.items():
            if values.bus_of(key) in _MOVABLE or key == "vmstate":
                saved.setdefault(values.volume_of(str(value)), []).append(name)
    return saved


def _obstacle(guest: Guest, key: str, value: str, snapshots: Sequence[str]) -> str:
    """Why a volume cannot move; empty if it can."""
    volume = values.volume_of(value)
    if values.parse(value, "volume").get("media") == "cdrom" and not values.is_cloudinit(value):
        return "a disc is not a disk of the guest; eject it, or insert it from another storage"
    if owner(volume) != guest.vmid:
        return "it is not named after this guest, and may belong to another one"
    if snapshots:
        return f"the snapshots {', '.join(snapshots)} need it; delete them, or keep the source"
    if not guest.is_vm and values.bus_of(key) == "unused":
        return "PVE does not move detached volumes of containers; attach it first, or delete it"
    return ""


async def _leave_what_others_use(pve: Cluster, moves: Sequence[GuestMoves]) -> None:
    """A source that a linked clone or another guest needs cannot go."""
    named = {
        NamedVolume(volume, move.guest.row.node, move.guest.vmid): (move, key)
        for move in moves
        for key, volume in move.volumes.items()
    }
    if not named:
        return
    survey = await find_references(pve, list(named))
    for reference in survey.references:
        move, key = named[reference.volume]
        if key in move.volumes:
            by = await pve.blanker()
            move.leave(key, reference.volume.volid, f"it is used by {by(str(reference))}")


async def _require_room(pve: Cluster, moves: Sequence[GuestMoves], storage: str) -> None:
    """Enough for everything that comes to each node, or to all of them if the storage is shared."""
    needed: dict[str, int] = {}
    for move in moves:
        row = next(
            row
            for row in await pve.inventory.of_type("storage")
            if row.storage == storage and row.node == move.guest.row.node
        )
        place = "" if row.shared else row.node
        needed[place] = needed.get(place, 0) + move.room
        await with_room(pve, row, needed[place])


async def _add_calls(move: GuestMoves, storage: str, format: str | None, *, delete: bool) -> None:
    guest = move.guest
    if not move.volumes:
        return
    state = await state_of(guest)
    if state not in ("running", "stopped", *_COPIED_LIVE):
        raise Conflict(f"{guest} is {state}", next_step=Advice("Resume or stop it first", tools.guest_power))
    if state in _COPIED_LIVE and _ONLY_WHEN_OFF in move.volumes:
        move.leave(_ONLY_WHEN_OFF, move.volumes[_ONLY_WHEN_OFF], f"it moves only when the VM is off, which is {state}")
    when_off = [key for key in move.volumes if state == "running" and (not guest.is_vm or key == _ONLY_WHEN_OFF)]
    live = [key for key in move.volumes if key not in when_off]
    order = [*live, *when_off]
    calls = {key: _move_call(guest, key, move.volumes[key], storage, format, delete=delete) for key in order}
    move.calls = [calls[key] for key in live]
    if when_off:
        stop, start = power_call(guest, "shutdown", "running", {}), power_call(guest, "start", "stopped", {})
        assert stop is not None
        assert start is not None
        move.is_restarted = True
        move.calls += [stop, *(calls[key] for key in when_off), start]


def _move_call(guest: Guest, key: str, volume: str, storage: str, format: str | None, *, delete: bool) -> Call:
    params: dict[str, Any] = {
        "disk" if guest.is_vm else "volume": key,
        "storage": storage,
        "format": format if guest.is_vm and key != _ONLY_WHEN_OFF and "cloudinit" not in volume else None,
        "delete": int(delete),
    }
    how = "move_disk" if guest.is_vm else "move_volume"
    return guest_call(guest, "POST", how, f"Move {key} of {guest} ({volume}) to {storage}", **params)


async def _report(guests: Sequence[Guest], from_storage: str) -> Mapping[str, Any]:
    """What is still on the storage now."""
    remaining = []
    for guest in guests:
        config = await guest.get("config")
        remaining += [
            f"{key} of {guest} ({volume})"
            for key, value in sorted(config.items())
            if values.bus_of(key) in _MOVABLE
            and (volume := values.volume_of(str(value))).startswith(f"{from_storage}:")
        ]
    return {f"still_on_{from_storage}": remaining or "nothing of these guests"}
