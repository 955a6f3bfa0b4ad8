"""A stand-in for the Docker engine: the API calls that the tools use, on a Unix socket, without containers.

An image's name decides what its container does: `broken` exits at once, `slow` becomes healthy at the third check.
The real engine is in tests/real.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web


@dataclass
class DockerEngine:
    socket: Path
    version: dict[str, str] = field(default_factory=lambda: {"ApiVersion": "1.43", "MinAPIVersion": "1.12"})
    images: set[str] = field(default_factory=set)
    containers: dict[str, dict[str, Any]] = field(default_factory=dict)
    changes: list[str] = field(default_factory=list)
    """Every call except GET, in order: method, path and query."""
    bodies: list[Any] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    pulling: asyncio.Event = field(default_factory=asyncio.Event)
    """A pull ends once this is set."""
    pull_error: str = ""
    hangs_up_on: str = ""
    """The action after which it stops answering."""
    log: list[bytes] = field(default_factory=lambda: [b"first\n", b"no such file\n"])
    busy: bool = False
    """Whether every removal fails."""

    def __post_init__(self) -> None:
        self.pulling.set()

    def running(self) -> dict[str, str]:
        """Container -> image."""
        return {
            name: container["Config"]["Image"]
            for name, container in self.containers.items()
            if container["State"]["Status"] == "running"
        }

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.paths.append(request.path)
        if request.method != "GET":
            self.changes.append(f"{request.method} {request.path_qs.partition('/v1.')[2].partition('/')[2]}")
        if request.path.endswith("/images/load"):
            self.images.add((await request.read()).decode())
            return web.json_response({"stream": "Loaded image"})
        body: Any = await request.json() if request.can_read_body else None
        match [request.method, *request.path.strip("/").split("/")]:
            case ["GET", "version"]:
                return web.json_response(self.version)
            case ["GET", _, "containers", "json"]:
                return web.json_response([_listed(container) for container in self.containers.values()])
            case ["GET", _, "containers", name, "json"]:
                return self._about(name)
            case ["GET", _, "containers", _, "logs"]:
                return web.Response(body=b"".join(map(_frame, self.log[-int(request.query["tail"]) :])))
            case ["GET", _, "images", *name, "json"]:
                return self._image("/".join(name))
            case ["GET", _, "images", *name, "get"]:
                return web.Response(body="/".join(name).encode())
            case ["POST", _, "images", "create"]:
                return await self._pull(request)
            case ["POST", _, "volumes", "create"]:
                return web.json_response({"Name": body["Name"]}, status=201)
            case ["POST", _, "containers", "create"]:
                self.bodies.append(body)
                return self._create(request.query["name"], body)
            case ["POST", _, "containers", _, action] if action == self.hangs_up_on:
                assert request.transport is not None
                request.transport.close()
                return web.Response()
            case ["POST", _, "containers", name, action]:
                return self._act(name, action, request.query.get("name", ""))
            case ["DELETE", _, "containers", _] if self.busy:
                return _said(500, "device or resource busy")
            case ["DELETE", _, "containers", name]:
                del self.containers[name]
                return web.Response(status=204)
        return _said(404, "page not found")

    def add(self, name: str, image: str, *, state: str = "running", ports: list[dict[str, Any]] | None = None) -> None:
        self.containers[name] = _container(name, image, {"Cmd": None}) | {"Ports": ports or []}
        self.containers[name]["State"]["Status"] = state

    def _about(self, name: str) -> web.Response:
        if name not in self.containers:
            return _said(404, f"No such container: {name}")
        container = self.containers[name]
        if "Health" in container["State"]:
            container["looks"] = container.get("looks", 0) + 1
            container["State"]["Health"]["Status"] = "healthy" if container["looks"] >= 3 else "starting"
        return web.json_response(container)

    def _image(self, name: str) -> web.Response:
        if name not in self.images and not name.startswith("sha256:"):
            return _said(404, f"No such image: {name}")
        return web.json_response({"Id": "sha256:1", "RepoDigests": [f"{name.partition(':')[0]}@sha256:feed"]})

    async def _pull(self, request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        for current in (10, 50, 100):
            await _event(answer, status="Downloading", id="a1", progressDetail={"current": current, "total": 100})
        await self.pulling.wait()
        if self.pull_error:
            await _event(answer, error=self.pull_error)
        else:
            self.images.add(f"{request.query['fromImage']}:{request.query['tag']}")
            await _event(answer, status="Pull complete", id="a1")
        await answer.write_eof()
        return answer

    def _create(self, name: str, body: dict[str, Any]) -> web.Response:
        if name in self.containers:
            return _said(409, f"The name {name} is already in use")
        self.containers[name] = _container(name, body["Image"], body)
        return web.json_response({"Id": self.containers[name]["Id"], "Warnings": []}, status=201)

    def _act(self, name: str, action: str, new: str) -> web.Response:
        container = self.containers[name]
        if action == "rename":
            self.containers[new] = self.containers.pop(name) | {"Name": f"/{new}"}
        elif action == "stop":
            container["State"] |= {"Status": "exited", "ExitCode": 0}
        elif "broken" in container["Config"]["Image"]:
            container["State"] |= {"Status": "exited", "ExitCode": 3}
        else:
            container["State"] |= {"Status": "running"}
        return web.Response(status=204)


def _container(name: str, image: str, body: dict[str, Any]) -> dict[str, Any]:
    limits = body.get("HostConfig", {})
    mounts = [
        {"Type": mount["Type"], "Name": mount["Source"], "Destination": mount["Target"], "RW": not mount["ReadOnly"]}
        for mount in limits.get("Mounts") or ()
    ]
    for text in limits.get("Binds") or ():
        source, path, *mode = text.split(":")
        mounts.append({"Type": "bind", "Source": source, "Destination": path, "RW": mode != ["ro"]})
    state: dict[str, Any] = {"Status": "created", "ExitCode": 0}
    return {
        "Id": secrets.token_hex(32), "Name": f"/{name}", "Image": "sha256:1", "RestartCount": 0, "Mounts": mounts,
        "State": state | ({"Health": {"Status": "starting"}} if "slow" in image else {}),
        "Config": {"Image": image, "Env": body.get("Env"), "Cmd": body.get("Cmd"), "Labels": body.get("Labels")},
        "HostConfig": limits, "NetworkSettings": {"Ports": limits.get("PortBindings", {})},
    }  # fmt: skip


def _listed(container: dict[str, Any]) -> dict[str, Any]:
    state, config = container["State"]["Status"], container["Config"]
    told = {"Id": container["Id"], "Names": [container["Name"]], "Image": config["Image"], "State": state}
    labels = config.get("Labels") or {}
    return told | {"Status": f"{state.capitalize()} 5 minutes", "Ports": container.get("Ports", []), "Labels": labels}


def _frame(data: bytes) -> bytes:
    return b"\x01\0\0\0" + len(data).to_bytes(4, "big") + data


def _said(status: int, message: str) -> web.Response:
    return web.json_response({"message": message}, status=status)


async def _event(answer: web.StreamResponse, **event: Any) -> None:
    await answer.write(json.dumps(event).encode() + b"\r\n")


@asynccontextmanager
async def listening(
    socket: Path, handle: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> AsyncIterator[None]:
    """An HTTP server on a Unix socket; `handle` serves all paths."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.UnixSite(runner, str(socket)).start()
    try:
        yield
    finally:
        await runner.cleanup()


@asynccontextmanager
async def docker_engine(
    folder: Path, kind: type[DockerEngine] = DockerEngine, **options: Any
) -> AsyncIterator[DockerEngine]:
    engine = kind(folder / "docker.sock", **options)
    async with listening(engine.socket, engine.handle):
        try:
            yield engine
        finally:
            engine.pulling.set()
