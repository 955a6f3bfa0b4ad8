"""Several simulated clusters behind one server: prod is the demo; lab and edge are small and share some names."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mcp import Client

from pve_simulator.builder import Builder
from pve_simulator.clock import ManualClock
from pve_simulator.http.certificates import shared_identity
from pve_simulator.simulator import SimulatedCluster
from pve_simulator.world import World
from quorate.app import build, simulated_cluster
from quorate.config import Access, Approval, Settings
from quorate.pve.connection import Limits
from tests.rigs.mcp_session import DrivenTime, Rig

PATIENCE = Limits(request_seconds=2, total_seconds=3)


def lab(world: World) -> None:
    """Its own nodes; VMID 100 and the name grafana also exist in prod."""
    builder = Builder(world)
    for name in ("lab1", "lab2"):
        builder.node(name, memory=32, cpus=8, up_days=5.0)
    builder.storage("local", "dir", "iso,vztmpl,backup,snippets,images,rootdir", total=900, path="/var/lib/vz")
    builder.guest("qemu", 100, "playground", "lab1", cores=2, memory=2048, disk=8, storage="local", tags="lab")
    builder.guest("lxc", 301, "grafana", "lab1", cores=1, memory=512, disk=8, storage="local")
    builder.guest("qemu", 302, "scratch", "lab2", cores=8, memory=4096, disk=8, storage="local", running=False)


def edge(world: World) -> None:
    """Its only node has the name of a node of prod."""
    builder = Builder(world)
    builder.node("pve1", memory=16, cpus=4, up_days=5.0)
    builder.storage("local", "dir", "iso,vztmpl,backup,snippets,images,rootdir", total=900, path="/var/lib/vz")
    builder.guest("lxc", 401, "sensor", "pve1", cores=1, memory=512, disk=8, storage="local")


@dataclass
class SeveralClusters(Rig):
    sims: dict[str, SimulatedCluster] = field(default_factory=dict)

    def writes_to(self, name: str) -> list[tuple[str, str]]:
        return [(method, path) for method, path in self.sims[name].requests if method != "GET"]


BUILDS = {"prod": None, "lab": lab, "edge": edge}


@asynccontextmanager
async def several_clusters(
    tmp_path: Path,
    *names: str,
    own: Mapping[str, Mapping[str, Any]] | None = None,
    access: Access = Access.ADMIN,
    more: Mapping[str, Any] | None = None,
    limits: Limits = PATIENCE,
) -> AsyncIterator[SeveralClusters]:
    """Start these clusters (prod and lab by default) behind one server; `own` has settings for each."""
    clock = ManualClock()
    async with AsyncExitStack() as stack:
        sims = {
            name: await stack.enter_async_context(
                SimulatedCluster(clock=clock, auth_delay=0.0, seed=number, build=BUILDS[name], identity=shared_identity)
            )
            for number, name in enumerate(names or ("prod", "lab"))
        }
        clusters = []
        for name, sim in sims.items():
            plain = simulated_cluster(sim)
            connection = replace(plain.connection, limits=limits)
            clusters.append(replace(plain, name=name, connection=connection, **(own or {}).get(name, {})))
        settings = Settings(
            clusters=tuple(clusters),
            access=access,
            audit_file=tmp_path / "audit.jsonl",
            approval=Approval.NONE,
            state=str(tmp_path / "state.sqlite"),
            **{"toolsets": ("all",), **(more or {})},
        )
        app = build(settings, clock=DrivenTime(clock))
        stack.push_async_callback(app.close)
        client = await stack.enter_async_context(Client(app.server()))
        yield SeveralClusters(next(iter(sims.values())), app, client, settings.audit_file, sims=sims)
