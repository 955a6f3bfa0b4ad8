"""Finding guests and looking at them: VMs and containers."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from quorate.operations.registry import Risk, Table, operation, page
from quorate.problems import Problem, catch_problem
from quorate.pve.cluster import Cluster
from quorate.pve.lookup import Resource
from quorate.pve.tasks import gather_bounded
from quorate.tools.guest_addresses import AddressFinder
from quorate.tools.guest_search import Configured, Option, search_configs
from quorate.units import Quantity, duration, load_of, percent, size, unused_size, used_of


@dataclass(frozen=True, slots=True)
class Filter:
    """Criteria for guests; all that are set must match."""

    node: str | None = None
    type: str | None = None
    status: str | None = None
    name: str | None = None
    tag: str | None = None
    pool: str | None = None
    template: bool | None = None

    async def apply(self, pve: Cluster, *, to_act: bool = False, sort: str = "") -> Sequence[Resource]:
        """The matching guests; an unknown node or pool is an error, not an empty result.

        `to_act`: for choosing the targets of a change; name, status and template then come from the nodes. They
        are also asked before a name is reported as missing.
        """
        if self.node is not None:
            await pve.inventory.node(self.node)
        if self.pool is not None and (await pve.inventory.view()).pools:
            await pve.inventory.pool(self.pool)
        lagging = self.name is not None or self.status is not None or self.template is not None
        if not (to_act and lagging):
            view = await pve.inventory.complete_view()
            rows = view.select((self, sort), lambda: self._choose(view.guests, sort))
            if rows or self.name is None:
                return rows
        return self._choose(await pve.inventory.fresh_guests(self.node), sort)

    def _choose(self, rows: Iterable[Resource], sort: str) -> Sequence[Resource]:
        chosen = [row for row in rows if self.fits(row)]
        return tuple(sorted(chosen, key=SORTS[sort]) if sort else chosen)

    def fits(self, row: Resource) -> bool:
        return (
            (self.node is None or row.node == self.node)
            and (self.type is None or row.kind == self.type)
            and (self.status is None or row.status == self.status)
            and (self.name is None or _name_matches(row.name, self.name))
            and (self.tag is None or self.tag.lower() in (tag.lower() for tag in row.tag_list))
            and (self.pool is None or row.pool == self.pool)
            and (self.template is None or bool(row.template) == self.template)
        )


def _name_matches(name: str, pattern: str) -> bool:
    pattern = pattern.lower()
    return fnmatch.fnmatchcase(name.lower(), pattern if any(mark in pattern for mark in "*?[") else f"*{pattern}*")


COLUMNS = ("vmid", "name", "type", "node", "status", "cpu", "mem", "disk", "tags", "pool", "lock")
ADDRESS_COLUMNS = ("addresses", "addresses_from")
NODES_AT_ONCE = 8
PAUSED = "paused"

SORTS: Mapping[str, Callable[[Resource], Any]] = {
    "vmid": lambda row: row.vmid,
    "name": lambda row: (row.name, row.vmid),
    "cpu": lambda row: -row.cpu * row.maxcpu,
    "mem": lambda row: -row.mem,
    "disk": lambda row: -row.maxdisk,
    "uptime": lambda row: -row.uptime,
}


@operation(
    toolset="guests",
    risk=Risk.READ,
    search_words=(
        "location machine ip count list everything node powered off vms containers running stopped guests find "
        "search tag pool name which guest has mac address uses bridge vlan disk start at boot"
    ),
    example="status=running tag=prod",
)
async def guest_list(
    pve: Cluster,
    node: str | None = None,
    type: Literal["vm", "ct"] | None = None,
    status: Literal["running", "stopped", "paused", "unknown"] | None = None,
    name: Annotated[str, Meta(description="Part of it, or web*")] | None = None,
    tag: str | None = None,
    pool: str | None = None,
    template: Annotated[bool, Meta(description="Only templates; false: none")] | None = None,
    protection: bool | None = None,
    onboot: bool | None = None,
    find: Annotated[str, Meta(description="MAC, IP address or network, bridge, vlan20, or part of a disk")]
    | None = None,
    columns: Annotated[list[Option], Meta(description="To add")] | None = None,
    sort: Annotated[
        Literal["vmid", "name", "cpu", "mem", "disk", "uptime"],
        Meta(description="Largest first"),
    ] = "vmid",
    addresses: Annotated[bool, Meta(description="Also their IP addresses")] = False,
    limit: Annotated[int, Meta(ge=1, le=200)] = 50,
    offset: Annotated[int, Meta(ge=0)] = 0,
) -> Table:
    """Find VMs and containers; cpu is the load of the guest's cores, mem is used/assigned, disk is assigned."""
    rows, facts = await _select(pve, Filter(node, type, status, name, tag, pool, template), sort)
    added = tuple(dict.fromkeys(columns or ()))
    configured: list[Configured] | None = None
    if added or find is not None or protection is not None or onboot is not None:
        options: dict[Option, bool | None] = {"protection": protection, "onboot": onboot}
        configured, unread = await search_configs(pve, rows, find, options)
        rows = [guest.row for guest in configured]
        facts |= {"not_read": [*facts.get("not_read", ()), *unread]} if unread else {}
    shown = rows[offset : offset + limit]
    header: tuple[str, ...] = COLUMNS
    lines = [_row(row) for row in shown]
    if configured is not None and (added or find is not None):
        header = (*header, *added, *(("match",) if find is not None else ()))
        details = configured[offset : offset + limit]
        lines = [[*line, *_details(guest, added)] for line, guest in zip(lines, details, strict=True)]
    if addresses:
        header = (*header, *ADDRESS_COLUMNS)
        lines = [[*line, *cells] for line, cells in zip(lines, await AddressFinder(pve).list_all(shown), strict=True)]
    table = page(header, lines, limit=limit, offset=0)
    table.offset, table.total, table.facts = offset, len(rows), facts
    if away := nodes_away(rows, pve.clock.time()):
        table.facts["offline"] = away
    if sort != "vmid":
        table.keys = [SORTS[sort](row) for row in shown]
    if table.next_offset is not None:
        table.note = "narrow with node, type, status, name, tag or pool"
    return table


