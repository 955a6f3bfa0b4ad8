"""One `/cluster/resources` read serves every look-up: shared by its callers, short-lived, dropped after writes."""

from __future__ import annotations

import asyncio
import contextlib
import difflib
from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from quorate.pve.errors import BadArgument, Conflict, NodeOffline, NotFound, TimedOut, Unreachable

if TYPE_CHECKING:
    from quorate.pve.client import PveClient
    from quorate.pve.clock import Clock

LIFE_SECONDS = 2.0
CANDIDATES_SHOWN = 8


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

    @property
    def is_guest(self) -> bool:
        return self.type in ("qemu", "lxc")

    @property
    def kind(self) -> str:
        """vm or ct, as the callers say it."""
        return "vm" if self.type == "qemu" else "ct"

    @property
    def tag_list(self) -> list[str]:
        return [tag for tag in self.tags.replace(",", ";").split(";") if tag]

    def __str__(self) -> str:
        return f"{self.name or 'unnamed'} ({self.kind} {self.vmid} on {self.node})"


class Inventory:
    def __init__(self, client: PveClient, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._rows: list[Resource] = []
        self._read_at = float("-inf")
        self._reading: asyncio.Task[list[Resource]] | None = None
        self._under_way: set[asyncio.Task[list[Resource]]] = set()
        self._generation = 0

    async def rows(self) -> list[Resource]:
        """All resources, at most LIFE_SECONDS old; callers that come together share one request."""
        if self._clock.monotonic() - self._read_at < LIFE_SECONDS:
            return self._rows
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._read(self._generation))
            self._under_way.add(self._reading)
            self._reading.add_done_callback(self._done_reading)
        return await asyncio.shield(self._reading)  # one caller's cancellation must not fail the others

    def forget(self) -> None:
        """What was read, or is being read now, is out of date: something was changed."""
        self._generation += 1
        self._read_at = float("-inf")
        self._reading = None

    async def close(self) -> None:
        """A read that nobody waits for any more must not outlive the connection."""
        under_way = list(self._under_way)
        for reading in under_way:
            reading.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)

    async def guests(self) -> list[Resource]:
        return [row for row in await self.rows() if row.is_guest]

    async def named_guests(self) -> list[Resource]:
        """The guests, with what their own nodes say of those that are too new to have a name in the cluster's view."""
        guests = await self.guests()
        online = {row.node for row in await self.of_type("node") if row.status == "online"}
        new = {row.vmid: row for row in guests if row.status == "unknown" and not row.name and row.node in online}
        known: dict[int, Resource] = {}
        for place in sorted({(row.node, row.type) for row in new.values()}):
            with contextlib.suppress(NodeOffline, TimedOut, Unreachable):  # then they stay nameless for now
                listed = await self._client.get_as(list[_ListedGuest], f"/nodes/{place[0]}/{place[1]}")
                known |= {row.vmid: row.as_resource(*place, new[row.vmid].pool) for row in listed if row.vmid in new}
        return [known.get(row.vmid, row) for row in guests] if known else guests

    async def of_type(self, type: str) -> list[Resource]:
        return [row for row in await self.rows() if row.type == type]

    async def guest(self, ref: int | str) -> Resource:
        """A guest by vmid, by name, or by `node/vmid` and `node/name`."""
        node, key = _split(ref)
        found = _matches(await self.guests(), node, key)
        if not found:
            found = await self._look_closer(node, key)
        if len(found) > 1:
            raise _ambiguous(ref, found)
        if not found:
            raise _unknown(ref, await self.guests())
        return found[0]

    async def matching(self, ref: int | str, *, closer: bool = False) -> list[Resource]:
        """All guests that a reference may mean; `closer` takes a fresh view for it."""
        node, key = _split(ref)
        return await self._look_closer(node, key) if closer else _matches(await self.guests(), node, key)

    async def node(self, name: str) -> Resource:
        nodes = await self.of_type("node")
        for row in nodes:
            if row.node == name:
                return row
        names = sorted(row.node for row in nodes)
        raise NotFound(f"There is no node {name!r}", next_step=f"The nodes are {', '.join(names)}")

    async def online_node(self, name: str) -> Resource:
        """The node, if it can be asked."""
        row = await self.node(name)
        if row.status != "online":
            raise Conflict(f"Node {name} is {row.status}", next_step="node_list shows the nodes that are online")
        return row

    async def _read(self, generation: int) -> list[Resource]:
        begun = self._clock.monotonic()
        rows = await self._client.get_as(list[Resource], "/cluster/resources")
        if generation == self._generation:
            self._rows, self._read_at = rows, begun
        return rows

    def _done_reading(self, reading: asyncio.Task[list[Resource]]) -> None:
        self._under_way.discard(reading)
        if self._reading is reading:
            self._reading = None
        if not reading.cancelled():
            reading.exception()  # its callers were told; if they are gone, nobody else needs to be

    async def _look_closer(self, node: str | None, key: str) -> list[Resource]:
        """Once more with a fresh view, and with the names of guests that were made seconds ago."""
        self.forget()
        return _matches(await self.named_guests(), node, key)


class _ListedGuest(msgspec.Struct, frozen=True):
    """A row of a node's own guest list."""

    vmid: int
    name: str = ""
    status: str = "unknown"
    tags: str = ""
    template: int | str = 0
    cpus: float = 0
    maxmem: int = 0
    maxdisk: int = 0

    def as_resource(self, node: str, type: str, pool: str) -> Resource:
        return Resource(
            type=type,
            id=f"{type}/{self.vmid}",
            node=node,
            vmid=self.vmid,
            name=self.name,
            status=self.status,
            tags=self.tags,
            pool=pool,
            template=int(self.template or 0),
            maxcpu=self.cpus,
            maxmem=self.maxmem,
            maxdisk=self.maxdisk,
        )


def _split(ref: int | str) -> tuple[str | None, str]:
    text = str(ref).strip()
    if not text:
        raise BadArgument("The guest is empty", next_step="Give a vmid or a name; guest_list shows both")
    node, slash, key = text.rpartition("/")
    return (node or None, key) if slash else (None, text)


def _matches(rows: Iterable[Resource], node: str | None, key: str) -> list[Resource]:
    vmid = int(key) if key.isascii() and key.isdigit() else None
    here = [row for row in rows if node is None or row.node == node or row.type == node]
    by_id = [row for row in here if row.vmid == vmid]
    return by_id or [row for row in here if row.name == key]


def _ambiguous(ref: int | str, found: list[Resource]) -> BadArgument:
    listed = ", ".join(f"{row.node}/{row.vmid} {row.kind} {row.status}" for row in found[:CANDIDATES_SHOWN])
    return BadArgument(
        f"{len(found)} guests are named {str(ref)!r}",
        why=f"They are {listed}",
        next_step="Say which by its vmid",
    )


def _unknown(ref: int | str, guests: list[Resource]) -> NotFound:
    key = str(ref).rpartition("/")[2]
    near = difflib.get_close_matches(key, [row.name for row in guests if row.name], 3)
    near += [
        str(row.vmid) for row in guests if str(row.vmid) in difflib.get_close_matches(key, [str(row.vmid)], 1, 0.8)
    ][:2]
    elsewhere = [str(row) for row in _matches(guests, None, key)]
    if elsewhere:
        hint = f"It is {elsewhere[0]}; leave the node out"
    elif near:
        hint = f"Did you mean {' or '.join(dict.fromkeys(near))}?"
    else:
        hint = "guest_list shows the guests; the token may also lack VM.Audit on it"
    return NotFound(f"There is no guest {str(ref)!r}", next_step=hint)
