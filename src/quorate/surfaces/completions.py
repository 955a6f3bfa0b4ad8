"""Completing the names of guests, nodes, storages, tasks and clusters while they are typed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from mcp.types import Completion

from quorate.operations.registry import Table
from quorate.pipeline.caller import Exchange
from quorate.pipeline.pipeline import Pipeline
from quorate.pipeline.routing import CLUSTER
from quorate.problems import Problem

MOST = 100
"""The protocol's limit."""
PAGE, PAGES = 200, 10
_COLUMNS = {"node": ("node_list", "node"), "storage": ("storage_list", "storage")}
_TASKS = ("upid", "task")


class Completions:
    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline

    async def complete(self, argument: str, typed: str, chosen: Mapping[str, str], exchange: Exchange) -> Completion:
        """Names that contain what was typed, prefix matches first; none for what cannot be read."""
        where = {CLUSTER: chosen[CLUSTER]} if chosen.get(CLUSTER) and self._pipeline.sites.several else {}
        try:
            names = await self._names(argument, typed, where, exchange)
        except Problem:
            names = []
        fitting = _fitting(names, typed)
        return Completion(values=fitting[:MOST], total=len(fitting), has_more=len(fitting) > MOST)

    async def _names(self, argument: str, typed: str, where: Mapping[str, str], exchange: Exchange) -> list[str]:
        if argument == CLUSTER:
            return [site.name for site in self._pipeline.sites.open_to(exchange.caller)]
        if argument == "guest":
            return _guests(await self._rows("guest_list", {**_name_filter(typed), **where}, exchange))
        if argument in _TASKS:
            return [row["task"] for row in await self._rows("task_list", {**where, "limit": MOST}, exchange)]
        if argument in _COLUMNS:
            operation, column = _COLUMNS[argument]
            return [row[column] for row in await self._rows(operation, where, exchange)]
        return []

    async def _rows(self, operation: str, arguments: Mapping[str, Any], exchange: Exchange) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        wanted = {"limit": PAGE, **arguments}
        for _ in range(PAGES):
            data = (await self._pipeline.run(operation, {**wanted, "offset": len(rows)}, exchange)).data
            if not isinstance(data, Table):
                break
            rows += [dict(zip(data.columns, row, strict=True)) for row in data.rows]
            if data.next_offset is None or "limit" in arguments:
                break
        return rows


def _name_filter(typed: str) -> dict[str, Any]:
    """The filter for the list of guests; a vmid is searched among all of them."""
    name = typed.rpartition("/")[2]
    return {} if name.isdecimal() or not name else {"name": name}


def _guests(rows: list[dict[str, Any]]) -> list[str]:
    """Guests by name where that is unique, otherwise by vmid; both are accepted."""
    places = [f"{row['cluster']}/" if "cluster" in row else "" for row in rows]
    names = [place + row["name"] if row.get("name") else "" for place, row in zip(places, rows, strict=True)]
    count = Counter(names)
    vmids = (f"{place}{row['vmid']}" for place, row in zip(places, rows, strict=True))
    return [*(name for name in names if name and count[name] == 1), *vmids]


def _fitting(names: Iterable[str], typed: str) -> list[str]:
    wanted = typed.strip().casefold()
    found = [name for name in dict.fromkeys(names) if wanted in name.casefold()]
    return sorted(found, key=lambda name: not name.casefold().startswith(wanted))
