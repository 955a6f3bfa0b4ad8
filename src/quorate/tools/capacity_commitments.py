"""How many guests of a size fit without overcommitting: what running guests and those that start at boot may claim
counts as used, a reserve stays free, and any one node may fail."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from quorate.hints import NAMED, Advice, Sentence
from quorate.operations.registry import Table, page
from quorate.problems import BadArgument, NotFound, Problem, catch_problem
from quorate.pve import values
from quorate.pve.cluster import Cluster, Guest
from quorate.pve.inventory import Resource
from quorate.pve.tasks import gather_bounded
from quorate.tools.capacity_rooms import Room, StorageRoom, place_guests
from quorate.tools.health_findings import guest_label, names
from quorate.units import count_of, parse_size, size

CONFIGS_AT_ONCE = 8
CONFIGS_READ = 500
MOST_COUNTED = 1000

COLUMNS = ("node", "memory", "own_use", "running", "starts_at_boot", "reserve", "left", "fit", "fit_if_it_fails", "why")

_PERCENT = re.compile(r"(\d{1,2}(?:\.\d+)?)\s*%")


@dataclass(frozen=True, slots=True)
class Request:
    """Guests of one size."""

    count: int
    memory: int
    cores: int
    disk: int
    content: str


@dataclass(frozen=True, slots=True)
class _Commitment:
    """A node, and what its guests may claim."""

    room: Room
    at_boot: tuple[Resource, ...]
    running: tuple[Resource, ...]
    reserve: int

    @property
    def guests(self) -> list[Resource]:
        return [*self.running, *self.at_boot]

    @property
    def left(self) -> int:
        return self.room.memory_ungiven - sum(row.maxmem for row in self.at_boot) - self.reserve


def parse_reserve(text: str | int | None, memory: int) -> int:
    """Bytes of "4G", or of a share of the node's memory such as "10%"."""
    if text is None:
        return 0
    if share := _PERCENT.fullmatch(str(text).strip()):
        return int(memory * float(share[1]) / 100)
    return parse_size(text, unit="M")


async def count_fitting(
    pve: Cluster,
    rows: list[Resource],
    rooms: list[Room],
    storages: Mapping[str, list[StorageRoom]],
    request: Request,
    reserve: str | int | None,
    fails: str | None,
) -> Table:
    if not request.memory:
        raise BadArgument(
            Sentence("{count} needs {memory}", count=NAMED, memory=NAMED),
            next_step=Advice("Give the memory of one guest, such as {memory}", memory="4G"),
        )
    nodes = sorted(row.node for row in rows if row.type == "node")
    if fails not in (None, "all", *nodes):
        raise NotFound(f"There is no node {fails!r}", next_step=f"The nodes are {', '.join(nodes)}; or say all")
    at_boot, unread = await _starting_at_boot(pve, rows)
    commitments = [
        _Commitment(
            room,
            tuple(row for row in at_boot if row.node == room.node),
            tuple(row for row in rows if row.is_guest and row.node == room.node and row.status == "running"),
            parse_reserve(reserve, room.memory),
        )
        for room in rooms
    ]
    now = _fill({each.room.node: each.left for each in commitments}, rooms, storages, request)
    losses = {
        each.room.node: _fill_without(each, commitments, storages, request)
        for each in commitments
        if len(commitments) > 1 and fails in (None, "all", each.room.node)
    }
    lines = [
        [*_line(each, now, losses), _why_none(each, now, storages, request)]
        for each in sorted(commitments, key=lambda each: each.room.node)
    ]
    table = page(COLUMNS, lines, limit=len(lines), offset=0)
    table.facts = _facts(request, now, losses, fails)
    silent = sorted(set(nodes) - {room.node for room in rooms})
    if silent:
        table.facts["not_counted"] = [f"{node}: offline, or its numbers are hidden" for node in silent]
    if unread:
        table.facts["not_read"] = f"Whether these start at boot is not known: {names(map(guest_label, unread))}"
    if now and request.disk and losses and any(_is_local(storages, node) for node in now):
        table.facts["disks"] = "Some disks would be on storages of one node: after its loss they come from a backup"
    return table


async def _starting_at_boot(pve: Cluster, rows: list[Resource]) -> tuple[list[Resource], list[Resource]]:
    """The stopped guests that a reboot or the HA manager starts; and those whose configuration was not read."""
    online = {row.node for row in rows if row.type == "node" and row.status == "online"}
    stopped = [
        row for row in rows if row.is_guest and not row.template and row.status != "running" and row.node in online
    ]
    asked = stopped[:CONFIGS_READ]
    configs = await gather_bounded(CONFIGS_AT_ONCE, [partial(_read_config, pve, row) for row in asked])
    starting: list[Resource] = []
    unread = stopped[CONFIGS_READ:]
    for row, config in zip(asked, configs, strict=True):
        if row.hastate == "started":
            starting.append(row)
        elif isinstance(config, Problem):
            unread.append(row)
        elif values.is_on(config.get("onboot", 0)):
            starting.append(row)
    return starting, unread


async def _read_config(pve: Cluster, row: Resource) -> Any:
    return await catch_problem(Guest(pve, row).get("config"))


