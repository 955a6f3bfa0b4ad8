"""References to a volume: from configurations, snapshots and pending changes of all guests, and from linked clones.

PVE takes the owner of a volume from its name, but any configuration may use any volume, under the name of any storage,
node or path.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from quorate.operations.preconditions import snapshots_of
from quorate.problems import NotFound, Problem
from quorate.pve import values
from quorate.pve.cluster import Cluster, Guest
from quorate.pve.lookup import Resource
from quorate.pve.storage_places import (
    Locator,
    ServerNames,
    StoragePlace,
    follow_mounts,
    named_volumes,
    path_locator,
    read_place,
)
from quorate.pve.targets import owner
from quorate.pve.tasks import gather_bounded
from quorate.tools.storages import StoredVolume

READS_AT_ONCE = 16
NAMED_AT_MOST = 5
UNREFERENCED = ("backup/", "vztmpl/")
"""Kinds of volumes that no configuration refers to: backups, and templates that containers were made from."""


@dataclass(frozen=True, slots=True)
class NamedVolume:
    """A volume that is about to be deleted."""

    volid: str
    node: str
    spared: int | None = None
    """The guest whose own references do not count, because they are deleted as well."""
    must_be_proven: bool = True
    """Refuse the deletion if a configuration cannot be read, instead of only reporting it."""

    @property
    def storage(self) -> str:
        return self.volid.partition(":")[0]

    @property
    def name(self) -> str:
        return self.volid.partition(":")[2]


@dataclass(frozen=True, slots=True)
class Reference:
    """One thing that refers to a volume."""

    volume: NamedVolume
    by: str
    """The guest or volume: "vm 6161 db01"."""
    where: str
    """The option, snapshot or pending change there."""
    vmid: int | None = None
    cluster: str = ""
    """The other cluster it is in, if it is not this one."""

    def __str__(self) -> str:
        return f"{self.where} of {self.by}" if self.where else self.by


@dataclass(slots=True)
class Survey:
    """What was read to find references, and the references."""

    guests: int = 0
    snapshots: int = 0
    clusters: list[str] = field(default_factory=list)
    """Other clusters that were read, because they may use the same storage."""
    unread: list[str] = field(default_factory=list)
    references: list[Reference] = field(default_factory=list)

    def describe(self, volumes: int) -> str:
        """One line for the person who decides."""
        others = f" here and in {', '.join(self.clusters)}" if self.clusters else ""
        checked = f"{_count(self.guests, 'guest')}{others}, {_count(self.snapshots, 'snapshot')}, pending changes"
        result = "nothing refers to it" if volumes == 1 else "nothing refers to them"
        missing = f"; could not be read: {'; '.join(self.unread[:NAMED_AT_MOST])}" if self.unread else ""
        return f"{checked} and linked clones; {result}{missing}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def may_be_referenced(volid: str) -> bool:
    return not volid.partition(":")[2].startswith(UNREFERENCED)


async def find_references(cluster: Cluster, volumes: Sequence[NamedVolume], others: Sequence[Cluster] = ()) -> Survey:
    """Everything that refers to these volumes of a cluster. `others` are clusters that may use the same storages."""
    search = _Search(cluster.original, volumes)
    await search.read_places()
    await search.read_guests()
    await search.read_clones()
    for other in others:
        await search.read_other_cluster(other.original)
    return search.survey


async def find_vmids_elsewhere(
    cluster: Cluster, storages: Collection[str], others: Sequence[Cluster]
) -> dict[str, frozenset[int] | None]:
    """For each storage that other clusters use as well, the vmids of their guests; None if not all are known."""
    search = _Search(cluster.original, ())
    await search.read_places()
    vmids_by_storage: dict[str, frozenset[int] | None] = {}
    for other in others:
        for storage, vmids in (await search.vmids_of(other.original, storages)).items():
            known = vmids_by_storage.get(storage, frozenset())
            vmids_by_storage[storage] = None if vmids is None or known is None else known | vmids
    return vmids_by_storage


@dataclass(slots=True)
class _GuestConfigs:
    """Every section of a guest's configuration as options and values, as far as it could be read."""

    guest: Guest
    sections: list[tuple[str, list[tuple[str, object]]]] = field(default_factory=list)
    snapshots: int = 0
    problem: str = ""


