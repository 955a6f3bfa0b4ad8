"""Completing the names of guests, nodes, storages, tasks and clusters while they are typed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote

from mcp.types import INVALID_PARAMS, Completion, Resource, ResourceTemplate

from quorate.hints import Naming
from quorate.operations.registry import Table
from quorate.pipeline.caller import Caller, Exchange
from quorate.pipeline.pipeline import Pipeline
from quorate.pipeline.sites import CLUSTER
from quorate.problems import NotFound, Problem
from quorate.surfaces import rendering

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
        parameters = {"limit": PAGE, **arguments}
        for _ in range(PAGES):
            data = (await self._pipeline.run(operation, {**parameters, "offset": len(rows)}, exchange)).data
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
    beginning = typed.strip().casefold()
    fromkeys = [name for name in dict.fromkeys(names) if beginning in name.casefold()]
    return sorted(fromkeys, key=lambda name: not name.casefold().startswith(beginning))


SCHEME = "pve://"
TEXT = "text/plain"
_MODERN = "2026-07-28"
_NOT_FOUND = -32002

Read = Callable[[str, Mapping[str, Any]], Awaitable[dict[str, Any] | Table]]
"""Runs an operation for the caller."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What is listed under one part of the addresses: `pve://nodes/{node}`."""

    part: str
    variable: str
    operation: str
    """The operation that reads it; where it is not available, the resource is not listed."""
    title: str
    about: str
    read: Callable[[Read, str, Mapping[str, Any]], Awaitable[str]]


async def _node(read: Read, name: str, where: Mapping[str, Any]) -> str:
    return rendering.text(await read("node_get", {"node": name, **where}))


async def _guest(read: Read, name: str, where: Mapping[str, Any]) -> str:
    return rendering.text(await read("guest_get", {"guest": name, **where}))


async def _task(read: Read, upid: str, where: Mapping[str, Any]) -> str:
    return rendering.text(await read("task_get", {"task": upid, "log_lines": 50, **where}))


async def _storage(read: Read, name: str, where: Mapping[str, Any]) -> str:
    """Its use on each node, and its newest volumes."""
    volumes = await read("volume_list", {"storage": name, "sort": "newest", **where})  # knows whether there is one
    uses = await read("storage_list", {"limit": 200, **where})
    if isinstance(uses, Table):
        column = uses.columns.index("storage") if "storage" in uses.columns else 0
        uses.rows = [row for row in uses.rows if row[column] == name]
        uses.total = len(uses.rows)
    return f"{rendering.text(uses)}\n\n{rendering.text(volumes)}"


KINDS = {
    kind.part: kind
    for kind in (
        Kind("nodes", "node", "node_get", "Node", "Hardware, versions, load, storages and guests of a node", _node),
        Kind("guests", "guest", "guest_get", "Guest", "State, hardware, disks and networks of a guest", _guest),
        Kind("tasks", "upid", "task_get", "Task", "State of a task and the end of its log", _task),
        Kind("storage", "storage", "volume_list", "Storage", "Use of a storage and its newest volumes", _storage),
    )
}
WHOLE = "cluster"
"""`pve://cluster`; with several clusters `pve://prod/cluster`, as the name goes before all the others, too."""


class Resources:
    def __init__(self, pipeline: Pipeline, naming: Callable[[Caller], Naming]) -> None:
        self._pipeline = pipeline
        self._naming = naming

    def list_resources(self, caller: Caller) -> list[Resource]:
        if not self._offers("cluster_status", caller):
            return []
        prefixes = [f"{quote(name, safe='')}/" for name in self._several(caller)] or [""]
        about = "Health at a glance: quorum, nodes, guests by state, load"
        return [
            Resource(
                uri=f"{SCHEME}{prefix}{WHOLE}",
                name=f"{prefix}{WHOLE}",
                title=f"Cluster {unquote(prefix)[:-1]}".strip(),
                description=about,
                mime_type=TEXT,
            )
            for prefix in prefixes
        ]

    def templates(self, caller: Caller) -> list[ResourceTemplate]:
        prefix = "{cluster}/" if self._several(caller) else ""
        return [
            ResourceTemplate(
                uri_template=f"{SCHEME}{prefix}{kind.part}/{{{kind.variable}}}",
                name=kind.variable,
                title=kind.title,
                description=kind.about,
                mime_type=TEXT,
            )
            for kind in KINDS.values()
            if self._offers(kind.operation, caller)
        ]

    async def read(self, uri: str, exchange: Exchange) -> str:
        """Raises Problem; NotFound if there is nothing at this address."""

        async def read(operation: str, arguments: Mapping[str, Any]) -> dict[str, Any] | Table:
            data = (await self._pipeline.run(operation, arguments, exchange)).data
            return rendering.render_advice(data, self._naming(exchange.caller))

        where, part, name = self._parse(uri, exchange.caller)
        if part == WHOLE:
            return rendering.text(await read("cluster_status", where))
        return await KINDS[part].read(read, name, where)

    def _parse(self, uri: str, caller: Caller) -> tuple[dict[str, str], str, str]:
        """The cluster, if one is named, the kind and the name."""
        parts = [unquote(part) for part in uri.removeprefix(SCHEME).rstrip("/").split("/")]
        where: dict[str, str] | None = {}
        if len(parts) == 3 or (len(parts) == 2 and parts[0] not in KINDS):
            where = self._where(parts.pop(0), caller)
        if uri.startswith(SCHEME) and where is not None and all(parts):
            if parts == [WHOLE]:
                return where, WHOLE, ""
            if len(parts) == 2 and parts[0] in KINDS:
                return where, parts[0], parts[1]
        places = ", ".join(f"{SCHEME}{kind.part}/{{{kind.variable}}}" for kind in KINDS.values())
        raise NotFound(f"There is nothing at {uri}", next_step=f"Available: {SCHEME}{WHOLE}, {places}")

    def _where(self, cluster: str, caller: Caller) -> dict[str, str] | None:
        """The argument that names the cluster; None if the caller reaches none of that name."""
        if cluster not in [site.name for site in self._pipeline.sites.open_to(caller)]:
            return None
        return {CLUSTER: cluster} if self._pipeline.sites.several else {}

    def _several(self, caller: Caller) -> list[str]:
        """The names of the clusters, if a cluster has to be named."""
        return [site.name for site in self._pipeline.sites.open_to(caller)] if self._pipeline.sites.several else []

    def _offers(self, operation: str, caller: Caller) -> bool:
        return any(visible.name == operation for visible in self._pipeline.visible(caller))


def not_found_code(protocol_version: str | None) -> int:
    """Until 2025-11-25 the protocol had a code of its own for it."""
    return INVALID_PARAMS if (protocol_version or "") >= _MODERN else _NOT_FOUND
