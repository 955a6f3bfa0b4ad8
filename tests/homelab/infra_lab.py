"""Two hosts with a Docker engine each, for infrastructure plans."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.driving import Rig
from tests.homelab.docker_engine import DockerEngine, docker_engine
from tests.homelab.house import House, house
from tests.homelab.plain_tools import plain_tools
from tests.ssh_server import HOST


@dataclass
class InfraLab:
    built: House
    engines: dict[str, DockerEngine]

    @property
    def quorate(self) -> Rig:
        return self.built.quorate

    def host(self, name: str, **more: Any) -> dict[str, Any]:
        """As a document has it."""
        server = self.built.hosts[name]
        return {"address": HOST, "port": server.port, "user": "tester", "key": str(server.key_file), **more}

    def running(self, name: str) -> dict[str, str]:
        """Container -> image."""
        return {
            key: one["Config"]["Image"]
            for key, one in self.engines[name].containers.items()
            if one["State"]["Status"] == "running"
        }


@asynccontextmanager
async def infra_lab(tmp_path: Path, *names: str, register: bool = False, **options: Any) -> AsyncIterator[InfraLab]:
    async with AsyncExitStack() as stack:
        engines, hosts = {}, {}
        for name in names or ("one", "two"):
            folder = tmp_path / f"{name}-machine"
            folder.mkdir()
            path = plain_tools(folder / "tools")
            engines[name] = await stack.enter_async_context(docker_engine(folder))
            hosts[name] = {"environment": {"PATH": path, "DOCKER_HOST": f"unix://{engines[name].socket}"}}
        (tmp_path / "house").mkdir()
        toolsets = ("hosts", "map", "workloads", "infra", "guests", "provision", "inside")
        options = {"toolsets": toolsets, **options}
        built = await stack.enter_async_context(house(tmp_path / "house", hosts, register=register, **options))
        yield InfraLab(built, engines)
