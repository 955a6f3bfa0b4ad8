"""The state of the simulated cluster: nodes, guests, storages, pools, users, tasks."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from pve_simulator.access.directory import Access
from pve_simulator.clock import Clock
from pve_simulator.guests.guest import GIB, Guest, Kind, config_path
from pve_simulator.http.refusals import existing
from pve_simulator.nodes.tasks import Tasks
from pve_simulator.storage.storages import Storage

_Part = TypeVar("_Part")
_Row = TypeVar("_Row")


@dataclass(slots=True)
class Node:
    """A node of the cluster."""

    name: str
    number: int
    ip: str
    booted_at: float
    cpus: int = 16
    sockets: int = 1
    memory: int = 64 * GIB
    swap: int = 8 * GIB
    disk: int = 100 * GIB
    disk_used: int = 18 * GIB
    cpu_model: str = "AMD Ryzen 7 5700G with Radeon Graphics"
    cpu_vendor: str = "AuthenticAMD"
    cpu_mhz: str = "3793.000"
    kernel: str = "6.17.2-1-pve"
    new_kernel: str = "6.17.4-1-pve"  # part of the updates; empty if there is none
    installed_kernel: str = ""  # started at the next boot, if different
    fingerprint: str = ""
    online: bool = True
    died_at: float | None = None  # when it lost its power; None if it is up, or was shut down
    clock_offset: float = 0.0  # seconds that its clock is ahead
    has_restore_image: bool = True  # the package with the helper VM that opens disks in backups
    has_skopeo: bool = True  # the tool that pulls images from registries
    bridges: tuple[str, ...] = ("vmbr0",)
    last_pid: int = field(default=2000)
    outages: list[tuple[float, float]] = field(default_factory=list)  # offline periods, from and to

    def was_off(self, at: float) -> bool:
        return any(start <= at < end for start, end in self.outages)

    def next_pid(self) -> int:
        """A PID for a new process on this node."""
        self.last_pid += 13
        return self.last_pid


@dataclass(slots=True)
class HaResource:
    """A guest managed by HA."""

    sid: str
    state: str = "started"
    comment: str | None = None
    max_restart: int = 1
    max_relocate: int = 1
    failback: bool = True
    group: str | None = None
    options: dict[str, str | int] = field(default_factory=dict)  # those that were set, as the file has them
    crm_state: str | None = "started"  # the manager's state; None until it has seen the resource
    shown_state: str = "started"


class PerNode(Generic[_Part]):
    """A per-node part of the world, created on first use."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._by_node: dict[str, _Part] = {}

    def of(self, node: str) -> _Part:
        if node not in self._by_node:
            self._by_node[node] = self.make(self._world.nodes[node])
        return self._by_node[node]

    def make(self, node: Node) -> _Part:
        raise NotImplementedError


class World:
    """Everything there is. Domain code changes it; the API shows it."""

    def __init__(self, *, clock: Clock, access: Access, name: str, seed: int, version: str) -> None:
        self.clock = clock
        self.access = access
        self.name = name
        self.seed = seed
        self.version = version
        self.started_at = clock.now()
        self.nodes: dict[str, Node] = {}
        self.guests: dict[int, Guest] = {}
        self.storages: dict[str, Storage] = {}
        self.ha: dict[str, HaResource] = {}
        self.clustered = False  # a single node is standalone until it creates a cluster
        self.quorate_override: bool | None = None
        self.has_qdevice = False  # an external machine with a vote
        self.tasks = Tasks(clock, booted_at=self.started_at - 40 * 86400)
        self.tasks.clock_offset_of = lambda node: self.nodes[node].clock_offset
        self.on_guest_removed: list[Callable[[int], None]] = []
        self._parts: dict[type[Any], Any] = {}

    def part(self, kind: type[_Part]) -> _Part:
        """The state of one domain, such as the services of the nodes; `kind(world)` creates it on first use."""
        state: _Part | None = self._parts.get(kind)
        if state is None:
            state = self._parts[kind] = kind(self)  # type: ignore[call-arg]
        return state

    @property
    def quorate(self) -> bool:
        """Whether more than half of the votes are present, unless a fault overrides it."""
        if self.quorate_override is not None:
            return self.quorate_override
        votes = sum(node.online for node in self.nodes.values()) + self.has_qdevice
        return votes * 2 > len(self.nodes) + self.has_qdevice

    @property
    def standalone(self) -> bool:
        """Whether this is a standalone node."""
        return len(self.nodes) == 1 and not self.clustered

    @property
    def release(self) -> str:
        """The version's first two numbers, such as 9.1."""
        return ".".join(self.version.split(".")[:2])

    def version_at_least(self, *numbers: int) -> bool:
        """Whether the simulated PVE is of this version or newer."""
        own = tuple(int(part) for part in self.version.split(".") if part.isdecimal())
        return own >= numbers

    def first_online(self) -> Node:
        """The node that answers for one that is down."""
        nodes = list(self.nodes.values())
        return next((node for node in nodes if node.online), nodes[0])

    def node(self, name: str) -> Node:
        """The node, or PVE's refusal of an unknown name."""
        missing = f"hostname lookup '{name}' failed - failed to get address info for: {name}: Name or service not known"
        return existing(self.nodes.get(name), missing)

    def find_guest(self, node: str, kind: Kind, vmid: int) -> Guest | None:
        """The guest, if it is of this kind and on this node."""
        guest = self.guests.get(vmid)
        if guest is None or guest.kind != kind or guest.node != node:
            return None
        return guest

    def guest(self, node: str, kind: Kind, vmid: int) -> Guest:
        """The guest, or PVE's refusal that names the missing configuration file."""
        return existing(self.find_guest(node, kind, vmid), missing_config(node, kind, vmid))

    def storage(self, storage_id: str) -> Storage:
        """The storage, enabled or not."""
        return existing(self.storages.get(storage_id), f"storage '{storage_id}' does not exist")

    def guests_on(self, node: str, kind: Kind | None = None) -> list[Guest]:
        return [guest for guest in self.guests.values() if guest.node == node and (kind is None or guest.kind == kind)]

    def add_guest(self, guest: Guest) -> None:
        """Add a new guest: its id shows at once, the rest after its node's next report."""
        guest.created_at = self.clock.now()
        self.guests[guest.vmid] = guest

    def remove_guest(self, guest: Guest) -> None:
        """Remove a guest; the caller cleans up pools and ACLs."""
        del self.guests[guest.vmid]
        for forget in self.on_guest_removed:
            forget(guest.vmid)

    def next_free_vmid(self) -> int:
        vmid = 100
        while vmid in self.guests:
            vmid += 1
        return vmid

    def guest_cpus(self, guest: Guest) -> int:
        """The number of CPUs; a container without a limit has all of its node's."""
        return guest.cores or self.nodes[guest.node].cpus

    def managed_by_ha(self, guest: Guest) -> HaResource | None:
        resource = self.ha.get(guest.sid)
        return None if resource is None or resource.state == "ignored" else resource


def missing_config(node: str, kind: Kind, vmid: int) -> str:
    """PVE's text for a guest that is not on this node."""
    return f"Configuration file '{config_path(node, kind, vmid)}' does not exist"


class ListOrder:
    """PVE keeps nodes, storages, content types, the guests of a node and snapshots in hashes, so each of its workers
    lists them in its own order."""

    def __init__(self, world: World) -> None:
        self._chance = random.Random(world.seed)  # noqa: S311 (repeatable on purpose)

    def shuffle(self, rows: Sequence[_Row]) -> list[_Row]:
        return self._chance.sample(rows, len(rows))