async def _read_guests(cluster: Cluster) -> list[_GuestConfigs]:
    """The configurations of all guests. Calls that ask before a reading starts share it."""
    waiting = _WAITING.get(cluster)
    if waiting is None:
        waiting = _WAITING[cluster] = asyncio.ensure_future(_read_guests_next(cluster))
    return await asyncio.shield(waiting)


async def _read_guests_next(cluster: Cluster) -> list[_GuestConfigs]:
    async with _READING.setdefault(cluster, asyncio.Lock()):  # a reading in progress may have missed a change by now
        del _WAITING[cluster]
        cluster.inventory.forget()
        rows = (await cluster.inventory.view()).guests
        return await gather_bounded(READS_AT_ONCE, [partial(_read_guest, cluster, row) for row in rows])


_WAITING: WeakKeyDictionary[Cluster, asyncio.Future[list[_GuestConfigs]]] = WeakKeyDictionary()
_READING: WeakKeyDictionary[Cluster, asyncio.Lock] = WeakKeyDictionary()


async def _read_guest(cluster: Cluster, row: Resource) -> _GuestConfigs:
    configs = _GuestConfigs(guest := Guest(cluster, row))
    try:
        entries = await guest.get("pending")
        configs.sections.append(("", [(str(entry["key"]), entry["value"]) for entry in entries if "value" in entry]))
        pending = [(str(entry["key"]), entry["pending"]) for entry in entries if "pending" in entry]
        configs.sections.append(("a pending change of ", pending))
        for snapshot in await snapshots_of(guest):
            name = str(snapshot["name"])
            config = await guest.get(f"snapshot/{name}/config")
            configs.sections.append((f"snapshot {name}, ", list(config.items())))
            configs.snapshots += 1
    except Problem as problem:
        offline = row.node not in (await cluster.inventory.view()).online
        configs.problem = f"{row.node} is offline" if offline else problem.what
    return configs


