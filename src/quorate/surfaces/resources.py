"""Resources: cluster, nodes, guests, tasks and storages under addresses, read by the operations behind the tools."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote

from mcp.types import INVALID_PARAMS, Resource, ResourceTemplate

from quorate.hints import Naming
from quorate.operations.registry import Table
from quorate.pipeline.caller import Caller, Exchange
from quorate.pipeline.pipeline import Pipeline
from quorate.pipeline.routing import CLUSTER
from quorate.problems import NotFound
from quorate.surfaces import rendering

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
        return any(one.name == operation for one in self._pipeline.visible(caller))


def not_found_code(protocol_version: str | None) -> int:
    """Until 2025-11-25 the protocol had a code of its own for it."""
    return INVALID_PARAMS if (protocol_version or "") >= _MODERN else _NOT_FOUND
