"""Two hosts with a Docker engine each, for infrastructure plans."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.rigs.docker_engine import DockerEngine, docker_engine
from tests.rigs.homelab import House, house
from tests.rigs.host_tools import plain_tools
from tests.rigs.mcp_session import Rig
from tests.rigs.ssh_server import HOST

TOOLS = ("tar", "mkdir", "mktemp", "chown", "chmod", "mv", "rm", "dirname", "cat", "sort", "grep", "stat", "wc", "true")


@dataclass
class FilledEngine(DockerEngine):
    """An engine with files in its volumes, as tars by container and path."""

    files: dict[tuple[str, str], bytes] = field(default_factory=dict)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        match [request.method, *request.path.strip("/").split("/")]:
            case ["GET", _, "containers", name, "archive"]:
                return web.Response(body=self.files[name, request.query["path"]])
            case ["PUT", _, "containers", name, "archive"]:
                self.changes.append(f"PUT {name} {self.containers[name]['State']['Status']}")
                self.files[name, request.query["path"]] = await request.read()
                return web.Response()
        return await super().handle(request)


@dataclass
class InfraLab:
    built: House
    engines: dict[str, FilledEngine]

    @property
    def quorate(self) -> Rig:
        return self.built.quorate

    def host(self, name: str, **more: Any) -> dict[str, Any]:
        """As a document has it."""
        server = self.built.hosts[name]
        return {"address": HOST, "port": server.port, "user": "tester", "key": str(server.key_file), **more}

    def running(self, name: str) -> dict[str, str]:
        """Container -> image."""
        return self.engines[name].running()


@asynccontextmanager
async def infra_lab(tmp_path: Path, *names: str, register: bool = False, **options: Any) -> AsyncIterator[InfraLab]:
    async with AsyncExitStack() as stack:
        engines: dict[str, Any] = {}
        hosts: dict[str, Any] = {}
        for name in names or ("one", "two"):
            folder = tmp_path / f"{name}-machine"
            folder.mkdir()
            path = plain_tools(folder / "tools")
            for tool in TOOLS:
                if not (folder / "tools" / tool).exists():
                    (folder / "tools" / tool).symlink_to(shutil.which(tool) or f"/bin/{tool}")
            engines[name] = await stack.enter_async_context(docker_engine(folder, FilledEngine))
            hosts[name] = {"environment": {"PATH": path, "DOCKER_HOST": f"unix://{engines[name].socket}"}}
        (tmp_path / "house").mkdir()
        toolsets = ("hosts", "host_admin", "map", "workloads", "infra", "guests", "provision", "inside")
        options = {"toolsets": toolsets, **options}
        built = await stack.enter_async_context(house(tmp_path / "house", hosts, register=register, **options))
        yield InfraLab(built, engines)
