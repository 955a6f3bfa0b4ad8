"""The inventory of a cluster: one `/cluster/resources` read for all lookups, and a second look before a refusal.

That read is fast but lags: a node reports its guests and storages to the cluster every ten seconds. Until then a new
guest has no name or status there, a new storage no size, and a renamed or restarted guest looks as before. Nothing is
refused as absent on that view alone: the nodes are asked first, and they know immediately.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Iterable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import msgspec

from quorate.hints import see, tools
from quorate.problems import Conflict, NodeOffline, NotFound, Problem, TimedOut, Unreachable
from quorate.pve.lookup import (
    LastSeen,
    ListedGuest,
    ListedStorage,
    Reference,
    Resource,
    View,
    ambiguous,
    no_guest,
    no_node,
    no_pool,
)
from quorate.pve.tasks import gather_bounded

if TYPE_CHECKING:
    from quorate.pve.client import PveClient
    from quorate.pve.connection import Clock

__all__ = ["Inventory", "Resource"]

LIFE_SECONDS = 2.0
REPORT_SECONDS = 15.0
"""How long the cluster's view may be stale after a change; nodes report every ten seconds."""
NODES_AT_ONCE = 16
GUEST_TYPES = ("qemu", "lxc")

NodeAndType = tuple[str, str]
"""A node and qemu or lxc."""
_Found = TypeVar("_Found")


_NOTHING = View([])