def _fill(
    left: dict[str, int], rooms: Sequence[Room], storages: Mapping[str, list[StorageRoom]], request: Request
) -> Counter[str]:
    """Place guests one by one where most memory is left, until none fits; `left` shrinks."""
    cores = {room.node: room.cores for room in rooms}
    on_storage: Counter[int] = Counter()
    placed: Counter[str] = Counter()
    while sum(placed.values()) < MOST_COUNTED:
        chosen: tuple[int, str, StorageRoom | None] | None = None
        for node, memory in left.items():
            if memory < request.memory or (request.content == "images" and cores[node] < request.cores):
                continue
            storage = _pick_storage(storages.get(node, []), on_storage, request.disk)
            if request.disk and storage is None:
                continue
            if chosen is None or memory > chosen[0]:
                chosen = (memory, node, storage)
        if chosen is None:
            break
        _, node, storage = chosen
        left[node] -= request.memory
        placed[node] += 1
        if storage is not None:
            on_storage[id(storage)] += 1
    return placed


def _pick_storage(storages: list[StorageRoom], on_storage: Counter[int], disk: int) -> StorageRoom | None:
    holding = [storage for storage in storages if disk and storage.holds((on_storage[id(storage)] + 1) * disk)]
    return max(holding, key=lambda storage: storage.free, default=None)


def _fill_without(
    lost: _Commitment,
    commitments: list[_Commitment],
    storages: Mapping[str, list[StorageRoom]],
    request: Request,
) -> Counter[str] | list[Resource]:
    """The new guests that fit on the other nodes in addition to the guests of this one; or those of it that do not."""
    others = [each for each in commitments if each is not lost]
    left = {each.room.node: each.left for each in others}
    rooms = [each.room for each in others]
    placement = place_guests(lost.guests, left, rooms, by_use=False)  # `left` shrinks
    return placement.left or _fill(left, rooms, storages, request)


def _is_local(storages: Mapping[str, list[StorageRoom]], node: str) -> bool:
    shared = {id(storage) for other, listed in storages.items() if other != node for storage in listed}
    return not any(id(storage) in shared for storage in storages.get(node, []))


def _line(each: _Commitment, now: Counter[str], losses: Mapping[str, Counter[str] | list[Resource]]) -> list[Any]:
    room = each.room
    if_lost = losses.get(room.node)
    return [
        room.node,
        size(room.memory),
        size(max(0, room.memory_used - room.guests_use)),
        f"{size(room.memory_given)} ({count_of(len(each.running), 'guest')})",
        _describe_start(each.at_boot),
        size(each.reserve) if each.reserve else "",
        size(each.left) if each.left >= 0 else f"-{size(-each.left)}",
        now[room.node],
        "" if if_lost is None else _describe_loss(if_lost),
    ]


def _why_none(each: _Commitment, now: Counter[str], storages: Mapping[str, list[StorageRoom]], request: Request) -> str:
    """What keeps even one such guest from the node; empty if one fits."""
    if now[each.room.node]:
        return ""
    reasons = []
    if request.content == "images" and each.room.cores < request.cores:
        reasons.append(f"PVE starts no VM with more cores than the node's {each.room.cores:g}")
    if each.left < request.memory:
        reasons.append(f"only {size(max(0, each.left))} of memory are left")
    here = storages.get(each.room.node, [])
    if request.disk and not any(storage.holds(request.disk) for storage in here):
        listed = ", ".join(str(storage) for storage in here) or f"none for {request.content}"
        reasons.append(f"no storage holds {size(request.disk)} ({listed})")
    return "; ".join(reasons)


def _describe_start(at_boot: Sequence[Resource]) -> str:
    return f"{size(sum(row.maxmem for row in at_boot))} ({names(map(guest_label, at_boot))})" if at_boot else ""


def _describe_loss(if_lost: Counter[str] | list[Resource]) -> str:
    if isinstance(if_lost, list):
        return f"0: the others have no room for {names(map(guest_label, if_lost))}"
    return str(sum(if_lost.values()))


def _facts(
    request: Request, now: Counter[str], losses: Mapping[str, Counter[str] | list[Resource]], fails: str | None
) -> dict[str, Any]:
    fitting = sum(now.values())
    after_loss = {node: 0 if isinstance(left, list) else sum(left.values()) for node, left in losses.items()}
    safe = min([fitting, *after_loss.values()])
    most = f"{fitting}" if fitting < MOST_COUNTED else f"at least {fitting}"
    loss = "any one node" if fails in (None, "all") else fails
    enough = {True: "yes", False: "no"}
    facts: dict[str, Any] = {
        "one_guest": ", ".join(
            part
            for part in (
                count_of(request.cores, "core") if request.cores else "",
                f"{size(request.memory)} of memory",
                f"{size(request.disk)} of disk" if request.disk else "",
            )
            if part
        ),
        "requested": request.count,
        "fit": fitting,
        "answer": f"{enough[request.count <= fitting]}: {most} fit without overcommitting",
    }
    if losses:
        facts["fit_with_a_node_lost"] = safe
        facts["answer"] += f"; {enough[request.count <= safe]} if {loss} may fail: then {safe} fit"
        if safe < fitting:
            facts["worst_loss"] = min(after_loss, key=lambda node: (after_loss[node], node))
    facts["place"] = ", ".join(f"{node}: {count}" for node, count in sorted(now.items())) or "nowhere"
    facts["how"] = (
        "left: memory minus the node's own use, all that running guests and those that start at boot were given, and "
        "the reserve. fit_if_it_fails: new guests on the other nodes once they have taken over its guests"
    )
    return facts