async def _select(pve: Cluster, criteria: Filter, sort: str) -> tuple[Sequence[Resource], dict[str, Any]]:
    """The matching guests. The cluster's view shows a paused VM as running, so only its node tells them apart."""
    if criteria.status != PAUSED:
        return await criteria.apply(pve, sort=sort), {}
    running = await replace(criteria, status="running").apply(pve, sort=sort)
    nodes = sorted({row.node for row in running if row.kind == "vm"})
    lists = await gather_bounded(
        NODES_AT_ONCE, [partial(catch_problem, pve.get(f"/nodes/{node}/qemu", full=1)) for node in nodes]
    )
    unread = [f"{node}: {rows.what}" for node, rows in zip(nodes, lists, strict=True) if isinstance(rows, Problem)]
    states = {int(row["vmid"]): row.get("qmpstatus") for rows in lists if not isinstance(rows, Problem) for row in rows}
    paused = [msgspec.structs.replace(row, status=PAUSED) for row in running if states.get(row.vmid) == PAUSED]
    return paused, {"not_read": unread} if unread else {}


def _details(guest: Configured, added: Sequence[Option]) -> list[str]:
    """Only a search leaves matches."""
    return [*("yes" if guest.has(option) else "no" for option in added), *filter(None, ["; ".join(guest.matches)])]


def nodes_away(rows: Iterable[Resource], now: float) -> list[str]:
    """A line for each offline node with guests among these rows."""
    seen = {row.node: 0.0 for row in rows if row.node_is_offline}
    for row in rows:
        if row.node in seen:
            seen[row.node] = max(seen[row.node], row.seen_at)
    return [
        f"{node} is offline, last seen {duration(now - at)} ago: its guests are as they were then"
        if at
        else f"{node} is offline: of its guests, only the ids are known"
        for node, at in sorted(seen.items())
    ]


PAUSED_VM = Quantity("running, paused", PAUSED)
"""PVE calls it running wherever it does not ask QEMU."""


def state_of(row: Resource) -> str:
    """The status, with the last known one while the guest's node is offline."""
    if row.template:
        return "template"
    if row.status == PAUSED:
        return PAUSED_VM
    return f"unknown, was {row.seen_as}" if row.seen_as not in ("", "unknown") else row.status


def _row(row: Resource) -> list[Any]:
    running = row.status in ("running", PAUSED)
    return [
        row.vmid,
        row.name,
        row.kind,
        row.node,
        state_of(row),
        _cpu(row) if row.maxcpu else "",
        used_of(row.mem, row.maxmem) if running else unused_size(row.maxmem),
        size(row.maxdisk) if row.maxdisk else "",
        row.tags,
        row.pool,
        row.lock,
    ]


def _cpu(row: Resource) -> str:
    load = row.cpu if row.status == "running" else 0.0
    return load_of(
        load, row.maxcpu, text=f"{percent(load)}/{row.maxcpu:g}" if row.status == "running" else f"{row.maxcpu:g}"
    )
