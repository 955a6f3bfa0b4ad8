"""A stand-in for LXD: instances that start and stop, operations that continue after the response."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.rigs.docker_engine import listening


@dataclass
class LxdServer:
    socket: Path
    instances: dict[str, dict[str, Any]] = field(default_factory=dict)
    bodies: list[Any] = field(default_factory=list)
    fails: str = ""
    """The error of the next start, if it should fail."""
    deaf: bool = False
    """Whether instances ignore a graceful stop."""
    _going_on: list[Callable[[], str]] = field(default_factory=list)
    _looked: int = 0

    async def handle(self, request: web.Request) -> web.Response:
        body: Any = await request.json() if request.can_read_body else None
        match [request.method, *request.path.strip("/").split("/")[1:]]:
            case ["GET"]:
                return _sync({"auth": "trusted", "environment": {"server_version": "5.0.2"}})
            case ["GET", "operations", number, "wait"]:
                return self._waited(int(number))
            case ["GET", "images", "aliases", "tiny"]:
                return _sync({"target": "feed"})
            case ["GET", "instances"]:
                return _sync(list(self.instances.values()))
            case ["POST", "instances"]:
                self.bodies.append(body)
                return self._begin(lambda: self._create(body))
            case [method, "instances", name, *rest] if name in self.instances:
                return self._about(method, name, rest, body)
        return web.json_response({"type": "error", "error": "not found", "error_code": 404}, status=404)

    def _about(self, method: str, name: str, rest: list[str], body: Any) -> web.Response:
        match [method, *rest]:
            case ["GET"]:
                return _sync(self.instances[name])
            case ["GET", "state"]:
                card = {"addresses": [{"family": "inet", "scope": "global", "address": "10.0.3.7"}]}
                return _sync({"network": {"eth0": card}})
            case ["GET", "console"]:
                return web.Response(text="one\ntwo\nthree\n")
            case ["PUT", "state"]:
                return self._begin(lambda: self._power(name, body))
            case ["POST"]:
                return self._begin(lambda: self._rename(name, body["name"]))
            case ["DELETE"]:
                return self._begin(lambda: self._delete(name))
        return web.json_response({"type": "error", "error": "not found", "error_code": 404}, status=404)

    def _begin(self, work: Callable[[], str]) -> web.Response:
        self._going_on.append(work)
        self._looked = 0
        place = f"/1.0/operations/{len(self._going_on) - 1}"
        return web.json_response({"type": "async", "operation": place, "metadata": {"status_code": 103}}, status=202)

    def _waited(self, number: int) -> web.Response:
        """Still running at the first check."""
        self._looked += 1
        if self._looked == 1:
            progress = {"create_instance_from_image_unpack_progress": "Unpack: 40% (9MB/s)"}
            return _sync({"status_code": 103, "metadata": progress, "err": ""})
        error = self._going_on[number]()
        return _sync({"status_code": 400 if error else 200, "err": error, "metadata": {}})

    def _create(self, body: dict[str, Any]) -> str:
        config = {**body["config"], "volatile.uuid": f"uuid-{len(self._going_on)}", "image.description": "tiny"}
        shown = {"name": body["name"], "type": "container", "config": config, "devices": body["devices"]}
        self.instances[body["name"]] = shown | {"status": "Stopped", "created_at": "2026-01-01T00:00:00Z"}
        return ""

    def _power(self, name: str, body: dict[str, Any]) -> str:
        if body["action"] == "start" and self.fails:
            error, self.fails = self.fails, ""
            return error
        if body["action"] == "stop" and self.deaf and not body["force"]:
            return 'Failed shutting down instance, status is "Running": context deadline exceeded'
        self.instances[name]["status"] = "Running" if body["action"] == "start" else "Stopped"
        return ""

    def _rename(self, name: str, new: str) -> str:
        if self.instances[name]["status"] == "Running":
            return "Renaming of running instance not allowed"
        self.instances[new] = self.instances.pop(name) | {"name": new}
        return ""

    def _delete(self, name: str) -> str:
        if self.instances[name]["status"] == "Running":
            return "The instance is currently running, stop it first"
        del self.instances[name]
        return ""


def _sync(metadata: Any) -> web.Response:
    return web.json_response({"type": "sync", "status_code": 200, "metadata": metadata})


@asynccontextmanager
async def lxd_server(folder: Path) -> AsyncIterator[LxdServer]:
    server = LxdServer(folder / "unix.socket")
    async with listening(server.socket, server.handle):
        yield server
