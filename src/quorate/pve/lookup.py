"""Lookup by name or id in one read of the cluster, and the errors for what does not exist."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import msgspec

from quorate.hints import Advice, see, tools
from quorate.problems import BadArgument, Conflict, GuestNotFound, NotFound
from quorate.suggestions import did_you_mean, similar

CANDIDATES_SHOWN = 8
SELECTIONS_KEPT = 16
GUEST_ARGUMENTS = ("guest", "guests", "exclude", "add_guests", "remove_guests", "other")


class StaleName(Conflict):
    """The guest found by this name has been renamed; a second attempt asks the nodes."""


class Resource(msgspec.Struct, frozen=True, gc=False):
    """A row of `/cluster/resources`: a guest, a node, a storage, a pool or a network."""

    type: str
    id: str
    node: str = ""
    status: str = "unknown"
    vmid: int = 0
    name: str = ""
    template: int = 0
    pool: str = ""
    tags: str = ""
    lock: str = ""
    hastate: str = ""
    storage: str = ""
    plugintype: str = ""
    content: str = ""
    shared: int = 0
    uptime: int = 0
    cpu: float = 0.0
    maxcpu: float = 0.0
    mem: int = 0
    maxmem: int = 0
    disk: int = 0
    maxdisk: int = 0
    netin: int = 0
    netout: int = 0
    diskread: int = 0
    diskwrite: int = 0
    level: str = ""
    seen_at: float = 0.0
    """For a guest of a node that is offline: when that node last reported it; 0 if this server never saw that."""
    seen_as: str = ""
    """Its status then."""
    node_is_offline: bool = False

    @property
    def is_guest(self) -> bool:
        return self.type in ("qemu", "lxc")

    @property
    def is_unreported(self) -> bool:
        """Whether the node has not reported this guest yet, so that name, status and sizes are missing."""
        return self.status == "unknown" and not self.name

    @property
    def kind(self) -> str:
        """vm or ct, as callers write it."""
        return "vm" if self.type == "qemu" else "ct"

    @property
    def tag_list(self) -> list[str]:
        return [tag for tag in self.tags.replace(",", ";").split(";") if tag]

    def holds(self, content: str) -> bool:
        """Whether a storage accepts this kind of content."""
        return content in self.content.split(",")

    def without_node(self, last: Resource | None, seen_at: float) -> Resource:
        """The guest while its node is offline: its status is unknown, and the rest is what that node last reported."""
        known = self if last is None or (self.name and not self.is_unreported) else last
        return msgspec.structs.replace(
            known,
            node=self.node, status="unknown", lock=self.lock, tags=self.tags, pool=self.pool, hastate=self.hastate,
            uptime=0, cpu=0.0, mem=0, node_is_offline=True,
            seen_at=seen_at if last is not None else 0.0, seen_as=last.status if last is not None else "",
        )  # fmt: skip

    def __str__(self) -> str:
        return f"{self.name or 'unnamed'} ({self.kind} {self.vmid} on {self.node})"


class LastSeen:
    """What the nodes last reported of their guests: PVE forgets it three minutes after a node has died."""

    def __init__(self) -> None:
        self._guests: dict[int, Resource] = {}
        self._seen_at: dict[str, float] = {}

    def complete(self, rows: list[Resource], now: float) -> list[Resource]:
        """Remember the guests of the nodes that are online, and complete those of the others."""
        online = {row.node for row in rows if row.type == "node" and row.status == "online"}
        offline = {row.node for row in rows if row.type == "node" and row.status != "online"}
        self._seen_at |= dict.fromkeys(online, now)
        reported = {row.vmid: row for row in rows if row.is_guest and row.node in online and not row.is_unreported}
        if not offline:
            self._guests = reported
            return rows
        known = self._guests | reported
        self._guests = {row.vmid: known[row.vmid] for row in rows if row.is_guest and row.vmid in known}
        return [self._complete(row) if row.is_guest and row.node in offline else row for row in rows]

    def _complete(self, row: Resource) -> Resource:
        last = self._guests.get(row.vmid)
        same = last if last is not None and (last.type, last.node) == (row.type, row.node) else None
        return row.without_node(same, self._seen_at.get(row.node, 0.0))


class View:
    """The rows of one read, indexed."""

    def __init__(self, rows: list[Resource]) -> None:
        self.rows = rows
        self._selections: dict[Hashable, Sequence[Resource]] = {}

    @cached_property
    def _by_type(self) -> dict[str, list[Resource]]:
        rows: dict[str, list[Resource]] = {}
        for row in self.rows:
            rows.setdefault(row.type, []).append(row)
        return rows

    @cached_property
    def guests(self) -> list[Resource]:
        return [row for row in self.rows if row.is_guest]

    @cached_property
    def by_vmid(self) -> dict[int, Resource]:
        return {row.vmid: row for row in self.guests}

    @cached_property
    def _by_name(self) -> dict[str, list[Resource]]:
        rows: dict[str, list[Resource]] = {}
        for row in self.guests:
            if row.name:
                rows.setdefault(row.name, []).append(row)
        return rows

    @cached_property
    def nodes(self) -> dict[str, Resource]:
        return {row.node: row for row in self.of_type("node")}

    @cached_property
    def online(self) -> frozenset[str]:
        """The nodes that are online."""
        return frozenset(name for name, row in self.nodes.items() if row.status == "online")

    @cached_property
    def pools(self) -> frozenset[str]:
        return frozenset(row.pool or row.id.rpartition("/")[2] for row in self.of_type("pool"))

    def of_type(self, type: str) -> list[Resource]:
        return self._by_type.get(type, [])

    def matching(self, ref: Reference) -> list[Resource]:
        """The guests that match a reference: the one with that vmid, otherwise all of that name."""
        by_id = self.by_vmid.get(ref.vmid) if ref.vmid is not None else None
        if by_id is not None and ref.fits(by_id):
            return [by_id]
        return [row for row in self._by_name.get(ref.key, ()) if ref.fits(row)]

    def select(self, key: Hashable, choose: Callable[[], Sequence[Resource]]) -> Sequence[Resource]:
        """The cached result of `choose` for this key, so that a paged list is filtered and sorted only once."""
        if key not in self._selections:
            if len(self._selections) >= SELECTIONS_KEPT:
                self._selections.clear()
            self._selections[key] = choose()
        return self._selections[key]

    def replacing(self, guests: Mapping[int, Resource]) -> View:
        """A copy of the view with these guests replaced, by vmid."""
        return View([guests.get(row.vmid, row) if row.is_guest else row for row in self.rows]) if guests else self


class Reference(msgspec.Struct, frozen=True):
    """A guest as a caller writes it: a vmid or a name, optionally after its node (or qemu, lxc) and a slash."""

    key: str
    node: str | None = None
    vmid: int | None = None

    @classmethod
    def parse(cls, ref: int | str) -> Reference:
        text = str(ref).strip()
        if not text:
            raise BadArgument("The guest is empty", next_step=Advice("Give a vmid or a name", tools.guest_list))
        node, slash, key = text.rpartition("/")
        key = key if slash else text
        return cls(key, (node or None) if slash else None, int(key) if key.isascii() and key.isdigit() else None)

    def fits(self, row: Resource) -> bool:
        return self.node in (None, row.node, row.type)


class ListedGuest(msgspec.Struct, frozen=True):
    """A guest as its own node reports it, in its list or in `status/current`."""

    vmid: int
    name: str = ""
    status: str = "unknown"
    tags: str = ""
    lock: str = ""
    template: int | str = 0
    cpus: float = 0
    maxmem: int = 0
    maxdisk: int = 0
    uptime: int = 0

    def refresh(self, row: Resource, node: str = "") -> Resource:
        """The row, updated from the node. Load and counters, which only the cluster has, stay if the state does."""
        same = row.status == self.status
        return msgspec.structs.replace(
            row,
            node=node or row.node,
            name=self.name,
            status=self.status,
            tags=self.tags,
            lock=self.lock,
            template=int(self.template or 0),
            maxcpu=self.cpus or row.maxcpu,
            maxmem=self.maxmem or row.maxmem,
            maxdisk=self.maxdisk or row.maxdisk,
            uptime=self.uptime,
            cpu=row.cpu if same else 0.0,
            mem=row.mem if same else 0,
        )


class ListedStorage(msgspec.Struct, frozen=True):
    """A storage in a node's own list."""

    storage: str
    type: str = ""
    content: str = ""
    active: int = 0
    enabled: int = 1
    shared: int = 0
    total: int = 0
    used: int = 0

    def as_resource(self, node: str) -> Resource:
        usable = bool(self.active and self.enabled)
        return Resource(
            type="storage",
            id=f"storage/{node}/{self.storage}",
            node=node,
            storage=self.storage,
            status="available" if usable else "unknown",
            plugintype=self.type,
            content=self.content,
            shared=self.shared,
            disk=self.used if usable else 0,
            maxdisk=self.total if usable else 0,
        )


