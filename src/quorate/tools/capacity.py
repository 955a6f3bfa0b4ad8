"""Capacity: how much room there is, where a guest of some size would fit, and whether the cluster could lose a node."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

from msgspec import Meta

from quorate.operations.registry import Risk, Table, operation, page
from quorate.problems import BadArgument, Conflict, NotFound, Problem, catch_problem
from quorate.pve import values
from quorate.pve.cluster import Cluster, Guest
from quorate.pve.inventory import Resource
from quorate.pve.tasks import gather_bounded
from quorate.tools.capacity_commitments import Request, count_fitting
from quorate.tools.capacity_rooms import Placement, Room, StorageRoom, place_guests, rooms_of, storages_of
from quorate.tools.health_findings import guest_label, names
from quorate.units import count_of, parse_size, percent, size

CONFIGS_AT_ONCE = 8
CONFIGS_READ = 500
LOSSES_SHOWN = 50

LOSS_COLUMNS = (
    "fails",
    "guests",
    "memory_given",
    "room",
    "to",
    "no_room_for",
    "only_from_backup",
    "start_by_hand",
    "unread",
)


async def plan(pve: Cluster, rows: list[Resource], rooms: list[Room], fails: str) -> Table:
    nodes = sorted(row.node for row in rows if row.type == "node")
    if fails != "all" and fails not in nodes:
        try:
            await pve.inventory.node(fails)
        except NotFound as missing:
            raise NotFound(missing.what, next_step=f"The nodes are {', '.join(nodes)}; or say all") from None
    if len(nodes) == 1:
        raise Conflict("There is only one node", why="No node is left to take its guests")
    failing = nodes[:LOSSES_SHOWN] if fails == "all" else [fails]
    concerned = [row for row in rows if row.is_guest and row.node in failing and _counts(row, rooms)]
    stuck, unread = await _on_local_disks(pve, rows, concerned[:CONFIGS_READ])
    unread |= {row.vmid for row in concerned[CONFIGS_READ:]}
    lines = [_loss(node, [row for row in concerned if row.node == node], rooms, stuck, unread) for node in failing]
    facts: dict[str, Any] = {
        "how": "room=yes: the others have all the memory that its running guests were given; overcommitted: only what "
        "they use now. only_from_backup: their disks are gone with the node and not replicated. "
        "start_by_hand: not under HA",
    }
    if fails == "all":
        survives = all(line[3] == "yes" and not line[6] and not line[8] for line in lines)
        facts["verdict"] = "Any one node may fail" if survives else "Not every node can fail without loss"
    if len(nodes) > len(failing) > 1:
        facts["left_out"] = nodes[LOSSES_SHOWN:]
    table = page(LOSS_COLUMNS, lines, limit=LOSSES_SHOWN, offset=0)
    table.facts = facts
    return table


def _counts(row: Resource, rooms: list[Room]) -> bool:
    """True for running guests, and for all guests of a node that is already down: which of them ran is unknown."""
    gone = row.node not in {room.node for room in rooms}
    return not row.template and (gone or row.status == "running")


def _loss(node: str, guests: list[Resource], rooms: list[Room], stuck: dict[int, str], unread: set[int]) -> list[Any]:
    others = [room for room in rooms if room.node != node]
    safe = place_guests(guests, {room.node: room.memory_ungiven for room in others}, others, by_use=False)
    verdict, placement = "yes", safe
    if safe.left:
        placement = place_guests(guests, {room.node: room.memory_free for room in others}, others, by_use=True)
        verdict = "no" if placement.left else "overcommitted"
    if any(not row.maxmem for row in guests):
        verdict, placement = (
            "unknown: the sizes of its guests are not known while it is down",
            Placement(Counter(), []),
        )
    return [
        node,
        len(guests),
        size(sum(row.maxmem for row in guests)),
        verdict,
        ", ".join(f"{name}: {count}" for name, count in sorted(placement.to.items())),
        names(guest_label(row) for row in placement.left),
        names(f"{guest_label(row)} ({stuck[row.vmid]})" for row in guests if row.vmid in stuck),
        names(guest_label(row) for row in guests if not row.hastate and row.vmid not in stuck.keys() | unread),
        names(guest_label(row) for row in guests if row.vmid in unread),
    ]


async def _on_local_disks(
    pve: Cluster, rows: list[Resource], guests: list[Resource]
) -> tuple[dict[int, str], set[int]]:
    """vmid -> storages that only its node has; and the guests whose configuration could not be read."""
    replicated = await _replicated_guests(pve)
    shared = {row.storage for row in rows if row.type == "storage" and row.shared}
    configs = await gather_bounded(CONFIGS_AT_ONCE, [partial(_read_config, pve, row) for row in guests])
    stuck: dict[int, str] = {}
    unread: set[int] = set()
    for row, config in zip(guests, configs, strict=True):
        if isinstance(config, Problem):
            unread.add(row.vmid)
        elif row.vmid not in replicated and (local := sorted(_storages(config) - shared)):
            stuck[row.vmid] = ", ".join(local)
    return stuck, unread


async def _read_config(pve: Cluster, row: Resource) -> Any:
    return await catch_problem(Guest(pve, row).get("config"))


async def _replicated_guests(pve: Cluster) -> set[int]:
    """Guests with a copy of their disks on another node, a few minutes old."""
    jobs = await catch_problem(pve.get("/cluster/replication"))
    return set() if isinstance(jobs, Problem) else {int(job["guest"]) for job in jobs if not job.get("disable")}


def _storages(config: dict[str, Any]) -> set[str]:
    """The storages that hold the disks and mount points of a guest."""
    volumes = [
        values.parse(str(value), "volume").get("volume") or values.parse(str(value), "volume").get("file", "")
        for key, value in config.items()
        if values.is_disk(key, str(value))
    ]
    return {volume.partition(":")[0] if ":" in volume else "a path of the node" for volume in volumes if volume}


READS_AT_ONCE = 8
NODES_SHOWN = 50

COLUMNS = ("node", "fits", "memory_used", "memory_given", "cores_given", "cpu", "storage", "why")
KINDS = {"images": "disks of VMs", "rootdir": "disks of containers"}
# From best to worst.
VERDICTS = ("yes", "overcommitted", "no")


@operation(
    toolset="reports",
    risk=Risk.READ,
    search_words=(
        "cope losing node survive run more vms size hold enough room fit another new guest place which node has "
        "most free memory dies fails goes down everything rest spare headroom how many overcommit reserve start boot"
    ),
)
async def capacity_plan(
    pve: Cluster,
    cores: Annotated[int, Meta(ge=1)] | None = None,
    memory: Annotated[int | str, Meta(description="MiB, or such as 8G")] | None = None,
    disk: Annotated[int | str, Meta(description="GiB, or such as 100G")] | None = None,
    content: Annotated[Literal["images", "rootdir"], Meta(description="images: VM, rootdir: container")] = "images",
    fails: Annotated[str, Meta(description="What if this node fails; all: each in turn")] | None = None,
    count: Annotated[int, Meta(ge=1, description="How many such guests")] | None = None,
    reserve: Annotated[int | str, Meta(description="With count: memory kept free per node, 4G or 10%")] | None = None,
) -> Table:
    """Where a guest of this size would fit, or with `fails` whether the guests of a node fit on the others.

    With `count` and `memory`: how many fit without overcommitting, even if any one node fails; guests that start at
    boot count, too. Without arguments: the room on every node, by what is used now and assigned to running guests.
    """
    rows = await pve.inventory.rows()
    rooms = rooms_of(rows)
    if not rooms:
        raise Conflict(
            "No node reports how much room it has",
            why="They are offline, or these credentials lack Sys.Audit on /nodes",
        )
    if count is None and reserve is not None:
        raise BadArgument("reserve needs count", next_step="Say how many guests are planned, and the memory of one")
    if fails is not None and count is None:
        if (cores, memory, disk) != (None, None, None):
            raise BadArgument(
                "fails cannot be combined with cores, memory and disk", next_step="Ask for them separately"
            )
        return await plan(pve, rows, rooms, fails)
    wanted_memory = parse_size(memory, unit="M") if memory is not None else 0
    wanted_disk = parse_size(disk, unit="G") if disk is not None else 0
    request = _Size(cores or 0, wanted_memory, wanted_disk, content)
    places = storages_of(rows, content) if request.disk else {}
    unique_places = list({id(place): place for here in places.values() for place in here}.values())
    await gather_bounded(READS_AT_ONCE, [partial(place.read_promises, pve) for place in unique_places])
    if count is not None:
        planned = Request(count, request.memory, request.cores, request.disk, content)
        return await count_fitting(pve, rows, rooms, places, planned, reserve, fails)
    fits = [_fit(room, places.get(room.node, []), request) for room in rooms]
    fits.sort(key=lambda fit: (VERDICTS.index(fit.verdict), fit.load))
    table = page(COLUMNS, [fit.row for fit in fits[:NODES_SHOWN]], limit=NODES_SHOWN, offset=0)
    table.facts = _facts(rows, rooms, fits, request)
    return table


@dataclass(frozen=True, slots=True)
class _Size:
    cores: int
    memory: int
    disk: int
    content: str

    def __str__(self) -> str:
        parts = (
            count_of(self.cores, "core") if self.cores else "",
            f"{size(self.memory)} of memory" if self.memory else "",
            f"{size(self.disk)} for {self.content}" if self.disk else "",
        )
        return ", ".join(part for part in parts if part)


@dataclass(frozen=True, slots=True)
class _Fit:
    """A node with the guest added to it."""

    room: Room
    storage: StorageRoom | None
    request: _Size
    verdict: str
    why: list[str]

    @property
    def share(self) -> float:
        return (self.room.memory_given + self.request.memory) / self.room.memory

    @property
    def cores_share(self) -> float:
        return (self.room.cores_given + self.request.cores) / self.room.cores

    @property
    def load(self) -> float:
        """The resource that would be the scarcest of those that were requested."""
        return max(self.share, self.cores_share) if self.request.cores else self.share

    @property
    def row(self) -> list[Any]:
        room, cores = self.room, self.room.cores_given + self.request.cores
        return [
            room.node,
            self.verdict,
            f"{size(room.memory_used + self.request.memory)}/{size(room.memory)}",
            f"{size(room.memory_given + self.request.memory)} {percent(self.share)}",
            f"{cores:g} of {room.cores:g} ({self.cores_share:.1f}:1)",
            percent(room.load),
            str(self.storage) if self.storage else "",
            "; ".join(self.why),
        ]


def _fit(room: Room, storages: list[StorageRoom], request: _Size) -> _Fit:
    """Assess a node. `no`: it would fail or starve the node; `overcommitted`: fine while guests use less than given."""
    impossible: list[str] = []
    risky: list[str] = []
    if request.cores > room.cores and request.content == "images":
        impossible.append(f"PVE starts no VM with more cores than the node's {room.cores:g}")
    elif request.cores > room.cores:
        risky.append(f"a container gets no more than the node's {room.cores:g} cores")
    elif request.cores > room.cores_idle:
        risky.append(f"only {room.cores_idle:.1f} of the node's {room.cores:g} cores are idle now")
    if request.memory > room.memory_free:
        impossible.append(f"only {size(room.memory_free)} of memory are free now")
    elif request.memory > room.memory_ungiven:
        risky.append(f"guests could then claim {size(request.memory - room.memory_ungiven)} more memory than is left")
    best = max(storages, key=lambda storage: (storage.holds(request.disk), storage.free), default=None)
    if request.disk and best is None:
        impossible.append(f"none of its storages takes {KINDS[request.content]} (content {request.content})")
    elif request.disk and best is not None and best.free < request.disk:
        listed = ", ".join(f"{storage.name} {size(storage.free)}" for storage in storages)
        impossible.append(f"no storage has {size(request.disk)} free ({listed})")
    elif best is not None and not best.holds(request.disk):
        promised = size(best.promised + request.disk)
        risky.append(f"{best.name} would have promised {promised} of {size(best.total)}")
    verdict = "no" if impossible else "overcommitted" if risky else "yes"
    return _Fit(room, best, request, verdict, impossible + risky)


def _facts(rows: list[Resource], rooms: list[Room], fits: list[_Fit], request: _Size) -> dict[str, Any]:
    facts: dict[str, Any] = {"with": str(request) or "nothing new: the nodes as they are"}
    facts["best"] = fits[0].room.node if fits[0].verdict != "no" else "none"
    silent = sorted({row.node for row in rows if row.type == "node"} - {room.node for room in rooms})
    if silent:
        facts["not_counted"] = [
            f"{node} (offline, or its numbers are hidden from these credentials)" for node in silent
        ]
    if len(fits) > NODES_SHOWN:
        facts["left_out"] = f"{len(fits) - NODES_SHOWN} nodes that fit less well"
    facts["how"] = (
        "yes: fits even if every running guest uses all it was given; overcommitted: fits as long as they do not. "
        "Stopped guests are not counted; CPU is shared, so cores may be given several times as long as some are idle"
    )
    return facts
