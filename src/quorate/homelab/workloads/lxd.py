"""LXD's JSON, which Incus uses as well."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Protocol
from urllib.parse import quote, unquote

import msgspec

from quorate.homelab.machines import Machine
from quorate.homelab.workloads.engine import Engine
from quorate.homelab.workloads.unix_http import HttpResponse
from quorate.homelab.workloads.workload import EngineName, Mount, Port, Power, Spec, Workload
from quorate.inside.transport import Command
from quorate.problems import (
    BadArgument,
    Conflict,
    NotFound,
    PermissionMissing,
    Problem,
    Refused,
    ServerFailed,
    TaskFailed,
)
from quorate.pve.connection import Clock
from quorate.pve.tasks import Report

_LISTEN = re.compile(r"(tcp|udp):(.*):(\d+)$")
_SHARE = re.compile(r"(\d+)ms/(\d+)ms$")
_BYTES = re.compile(r"(\d+)\s*([KMGT]i?)?B?$", re.I)
_FACTORS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4,
            "ki": 1024, "mi": 1024**2, "gi": 1024**3, "ti": 1024**4}  # fmt: skip
SERVERS = {
    "lxd": {"images": "https://images.lxd.canonical.com", "ubuntu": "https://cloud-images.ubuntu.com/releases"},
    "incus": {"images": "https://images.linuxcontainers.org"},
}


def parse_instance(engine: str, row: Mapping[str, Any], state: Mapping[str, Any] | None = None) -> Workload:
    config = row.get("expanded_config") or row.get("config") or {}
    devices = row.get("expanded_devices") or row.get("devices") or {}
    memory = _BYTES.match(config.get("limits.memory", ""))
    return Workload(
        name=row["name"],
        engine=engine,
        id=str(config.get("volatile.uuid") or row.get("created_at", "")),
        state=str(row.get("status", "")).lower(),
        image=str(config.get("image.description") or config.get("volatile.base_image", "")[:12]),
        status="VM" if row.get("type") == "virtual-machine" else "",
        ports=tuple(port for device in devices.values() if device.get("type") == "proxy" and (port := _port(device))),
        mounts=tuple(
            Mount(device.get("source", ""), device["path"], device.get("readonly") == "true")
            for device in devices.values()
            if device.get("type") == "disk" and device.get("path", "/") != "/"
        ),
        addresses=_addresses(state or {}),
        memory=int(memory[1]) * _FACTORS[(memory[2] or "").lower()] if memory else None,
        cpus=_cpus(config),
        restart={"true": "always", "false": "no"}.get(config.get("boot.autostart", ""), "unless-stopped"),
        digest=str(config.get("volatile.base_image", "")),
        created=str(row.get("created_at", "")),
        started=""
        if str(row.get("last_used_at", "")).startswith(("0001", "1970"))
        else str(row.get("last_used_at", "")),
        env=tuple(name.removeprefix("environment.") for name in config if name.startswith("environment.")),
        labels={name.removeprefix("user."): value for name, value in config.items() if name.startswith("user.")},
    )


def create_request(spec: Spec, engine: str, pool: str) -> dict[str, Any]:
    """The request that creates the instance; named volumes are in `pool`."""
    config = {f"environment.{name}": value for name, value in spec.env.items()}
    config |= {f"user.{name}": value for name, value in spec.labels.items()}
    if spec.restart in ("always", "no"):  # otherwise it starts after a reboot if it ran before
        config["boot.autostart"] = "true" if spec.restart == "always" else "false"
    if spec.memory:
        config["limits.memory"] = f"{spec.memory}B"
    if spec.cpus:
        whole = spec.cpus == int(spec.cpus)
        config |= (
            {"limits.cpu": str(int(spec.cpus))}
            if whole
            else {"limits.cpu.allowance": f"{round(spec.cpus * 100)}ms/100ms"}
        )
    devices: dict[str, dict[str, str]] = {}
    for number, port in enumerate(spec.ports):
        at = f"[{port.address}]" if ":" in port.address else port.address or "0.0.0.0"  # noqa: S104 - as was asked for
        listen, connect = f"{port.protocol}:{at}:{port.outside}", f"{port.protocol}:127.0.0.1:{port.inside}"
        devices[f"port{number}"] = {"type": "proxy", "listen": listen, "connect": connect}
    for number, mount in enumerate(spec.mounts):
        device = {"type": "disk", "source": mount.source, "path": mount.path, "readonly": str(mount.read_only).lower()}
        devices[f"volume{number}"] = device if mount.is_path else device | {"pool": pool}
    if spec.network:
        devices["eth0"] = {"type": "nic", "name": "eth0", "network": spec.network}
    return {
        "name": spec.name,
        "type": "container",
        "source": source(spec.image, engine),
        "config": config,
        "devices": devices,
    }


def source(image: str, engine: str) -> dict[str, str]:
    """The `source` of a request: `images:debian/12` from a public server, an alias from the host itself."""
    server = remote(image, engine)
    alias = image.rpartition(":")[2]
    if server is None:
        return {"type": "image", "alias": alias}
    return {"type": "image", "mode": "pull", "protocol": "simplestreams", "server": server, "alias": alias}


def remote(image: str, engine: str) -> str | None:
    name, colon, _ = image.partition(":")
    if not colon or name == "local":
        return None
    known = SERVERS[engine]
    if name not in known:
        choice = ", ".join(f"{server}:" for server in (*known, "local"))
        raise BadArgument(f"{engine} has no image server {name!r}", next_step=f"Start the image with {choice}")
    return known[name]


def _port(device: Mapping[str, str]) -> Port | None:
    listen, connect = _LISTEN.match(device.get("listen", "")), _LISTEN.match(device.get("connect", ""))
    if not listen or not connect:
        return None
    at = listen[2].strip("[]")
    return Port(int(connect[3]), int(listen[3]), listen[1], "" if at in ("0.0.0.0", "::") else at)  # noqa: S104


def _addresses(state: Mapping[str, Any]) -> dict[str, str]:
    return {
        name: address["address"]
        for name, card in (state.get("network") or {}).items()
        if name != "lo"
        for address in card.get("addresses") or ()
        if address.get("family") == "inet" and address.get("scope") == "global"
    }


def _cpus(config: Mapping[str, str]) -> float | None:
    count = config.get("limits.cpu", "")
    if count.isdecimal():
        return float(count)
    share = _SHARE.match(config.get("limits.cpu.allowance", ""))
    return int(share[1]) / int(share[2]) if share else None


OPERATION_SECONDS = 3600.0
GLANCE_SECONDS = 5
STOP_SECONDS = 30
_DONE = 200
_PERCENT = re.compile(r"(\d{1,3})%")
_NAME = re.compile(r"[A-Za-z](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?")


class Api(Protocol):
    path: str

    @property
    def by(self) -> str: ...

    async def call(self, method: str, path: str, body: Any = None, *, seconds: float = 30.0) -> HttpResponse: ...


class Lxd(Engine):
    def __init__(self, name: EngineName, api: Api, version: str, clock: Clock) -> None:
        super().__init__(name, f"{name} {version} on {api.path} by {api.by}", clock)
        self._api = api

    @classmethod
    async def connect(cls, name: EngineName, api: Api, clock: Clock) -> Lxd:
        server = _require_success(await api.call("GET", "/1.0"))["metadata"] or {}
        if server.get("auth") != "trusted":
            raise PermissionMissing(f"{name} does not trust this login", next_step="Log in as root, or join its group")
        return cls(name, api, str((server.get("environment") or {}).get("server_version", "")), clock)

    def objection(self, spec: Spec) -> str | None:
        if not _NAME.fullmatch(spec.name):
            return "Its names consist of letters, digits and -, and start with a letter"
        if spec.command:
            return "It does not support a command: the instance starts its own init"
        if spec.restart == "on-failure":
            return "It does not support restart on failure"
        if any(port.outside is None for port in spec.ports):
            return "It does not choose ports: give the host port, too, such as 8080:80"
        remote(spec.image, self.name)
        return None

    async def list(self) -> list[Workload]:
        rows = await self._get("/1.0/instances?recursion=1")
        return sorted((parse_instance(self.name, row) for row in rows), key=lambda workload: workload.name)

    async def find(self, name: str) -> Workload | None:
        try:
            row = await self._get(_instance(name))
            return parse_instance(self.name, row, await self._get(f"{_instance(name)}/state"))
        except NotFound:
            return None

    async def logs(self, name: str, lines: int, since: float | None = None) -> str:
        if since is not None:
            raise BadArgument(f"The log of {self.name} has no times", next_step="Omit since")
        answer = await self._api.call("GET", f"{_instance(name)}/console")
        if answer.status == 404:
            return ""
        if answer.status >= 400:
            _require_success(answer)
        return "\n".join(answer.body.decode("utf-8", "replace").splitlines()[-lines:])

    async def has_image(self, image: str) -> bool:
        if remote(image, self.name) is not None:
            return False  # the engine itself does not download an image twice
        alias = image.rpartition(":")[2]
        for path in (f"/1.0/images/aliases/{quote(alias, safe='')}", f"/1.0/images/{quote(alias, safe='')}"):
            try:
                await self._get(path)
            except (NotFound, BadArgument):
                continue
            return True
        return False

    async def pull(self, image: str, report: Report | None) -> None:
        if remote(image, self.name) is None:
            raise NotFound(
                f"{self.name} has no image {image!r}",
                next_step="Use one of its aliases, or one from a server, such as images:debian/12",
            )
        await self._do("POST", "/1.0/images", {"source": source(image, self.name)}, report)

    async def create(self, spec: Spec, report: Report | None) -> tuple[str, ...]:
        named = [mount.source for mount in spec.mounts if not mount.is_path]
        pool = await self._pool() if named else ""
        for volume in named:
            await self._ensure_volume(pool, volume)
        await self._do("POST", "/1.0/instances", create_request(spec, self.name, pool), report)
        return ()

    async def power(self, name: str, action: Power) -> None:
        running = (await self.get(name)).running
        if running and action != "start":
            await self._stop(name)
        if action == "restart" or (action == "start" and not running):
            await self._do("PUT", f"{_instance(name)}/state", {"action": "start", "timeout": STOP_SECONDS})

    async def rename(self, name: str, new: str) -> None:
        await self._do("POST", _instance(name), {"name": new})

    async def remove(self, name: str, *, volumes: bool = False) -> None:
        del volumes  # instances have no anonymous volumes
        if (await self.get(name)).running:
            await self._do("PUT", f"{_instance(name)}/state", _STOP | {"force": True})
        await self._do("DELETE", _instance(name))

    async def _stop(self, name: str) -> None:
        """Stop it gracefully, then by force."""
        try:
            await self._do("PUT", f"{_instance(name)}/state", _STOP)
        except TaskFailed:
            if (await self.get(name)).running:
                await self._do("PUT", f"{_instance(name)}/state", _STOP | {"force": True})

    async def _pool(self) -> str:
        profile = await self._get("/1.0/profiles/default")
        root = (profile.get("devices") or {}).get("root") or {}
        if not root.get("pool"):
            raise NotFound(
                f"{self.name} has no storage pool in its default profile", next_step=f"Run `{self.name} init` there"
            )
        return str(root["pool"])

    async def _ensure_volume(self, pool: str, name: str) -> None:
        volumes = f"/1.0/storage-pools/{quote(pool, safe='')}/volumes/custom"
        try:
            await self._get(f"{volumes}/{quote(name, safe='')}")
        except NotFound:
            await self._do("POST", volumes, {"name": name, "type": "custom"})

    async def _get(self, path: str) -> Any:
        return _require_success(await self._api.call("GET", path))["metadata"]

    async def _do(self, method: str, path: str, body: Any = None, report: Report | None = None) -> None:
        """Make one change and follow its operation to the end."""
        answer = _require_success(await self._api.call(method, path, body))
        if answer.get("type") != "async":
            return
        operation_path = str(answer["operation"])
        deadline = self.clock.monotonic() + OPERATION_SECONDS
        while True:
            operation = await self._wait_operation(operation_path)
            code = int(operation.get("status_code", 0))
            if code == _DONE:
                return
            if code > _DONE or self.clock.monotonic() > deadline:
                raise TaskFailed(f"The operation of {self.name} failed", why=f"It said: {operation.get('err')}")
            await _tell(operation, report)

    async def _wait_operation(self, operation_path: str) -> dict[str, Any]:
        operation: dict[str, Any] = await self._get(f"{operation_path}/wait?timeout={GLANCE_SECONDS}")
        return operation


_STOP = {"action": "stop", "timeout": STOP_SECONDS, "force": False}


def _instance(name: str) -> str:
    return f"/1.0/instances/{quote(name, safe='')}"


def _require_success(answer: HttpResponse) -> dict[str, Any]:
    content = answer.json()
    if not isinstance(content, dict):
        raise ServerFailed("The response does not come from an engine")
    if answer.status < 400 and content.get("type") != "error":
        return content
    status = int(content.get("error_code") or answer.status)
    text = str(content.get("error", ""))
    kind: type[Problem] = {400: BadArgument, 403: PermissionMissing, 404: NotFound, 409: Conflict}.get(
        status, ServerFailed
    )
    raise kind("The engine refused it", why=f"It said: {text}")


async def _tell(operation: dict[str, Any], report: Report | None) -> None:
    """Report any progress in its metadata, whatever its name."""
    if report is None:
        return
    for name, value in (operation.get("metadata") or {}).items():
        if name.endswith("progress") and (percent := _PERCENT.search(str(value))):
            await report(float(percent[1]), 100.0, str(value))


MOST = 1024 * 1024


class LxdQuery:
    """Sends requests with `lxc query`. They appear on a command line, so secrets are refused."""

    def __init__(self, machine: Machine, program: str) -> None:
        self._machine = machine
        self._program = program
        self.path = f"the command {program}"
        self.by = "query"

    async def call(self, method: str, path: str, body: Any = None, *, seconds: float = 30.0) -> HttpResponse:
        data = () if body is None else ("--data", msgspec.json.encode(body).decode())
        if any('"environment.' in part for part in data):
            raise Refused(
                "The environment would be visible to every user of that machine, on a command line",
                next_step="Install curl there, or omit env",
            )
        argv = (self._program, "query", "--raw", "--request", method, *data, path)
        if path.endswith("/console"):  # `query` prints JSON only
            argv = (self._program, "console", unquote(path.split("/")[-2]), "--show-log")
        output = await self._machine.transport.run(
            self._machine.as_root(Command(argv)), seconds=seconds + 5.0, keep=MOST
        )
        if output.exit_code == 0 and argv[1] == "console":
            return HttpResponse(200, output.stdout.partition(b"Console log:")[2].strip())
        if output.exit_code == 0:
            return HttpResponse(200, output.stdout, output.stdout_cut)
        complaint = output.complaint.removeprefix("Error: ")[-500:]
        if not complaint:
            raise ServerFailed(f"{self._program} query failed", why=f"It ended with exit code {output.exit_code}")
        status = 404 if "not found" in complaint.lower() else 409 if "already exists" in complaint else 500
        return HttpResponse(status, msgspec.json.encode({"type": "error", "error": complaint}))