def ambiguous(ref: int | str, guests: list[Resource]) -> BadArgument:
    listed = ", ".join(f"{row.node}/{row.vmid} {row.kind} {row.status}" for row in guests[:CANDIDATES_SHOWN])
    return BadArgument(
        f"{len(guests)} guests are named {str(ref)!r}",
        why=f"They are {listed}",
        next_step="Give the vmid instead",
    )


def no_guest(ref: int | str, view: View, *, all_seen: bool) -> NotFound:
    """`all_seen` is whether these credentials may see every guest that could match."""
    reference = Reference.parse(ref)
    key = reference.key
    near = similar(key, (row.name for row in view.guests if row.name not in ("", key)), 3)  # it had that name before
    near += similar(key, (str(row.vmid) for row in view.guests), 2, 0.8)
    elsewhere = view.matching(Reference.parse(key)) if reference.node else []
    if reference.vmid is None and (new := [str(row.vmid) for row in view.guests if row.lock == "create"]):
        return GuestNotFound(
            f"There is no guest {str(ref)!r}",
            why=f"{', '.join(new)} is being created, and has no name before that is done",
            next_step=Advice("Give the vmid, or try again when its task has ended", tools.task_list),
        )
    if away := _nodes_without_names(view, key):
        are = "is" if len(away) == 1 else "are"
        why = f"{', '.join(away)} {are} not online, so the names of the guests there cannot be read"
        return GuestNotFound(
            f"No guest {str(ref)!r} can be found", why=why, next_step=Advice("Give the vmid", tools.guest_list)
        )
    if elsewhere:
        hint = Advice(f"It is {elsewhere[0]}; leave the node out")
    elif near:
        hint = Advice(did_you_mean(dict.fromkeys(near)))
    else:
        hint = see("List the guests", tools.guest_list)
    unseen = None if all_seen else "These credentials lack VM.Audit there, so it may exist unseen"
    return GuestNotFound(f"There is no guest {str(ref)!r}", why=unseen, next_step=hint)


def _nodes_without_names(view: View, key: str) -> list[str]:
    """The offline nodes that may have a guest of this name: a guess at another name could lead to the wrong machine."""
    away = {row.node for row in view.guests if row.is_unreported and row.node not in view.online}
    return [] if key.isdigit() else sorted(away)


def no_node(name: str, names: Iterable[str]) -> NotFound:
    return NotFound(f"There is no node {name!r}", next_step=f"The nodes are {', '.join(sorted(names))}")


def no_pool(name: str, names: Iterable[str]) -> NotFound:
    known = sorted(names)
    there = f"The pools are {', '.join(known)}" if known else "There is none yet"
    return NotFound(f"There is no pool {name!r}", next_step=there)


def names_guests(argument: str, arguments: Mapping[str, Any]) -> bool:
    return argument in GUEST_ARGUMENTS or (argument == "of" and arguments.get("scope") == "guest")


def guests_in(arguments: Mapping[str, Any]) -> list[int | str]:
    values = [value for name, value in arguments.items() if value is not None and names_guests(name, arguments)]
    refs = [ref for value in values for ref in (value if isinstance(value, list) else [value])]
    return [ref for ref in refs if isinstance(ref, (int, str)) and str(ref).strip()]
