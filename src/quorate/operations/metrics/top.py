"""Who uses the most of a resource right now."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal

from msgspec import Meta

from quorate.operations.metrics import series
from quorate.operations.metrics.series import Series
from quorate.operations.metrics.subjects import Subject
from quorate.operations.registry import Risk, Table, operation
from quorate.operations.units import Quantity, load_of, percent, size, used_of
from quorate.problems import Problem
from quorate.pve.cluster import Cluster, Guest
from quorate.pve.inventory import Resource
from quorate.pve.tasks import gather_bounded

READS_AT_ONCE = 16
HISTORIES_AT_MOST = 200
"""How many guests are asked for their rates: each is a request of its own."""

_RATES = {"diskio": ("diskread", "diskwrite"), "network": ("netin", "netout")}
_USED = {
    "cpu": lambda row: row.cpu * row.maxcpu,
    "memory": lambda row: row.mem,
    "disk": lambda row: row.disk or row.maxdisk,
}


@operation(
    risk=Risk.READ,
    search_words="guest uses most eating hogging cpu memory disk network busiest heaviest slow noisy",
)
async def metrics_top(
    pve: Cluster,
    by: Annotated[
        Literal["cpu", "memory", "disk", "diskio", "network"],
        Meta(description="diskio, network: mean of the last hour"),
    ] = "cpu",
    node: str | None = None,
    limit: Annotated[int, Meta(ge=1, le=100)] = 10,
) -> Table:
    """The guests that use the most of a resource, largest first."""
    if node is not None:
        await pve.inventory.node(node)
    here = [row for row in await pve.inventory.guests() if node in (None, row.node) and not row.template]
    running = [row for row in here if row.status == "running"]
    if by in _RATES:
        return await _by_rate(pve, running, by, limit)
    wanted = here if by == "disk" else running
    wanted.sort(key=lambda row: (-_USED[by](row), row.vmid))
    columns = ("vmid", "name", "type", "node", *_COLUMNS[by])
    rows = [[row.vmid, row.name, row.kind, row.node, *_SHOWN[by](row)] for row in wanted[:limit]]
    keys = [-_USED[by](row) for row in wanted[:limit]]
    return Table(columns, rows, len(rows), facts=_share(by, wanted, rows), keys=keys)


_COLUMNS = {"cpu": ("cores_used", "load"), "memory": ("mem", "share"), "disk": ("disk", "status")}
_SHOWN: dict[str, Any] = {
    "cpu": lambda row: [
        round(row.cpu * row.maxcpu, 2),
        load_of(row.cpu, row.maxcpu, text=f"{percent(row.cpu)} of {row.maxcpu:g}"),
    ],
    "memory": lambda row: [used_of(row.mem, row.maxmem), percent(row.mem / row.maxmem) if row.maxmem else ""],
    # PVE does not know how full the disk of a VM is, only how large it is
    "disk": lambda row: [used_of(row.disk, row.maxdisk) if row.disk else _allocated_size(row.maxdisk), row.status],
}


def _allocated_size(whole: float) -> str:
    return Quantity(f"{size(whole)} given", {"total": int(whole)})


def _share(by: str, wanted: list[Resource], rows: list[list[Any]]) -> dict[str, Any]:
    whole = sum(_USED[by](row) for row in wanted)
    if not whole or len(rows) == len(wanted) or by == "disk":
        return {"of": f"{len(wanted)} guests"}
    shown = sum(_USED[by](row) for row in wanted[: len(rows)])
    return {"of": f"{len(wanted)} running guests", "these_use": f"{percent(shown / whole)} of what all of them use"}


# -- rates -------------------------------------------------------------------------------------------------------------


async def _by_rate(pve: Cluster, running: list[Resource], by: str, limit: int) -> Table:
    """From the recorded hour: the counters in the inventory only show the total since a guest's start."""
    first, second = _RATES[by]

    def since_start(row: Resource) -> float:
        return float(getattr(row, first) + getattr(row, second)) / max(row.uptime, 1)

    asked = sorted(running, key=since_start, reverse=True)[:HISTORIES_AT_MOST]
    found: list[Series | None] = await gather_bounded(READS_AT_ONCE, [partial(_hour, pve, row) for row in asked])
    means = [
        (_mean(one, first), _mean(one, second), row)
        for row, one in zip(asked, found, strict=True)
        if one is not None and one.points(first)
    ]
    means.sort(key=lambda each: (-(each[0] + each[1]), each[2].vmid))
    rows = [
        [row.vmid, row.name, row.kind, row.node, _rate(one), _rate(other), _rate(one + other)]
        for one, other, row in means[:limit]
    ]
    names = ("read", "written") if by == "diskio" else ("in", "out")
    facts: dict[str, Any] = {"of": f"{len(running)} running guests", "over": "the last hour, on average"}
    if len(running) > len(asked):
        facts["left_out"] = f"{len(running) - len(asked)} guests that did little since their start; narrow with node"
    if silent := [str(row.vmid) for row, one in zip(asked, found, strict=True) if one is None]:
        facts["no_answer_for"] = silent[:20]
    keys = [-(one + other) for one, other, _ in means[:limit]]
    return Table(("vmid", "name", "type", "node", *names, "together"), rows, len(rows), facts=facts, keys=keys)


async def _hour(pve: Cluster, row: Resource) -> Series | None:
    """A guest whose node is offline must not hide the others."""
    try:
        guest = Guest(pve, row)
        return await series.read(pve, Subject("guest", str(guest), guest.path()), "hour")
    except Problem:
        return None


def _mean(one: Series, field: str) -> float:
    points = one.points(field)
    return series.statistics(points).mean if points else 0.0


def _rate(value: float) -> str:
    unit = series.unit_of("network", value)
    return Quantity(f"{unit.of(value):g} {unit.name}", round(value, 1))
