"""The composition root: settings -> cluster -> pipeline -> surface."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from quorate.config import ClusterSettings, ConfigError, Settings
from quorate.operations.registry import DEFAULT_TOOLSETS, TOOLSETS
from quorate.pipeline.gate import Gate
from quorate.pipeline.run import Pipeline
from quorate.pve.clock import Clock
from quorate.pve.cluster import Cluster, Defaults
from quorate.pve.connection import Connection, Secret, Token, Trust
from quorate.state.audit import AuditTrail

if TYPE_CHECKING:
    from quorate.sim.cluster import SimulatedCluster
    from quorate.surfaces.server import Server


@dataclass(frozen=True, slots=True)
class App:
    settings: Settings
    cluster: Cluster | None
    pipeline: Pipeline

    def server(self, transport: str = "stdio") -> Server:
        from quorate.surfaces.native import NativeSurface  # the MCP SDK is the largest import; `call` does without it
        from quorate.surfaces.server import Server

        return Server(self.pipeline, [NativeSurface(self.pipeline)], transport=transport)

    async def close(self) -> None:
        if self.cluster is not None:
            await self.cluster.close()


def build(settings: Settings, *, clock: Clock | None = None) -> App:
    cluster = _cluster(settings.clusters[0], clock) if settings.clusters else None
    gate = Gate(settings.access, chosen_toolsets(settings), settings.look_inside)
    audit = AuditTrail(settings.audit_file)
    pipeline = Pipeline(cluster, gate, audit, wait_seconds=settings.wait_seconds, problem=settings.problem)
    return App(settings, cluster, pipeline)


def _cluster(settings: ClusterSettings, clock: Clock | None) -> Cluster:
    defaults = Defaults(settings.default_node, settings.default_storage, settings.default_bridge)
    return Cluster(settings.name, settings.connection, defaults=defaults, clock=clock)


def chosen_toolsets(settings: Settings) -> frozenset[str]:
    chosen = frozenset(settings.toolsets or DEFAULT_TOOLSETS)
    if "all" in chosen:
        return frozenset(TOOLSETS)
    if unknown := sorted(chosen - set(TOOLSETS)):
        raise ConfigError(f"There is no toolset {unknown[0]!r}: choose from {', '.join(TOOLSETS)} or all.")
    return chosen


@contextlib.asynccontextmanager
async def demo_settings(settings: Settings) -> AsyncIterator[Settings]:
    """The same settings, pointed at a simulated cluster that lives as long as the context."""
    from quorate.sim.cluster import SimulatedCluster

    async with SimulatedCluster() as simulated:
        yield replace(settings, clusters=(simulated_cluster(simulated),), problem=None)


def simulated_cluster(simulated: SimulatedCluster) -> ClusterSettings:
    """How to reach a simulated cluster: as any other, by URL, CA and token."""
    token = Token(simulated.token_id, Secret(simulated.token_secret))
    connection = Connection(tuple(simulated.urls), token, Trust(ca_file=str(simulated.ca_file)))
    return ClusterSettings("demo", connection)