class _Search:
    def __init__(self, cluster: Cluster, volumes: Sequence[NamedVolume]) -> None:
        self.survey = Survey()
        self._cluster = cluster
        self._volumes = volumes
        self._servers = ServerNames()
        self._places: dict[str, StoragePlace] = {}
        self._targets: dict[Locator, list[NamedVolume]] = {}
        self._replicas: dict[int, set[str]] = {}
        """By guest, the nodes that have copies of its disks."""

    async def read_places(self) -> None:
        self._places = await self._places_of(self._cluster)
        for volume in self._volumes:
            place = self._places.get(volume.storage)
            for locator in place.locate(volume.name) if place else {Locator("id", "", volume.volid)}:
                self._targets.setdefault(locator, []).append(volume)

    async def _places_of(self, cluster: Cluster) -> dict[str, StoragePlace]:
        rows = await cluster.get("/storage")
        return {
            place.id: place for place in follow_mounts([read_place(row, self._servers, cluster.name) for row in rows])
        }

    def _shared(self, volume: NamedVolume) -> bool:
        place = self._places.get(volume.storage)
        return place is not None and place.shared

    # -- guests ----------------------------------------------------------------------------------------------------

    async def read_guests(self) -> None:
        await self._note_hidden_guests(self._cluster)
        await self._read_replication()
        for guest, hits in await self._hits_in(self._cluster, self._places):
            for volume, where, volid in hits:
                if guest.vmid == volume.spared:
                    continue
                if self._shared(volume) or await self._means_this_copy(guest, volume, volid):
                    self.survey.references.append(Reference(volume, str(guest), where, guest.vmid))

    async def _note_hidden_guests(self, cluster: Cluster, prefix: str = "") -> None:
        """A guest that these credentials cannot see may use anything."""
        if not await cluster.sees_everything_in("/vms", "VM.Audit"):
            self.survey.unread.append(
                f"{prefix}guests that {cluster.client.identity} may not see (it lacks VM.Audit on all of /vms)"
            )
            return
        known = (await cluster.inventory.view()).by_vmid
        for vmid in sorted(
            {vmid for volume in self._volumes if (vmid := owner(volume.volid)) is not None} - known.keys()
        ):
            try:
                await cluster.get("/cluster/nextid", vmid=vmid)
            except Problem as problem:  # PVE says whether an id is taken even to those who cannot see the guest
                if "already exists" in f"{problem.what} {problem.why}":
                    self.survey.unread.append(f"{prefix}guest {vmid}, which is hidden from these credentials")

    async def _read_replication(self) -> None:
        try:
            jobs = await self._cluster.get("/cluster/replication")
        except Problem as problem:
            self.survey.unread.append(f"replication jobs: {problem.what}")
            return
        for job in jobs or ():
            self._replicas.setdefault(int(job.get("guest") or 0), set()).add(str(job.get("target", "")))

    async def _hits_in(
        self, cluster: Cluster, places: Mapping[str, StoragePlace], prefix: str = ""
    ) -> list[tuple[Guest, list[tuple[NamedVolume, str, str]]]]:
        """The guests of a cluster that name one of the volumes: where they do, and how."""
        named = []
        for guest in await _read_guests(cluster):
            if guest.problem:
                self.survey.unread.append(f"{prefix}{guest.guest}: {guest.problem}")
            else:
                self.survey.guests += 1
            self.survey.snapshots += guest.snapshots
            if hits := [hit for section, config in guest.sections for hit in self._hits(section, config, places)]:
                named.append((guest.guest, hits))
        return named

    def _hits(
        self, section: str, config: Iterable[tuple[str, object]], places: Mapping[str, StoragePlace]
    ) -> Iterator[tuple[NamedVolume, str, str]]:
        for option, named in named_volumes(config):
            for volume in dict.fromkeys(self._matches(named, places)):
                yield volume, f"{section}{option}", named

    def _matches(self, named: str, places: Mapping[str, StoragePlace]) -> Iterator[NamedVolume]:
        if named.startswith("/"):
            yield from self._targets.get(path_locator(named), ())
            return
        storage, _, name = named.partition(":")
        place = places.get(storage)
        if place is None:  # a storage that is gone, or that these credentials cannot see: the name alone decides
            own = name.rpartition("/")[2]
            yield from (volume for volume in self._volumes if volume.name.rpartition("/")[2] == own)
            return
        for locator in place.locate(name) | place.locate_bases(name):
            yield from self._targets.get(locator, ())

    async def _means_this_copy(self, guest: Guest, volume: NamedVolume, named: str) -> bool:
        """On a storage that each node has for itself, the name means the copy on the volume's node."""
        node = guest.row.node
        if node == volume.node or volume.node in self._replicas.get(guest.vmid, ()):
            return True
        if named.startswith("/"):
            return False
        storage = named.partition(":")[0]
        if storage in self._places and self._places[storage].shared:
            return True
        try:  # a guest that was recovered on another node left its disks behind
            listed = await self._cluster.get(f"/nodes/{node}/storage/{storage}/content")
        except Problem:
            return True
        return all(row.get("volid") != named for row in listed)

    # -- linked clones ---------------------------------------------------------------------------------------------

    async def read_clones(self) -> None:
        """Volumes that build on one of them, even if no guest uses them. Only disks have such clones."""
        for node, storage in sorted(
            {(volume.node, volume.storage) for volume in self._volumes if "iso/" not in volume.name}
        ):
            here = [volume for volume in self._volumes if (volume.node, volume.storage) == (node, storage)]
            try:
                rows = await self._cluster.client.get_as(list[StoredVolume], f"/nodes/{node}/storage/{storage}/content")
            except NotFound:
                continue
            except Problem as problem:
                self.survey.unread.append(f"{storage} on {node}: {problem.what}")
                continue
            by_name: dict[str, list[NamedVolume]] = {}
            for volume in here:
                by_name.setdefault(volume.name.rpartition("/")[2], []).append(volume)
            for row in rows:
                for volume in (base for name in _bases_of(row) for base in by_name.get(name, ())):
                    if row.volid != volume.volid and row.vmid != volume.spared:
                        self.survey.references.append(Reference(volume, f"the linked clone {row.volid}", ""))

    # -- other clusters --------------------------------------------------------------------------------------------

    async def read_other_cluster(self, other: Cluster) -> None:
        """Guests of another cluster that may use the same storage: the same export, pool or volume group."""
        shared = [volume for volume in self._volumes if self._shared(volume)]
        if not shared:
            return
        try:
            places = await self._places_of(other)
        except Problem as problem:
            self.survey.unread.append(f"cluster {other.name}: {problem.what}")
            return
        common = self._common_places(places.values(), {volume.storage for volume in shared})
        if not await other.sees_everything_in("/storage", "Datastore.Audit"):
            self.survey.unread.append(f"storages of cluster {other.name} that {other.client.identity} may not see")
        if not common:
            return
        prefix = f"cluster {other.name}, "
        try:
            await self._note_hidden_guests(other, prefix)
            hits_by_guest = await self._hits_in(other, common, prefix)
        except Problem as problem:
            self.survey.unread.append(f"cluster {other.name}: {problem.what}")
            return
        self.survey.clusters.append(other.name)
        self.survey.references += [
            Reference(volume, str(guest), where, guest.vmid, other.name)
            for guest, hits in hits_by_guest
            for volume, where, _ in hits
            if self._shared(volume)
        ]

    async def vmids_of(self, other: Cluster, storages: Collection[str]) -> dict[str, frozenset[int] | None]:
        """By storage that the other cluster shares or may share, the vmids there; None if not all are known."""
        shared = [name for name in storages if name in self._places and self._places[name].shared]
        if not shared:
            return {}
        try:
            theirs = (await self._places_of(other)).values()
            sees_storages = await other.sees_everything_in("/storage", "Datastore.Audit")
            common = [name for name in shared if not sees_storages or self._common_places(theirs, {name})]
            other.inventory.forget()
            complete = sees_storages and await other.sees_everything_in("/vms", "VM.Audit")
            vmids = frozenset((await other.inventory.view()).by_vmid) if complete and common else None
        except Problem:
            return dict.fromkeys(shared)
        return dict.fromkeys(common, vmids)

    def _common_places(self, theirs: Iterable[StoragePlace], ours: Collection[str]) -> dict[str, StoragePlace]:
        """The storages of another cluster that lead to the same data as one of these, under their own names."""
        roots = {root for storage in ours for root in self._places[storage].roots}
        return {
            place.id: place for place in theirs if place.shared and any(_overlap(root, roots) for root in place.roots)
        }


def _overlap(root: Locator, roots: Iterable[Locator]) -> bool:
    """One leads into the other, such as a folder of the same export."""
    return any(
        (root.kind, root.server) == (other.kind, other.server)
        and (f"{root.place}/".startswith(f"{other.place}/") or f"{other.place}/".startswith(f"{root.place}/"))
        for other in roots
    )


def _bases_of(row: StoredVolume) -> set[str]:
    """The names of the volumes that one builds on: what the storage reports, and what its own name shows."""
    parent = (row.parent or "").partition("@")[0].rpartition("/")[2]
    return {*row.name.split("/")[:-1], *([parent] if parent else [])}


def drive_volumes(config: Mapping[str, Any]) -> list[str]:
    """The volumes of a guest's drives and mount points, used or not."""
    return [
        volid
        for key, value in config.items()
        if values.bus_of(key) in {*values.DISKS, "unused"} and ":" in (volid := values.volume_of(str(value)))
    ]