class Inventory:
    def __init__(self, client: PveClient, clock: Clock, may: Callable[[str, str], Awaitable[bool]]) -> None:
        self._client = client
        self._clock = clock
        self._may = may
        self._view = View([])
        self._read_at = float("-inf")
        self._completed: tuple[View, View] | None = None
        self._fresh: tuple[float, View] = (float("-inf"), self._view)
        self._changed: dict[int, float] = {}
        self._late_names: dict[int, float] = {}
        """vmid -> when its node reported another name than the cluster."""
        self._names_lag_until = float("-inf")
        self._reading: asyncio.Task[View] | None = None
        self._under_way: set[asyncio.Task[View]] = set()
        self._generation = 0
        self._reads = 0
        self._last_seen = LastSeen()

    # -- what the cluster says -------------------------------------------------------------------------------------

    async def view(self) -> View:
        """All resources, at most LIFE_SECONDS old; concurrent callers share one request."""
        if self._clock.monotonic() - self._read_at < LIFE_SECONDS:
            return self._view
        if self._reading is None:
            self._view, self._completed = _NOTHING, None  # so that a large one is not in memory twice
            self._fresh = (float("-inf"), _NOTHING)
            self._reads += 1
            self._reading = asyncio.ensure_future(self._fetch_resources(self._generation))
            self._under_way.add(self._reading)
            self._reading.add_done_callback(self._done_reading)
        return await asyncio.shield(self._reading)  # one caller's cancellation must not fail the others

    async def rows(self) -> list[Resource]:
        return list((await self.view()).rows)

    async def guests(self) -> list[Resource]:
        return list((await self.view()).guests)

    async def of_type(self, type: str) -> list[Resource]:
        return list((await self.view()).of_type(type))

    def forget(self, changed: Iterable[int] = ()) -> None:
        """Drop what was read or is being read, because something changed, such as these guests."""
        self._changed |= dict.fromkeys(changed, self._clock.monotonic())
        self._generation += 1
        self._read_at = float("-inf")
        self._fresh = (float("-inf"), _NOTHING)
        self._reading = None

    @property
    def latest_read(self) -> int:
        """The number of the last read that has begun; see `matching`."""
        return self._reads

    @property
    def lags(self) -> bool:
        """Whether the cluster's view may not show our changes yet."""
        return any(self._clock.monotonic() - when < REPORT_SECONDS for when in self._changed.values())

    def distrust_names(self) -> None:
        """Ask the nodes for names until the cluster's view has caught up with a renamed guest."""
        self.forget()
        self._names_lag_until = self._clock.monotonic() + REPORT_SECONDS

    async def close(self) -> None:
        """Cancel reads in progress, which must not outlive the connection."""
        under_way = list(self._under_way)
        for reading in under_way:
            reading.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)

    # -- what the nodes say ----------------------------------------------------------------------------------------

    async def complete_view(self) -> View:
        """The view, completed by the nodes for guests that it does not know yet or that we just changed."""
        view = await self.view()
        if self._completed is None or self._completed[0] is not view:
            self._completed = (view, await self._complete(view))
        return self._completed[1]

    async def named_guests(self) -> list[Resource]:
        return list((await self.complete_view()).guests)

    async def fresh_guests(self, node: str | None = None) -> list[Resource]:
        """The guests of a node, or all, as their nodes see them now: one request for each node and type."""
        self.forget()
        if node is None:
            return list((await self._ask_everywhere()).guests)
        view = await self.view()
        rows: list[Resource] = []
        for guest_type in GUEST_TYPES:
            listed = await self._list(node, guest_type)
            if listed is None:
                rows += [row for row in view.guests if (row.node, row.type) == (node, guest_type)]
            else:  # a guest that the node does not list has left it since the view was read
                rows += [
                    guest.refresh(view.by_vmid[guest.vmid], node) for guest in listed if guest.vmid in view.by_vmid
                ]
        return rows

    def visible(self, rows: list[Resource]) -> list[Resource]:
        """The rows that this view of the cluster includes: all of them, unless rules hide some."""
        return rows

    async def guests_with_fresh_names(self, vmids: Collection[int] | None) -> list[Resource]:
        """All guests; these (None: all) have the names that their nodes report now, or none if they do not answer."""
        view = await self.complete_view()
        concerned = [row for row in view.guests if vmids is None or row.vmid in vmids]
        listed = await self._lists({(row.node, row.type) for row in concerned if row.node in view.online})
        sure = {
            row.vmid: listed[row.vmid].refresh(row) if row.vmid in listed else msgspec.structs.replace(row, name="")
            for row in concerned
        }
        return list(view.replacing(sure).guests)

    async def fresh_guest(self, vmid: int) -> Resource:
        """A guest as its node sees it now. Raises NotFound if there is none with this vmid."""
        row = await self.guest(vmid)
        try:
            return self._note_late_name(row, await self._ask(row))
        except NotFound:
            self.forget()
            moved = await self.guest(vmid)
            if (moved.node, moved.type) == (row.node, row.type):
                raise
            return self._note_late_name(moved, await self._ask(moved))

    def _note_late_name(self, listed: Resource, fresh: Resource) -> Resource:
        """After a long restore, the view shows the usual name of a new guest for some seconds more."""
        if fresh.name != listed.name:
            self._late_names[fresh.vmid] = self._clock.monotonic()
        return fresh

    async def fresh_storages(self, node: str) -> list[Resource]:
        """The storages of a node as it sees them now."""
        listed = await self._client.get_as(list[ListedStorage], f"/nodes/{node}/storage")
        return [storage.as_resource(node) for storage in listed if storage.enabled]

    # -- one of them -----------------------------------------------------------------------------------------------

    async def guest(self, ref: int | str) -> Resource:
        """A guest by vmid, by name, or by `node/vmid` and `node/name`."""
        return await self._require_single(ref, await self.candidates(ref))

    async def candidates(self, ref: int | str) -> list[Resource]:
        """All guests that match a reference, after a second look if there seem to be none; each with its name."""
        read_before = self.latest_read
        matching = await self.matching(ref) or await self.matching(ref, newer_than=read_before)
        return [await self._with_name(row) for row in matching]

    async def _require_single(self, ref: int | str, matching: list[Resource]) -> Resource:
        if len(matching) > 1:
            raise ambiguous(ref, matching)
        if not matching:
            raise await self.absence(ref)
        return matching[0]

    async def absence(self, ref: int | str) -> Problem:
        """Why there is no such guest, and what may be meant."""
        return no_guest(ref, await self.view(), all_seen=await self._sees(Reference.parse(ref)))

    async def _with_name(self, row: Resource) -> Resource:
        """The row, completed by its node if the cluster knows only its vmid, or an earlier name."""
        has_late_name = self._clock.monotonic() - self._late_names.get(row.vmid, float("-inf")) < REPORT_SECONDS
        if (row.is_unreported or has_late_name) and row.node in (await self.view()).online:
            with contextlib.suppress(NodeOffline, TimedOut, Unreachable, NotFound):
                return await self._ask(row)
        return row

    async def matching(self, ref: int | str, *, newer_than: int | None = None) -> list[Resource]:
        """All guests that match a reference.

        With `newer_than`, a second look: on a read that began after this one, completed by the nodes, whose names do
        not lag. Only then is nothing a reason to refuse.
        """
        reference = Reference.parse(ref)
        if newer_than is not None and self._reads <= newer_than:
            self.forget()
        if reference.vmid is not None or self._clock.monotonic() >= self._names_lag_until:
            matching = (await self.view()).matching(reference)
            if matching or newer_than is None:
                return matching
        # The set of vmids does not lag, their names do.
        view = await (self.complete_view() if reference.vmid is not None else self._ask_everywhere())
        return view.matching(reference)

    async def node(self, name: str) -> Resource:
        return await self.decide_on_fresh_view(lambda view: _node(view, name))

    async def online_node(self, name: str) -> Resource:
        """The node, if it is online."""

        def online(view: View) -> Resource:
            row = _node(view, name)
            if row.status != "online":
                raise Conflict(
                    f"Node {name} is {row.status}", next_step=see("See which nodes are online", tools.node_list)
                )
            return row

        return await self.decide_on_fresh_view(online)

    async def pool(self, name: str) -> str:
        def existing(view: View) -> str:
            if name not in view.pools:
                raise no_pool(name, view.pools)
            return name

        return await self.decide_on_fresh_view(existing)

    async def decide_on_fresh_view(self, decide: Callable[[View], _Found]) -> _Found:
        """The result of `decide` on the view; if it refuses, on a fresh one."""
        try:
            return decide(await self.view())
        except Problem:
            self.forget()
            return decide(await self.view())

    async def choose_storage(self, node: str, decide: Callable[[list[Resource]], _Found]) -> _Found:
        """The result of `decide` on the node's storages; if it refuses, on the node's own list."""
        try:
            return decide([row for row in (await self.view()).of_type("storage") if row.node == node])
        except Problem as refusal:
            try:
                asked = await self.fresh_storages(node)
            except Problem:
                raise refusal from None
            return decide(asked)

    # -- asking ----------------------------------------------------------------------------------------------------

    async def _fetch_resources(self, generation: int) -> View:
        begun = self._clock.monotonic()
        rows = await self._client.get_as(list[Resource], "/cluster/resources")
        view = View(self._last_seen.complete(rows, self._clock.time()))
        self._client.note_nodes({name: row.status == "online" for name, row in view.nodes.items()})
        if generation == self._generation:
            self._view, self._read_at = view, begun
        return view

    def _done_reading(self, reading: asyncio.Task[View]) -> None:
        self._under_way.discard(reading)
        if self._reading is reading:
            self._reading = None
        if not reading.cancelled():
            reading.exception()  # retrieved, so that asyncio does not log it; its callers have it

    async def _complete(self, view: View) -> View:
        since = self._clock.monotonic() - REPORT_SECONDS
        self._changed = {vmid: when for vmid, when in self._changed.items() if when > since}
        late = {row.vmid: row for row in view.guests if row.is_unreported and row.node in view.online}
        late |= {vmid: row for vmid in self._changed if (row := view.by_vmid.get(vmid)) and row.node in view.online}
        listed = await self._lists({(row.node, row.type) for row in late.values()})
        return view.replacing({vmid: listed[vmid].refresh(row) for vmid, row in late.items() if vmid in listed})

    async def _ask_everywhere(self) -> View:
        """The view, completed by every node; cached as long as a view."""
        if self._clock.monotonic() - self._fresh[0] >= LIFE_SECONDS:
            begun, generation, view = self._clock.monotonic(), self._generation, await self.view()
            listed = await self._lists({(row.node, row.type) for row in view.guests if row.node in view.online})
            fresh = {vmid: guest.refresh(view.by_vmid[vmid]) for vmid, guest in listed.items() if vmid in view.by_vmid}
            if generation != self._generation:  # something has changed since
                return view.replacing(fresh)
            self._fresh = (begun, view.replacing(fresh))
        return self._fresh[1]

    async def _lists(self, places: Iterable[NodeAndType]) -> dict[int, ListedGuest]:
        """The guests in these places; none for a node that does not answer."""
        lists = await gather_bounded(NODES_AT_ONCE, [partial(self._list, *place) for place in sorted(places)])
        return {guest.vmid: guest for listed in lists for guest in listed or ()}

    async def _list(self, node: str, type: str) -> list[ListedGuest] | None:
        """The guests that the node lists; None if it does not answer: they stay as in the cluster's view."""
        try:
            return list(await self._client.get_as(list[ListedGuest], f"/nodes/{node}/{type}"))
        except Problem:
            return None

    async def _ask(self, row: Resource) -> Resource:
        path = f"/nodes/{row.node}/{row.type}/{row.vmid}/status/current"
        return (await self._client.get_as(ListedGuest, path)).refresh(row)

    async def _sees(self, ref: Reference) -> bool:
        """Whether our credentials would see such a guest; True if that cannot be determined."""
        try:
            return await self._may("/vms" if ref.vmid is None else f"/vms/{ref.vmid}", "VM.Audit")
        except Problem:
            return True


def _node(view: View, name: str) -> Resource:
    if name not in view.nodes:
        raise no_node(name, view.nodes)
    return view.nodes[name]
