"""Docker's JSON, which Podman uses as well: descriptions of containers, and requests that create them."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from quorate.documents import Unreadable, read_json
from quorate.homelab.workloads.model import Mount, Port, Spec, Workload
from quorate.pve.tasks import Report

NANO = 1_000_000_000
RESTARTS_ON_FAILURE = 5
_STREAM_HEAD = 8
LONGEST_EVENT, MOST_LAYERS = 64 * 1024, 1000
"""Limits for the progress of a pull."""


def parse_list_row(engine: str, row: Mapping[str, Any]) -> Workload:
    """From a row of the container list."""
    names = row.get("Names") or []
    return Workload(
        name=str(names[0]).lstrip("/") if names else str(row.get("Id", ""))[:12],
        engine=engine,
        id=str(row.get("Id", "")),
        state=str(row.get("State", "")).lower(),
        image=str(row.get("Image", "")),
        status=str(row.get("Status", "")),
        ports=_unique(
            Port(
                int(one["PrivatePort"]), one.get("PublicPort") or None, one.get("Type", "tcp"), _address(one.get("IP"))
            )
            for one in row.get("Ports") or ()
        ),
        labels=row.get("Labels") or {},
    )


def parse_container(engine: str, container: Mapping[str, Any], digest: str = "") -> Workload:
    """From the full description of a container, by the API or by `inspect`."""
    state, config, limits = (
        container.get("State") or {},
        container.get("Config") or {},
        container.get("HostConfig") or {},
    )
    networks = container.get("NetworkSettings") or {}
    health = (state.get("Health") or state.get("Healthcheck") or {}).get("Status", "")
    status = str(state.get("Status", "")).lower()
    return Workload(
        name=str(container.get("Name", "")).lstrip("/"),
        engine=engine,
        id=str(container.get("Id", "")),
        state=status,
        image=str(container.get("ImageName") or config.get("Image") or ""),
        health="" if health == "none" else str(health),
        ports=_parse_bindings(networks.get("Ports") or {}) or _parse_bindings(limits.get("PortBindings") or {}),
        mounts=tuple(
            Mount(one.get("Name") or one.get("Source", ""), one.get("Destination", ""), not one.get("RW", True))
            for one in container.get("Mounts") or ()
        ),
        addresses={
            name: one["IPAddress"] for name, one in (networks.get("Networks") or {}).items() if one.get("IPAddress")
        },
        memory=limits.get("Memory") or None,
        cpus=_cpus(limits),
        restart=str((limits.get("RestartPolicy") or {}).get("Name") or "no"),
        restarts=int(container.get("RestartCount") or 0),
        exit_code=int(state.get("ExitCode") or 0) if status in ("exited", "stopped", "dead") else None,
        error=str(state.get("Error") or ("out of memory" if state.get("OOMKilled") else "")),
        digest=digest or str(container.get("Image", "")),
        created=str(container.get("Created", "")),
        started=_moment(state.get("StartedAt")),
        command=tuple(config.get("Cmd") or ()),
        env=tuple(one.partition("=")[0] for one in config.get("Env") or ()),
        labels=config.get("Labels") or {},
        fleeting=bool(limits.get("AutoRemove")),
    )


def create_request(spec: Spec) -> dict[str, Any]:
    """The request that creates the container."""
    if spec.exact is not None:
        return dict(spec.exact)
    limits: dict[str, Any] = {
        "RestartPolicy": restart_policy(spec),
        "PortBindings": {},
        **storage(spec.mounts),
    }
    for port in spec.ports:
        bound = {"HostIp": port.address, "HostPort": str(port.outside or "")}
        limits["PortBindings"].setdefault(f"{port.inside}/{port.protocol}", []).append(bound)
    if spec.memory:
        limits["Memory"] = spec.memory
    if spec.cpus:
        limits["NanoCpus"] = round(spec.cpus * NANO)
    if spec.network:
        limits["NetworkMode"] = spec.network
    return {
        "Image": spec.image,
        "Env": [f"{name}={value}" for name, value in spec.env.items()],
        "Labels": dict(spec.labels),
        "ExposedPorts": {f"{port.inside}/{port.protocol}": {} for port in spec.ports},
        "HostConfig": limits,
        **({"Cmd": list(spec.command)} if spec.command else {}),
    }


def build_copy_spec(one: Workload, container: Mapping[str, Any]) -> Spec:
    """The request that recreates a container. A hostname that is the container's id is left out."""
    config = {name: value for name, value in (container.get("Config") or {}).items() if value is not None}
    if str(container.get("Id", "")).startswith(str(config.get("Hostname") or "-")):
        del config["Hostname"]
    networks = (container.get("NetworkSettings") or {}).get("Networks") or {}
    own = {
        name: {key: point[key] for key in ("IPAMConfig", "Links", "Aliases") if point.get(key)}
        for name, point in networks.items()
        if name not in ("bridge", "host", "none", "podman")
    }
    for point in own.values():  # the engine adds the id automatically
        aliases = [alias for alias in point.pop("Aliases", []) if not str(container.get("Id", "")).startswith(alias)]
        point |= {"Aliases": aliases} if aliases else {}
    connected = {"NetworkingConfig": {"EndpointsConfig": own}} if own else {}
    exact = {**config, "HostConfig": dict(container.get("HostConfig") or {}), **connected}
    restart: Any = one.restart
    return Spec(
        one.name, one.image, one.ports, one.mounts, dict.fromkeys(one.env, ""), one.command, one.memory, one.cpus,
        restart, None, dict(one.labels), "missing", exact,
    )  # fmt: skip


def restart_policy(spec: Spec) -> dict[str, Any]:
    tries = {"MaximumRetryCount": RESTARTS_ON_FAILURE} if spec.restart == "on-failure" else {}
    return {"Name": spec.restart, **tries}


def storage(mounts: Iterable[Mount]) -> dict[str, Any]:
    """Host paths become binds: for those, Docker creates a missing path, as `docker run -v` does."""
    found = list(mounts)
    return {
        "Binds": [str(one) for one in found if one.is_path],
        "Mounts": [mount(one) for one in found if not one.is_path],
    }


def mount(one: Mount) -> dict[str, Any]:
    return {"Type": "volume", "Source": one.source, "Target": one.path, "ReadOnly": one.read_only}


def log_text(data: bytes, *, tty: bool) -> str:
    """A container's output; without a terminal, each piece has a header with its length."""
    if tty:
        return data.decode("utf-8", "replace")
    text = bytearray()
    while len(data) >= _STREAM_HEAD:
        length = int.from_bytes(data[4:_STREAM_HEAD], "big")
        text += data[_STREAM_HEAD : _STREAM_HEAD + length]
        data = data[_STREAM_HEAD + length :]
    return text.decode("utf-8", "replace")


def digest_of(image: Mapping[str, Any]) -> str:
    digests = image.get("RepoDigests") or []
    return str(digests[0]).rpartition("@")[2] if digests else str(image.get("Id", ""))


class _Detail(msgspec.Struct):
    current: float = 0.0
    total: float = 0.0


class _Event(msgspec.Struct):
    status: str = ""
    id: str = ""
    error: str = ""
    progress: _Detail | None = msgspec.field(name="progressDetail", default=None)


class Pulling:
    """The progress of a pull: a stream of JSON events about its layers."""

    def __init__(self, image: str, report: Report | None) -> None:
        self._image = image
        self._report = report
        self._line = b""
        self._layers: dict[str, tuple[float, float]] = {}
        self.error = ""

    async def take(self, data: bytes) -> None:
        *lines, rest = (self._line + data).split(b"\n")
        self._line = rest if len(rest) < LONGEST_EVENT else b""
        for line in lines:
            await self._event(line)

    async def _event(self, line: bytes) -> None:
        try:
            event = read_json(line, _Event)
        except Unreadable:
            return
        self.error = event.error or self.error
        detail, layer = event.progress or _Detail(), event.id
        if (
            event.status == "Downloading"
            and detail.total
            and (layer in self._layers or len(self._layers) < MOST_LAYERS)
        ):
            self._layers[layer] = (detail.current, detail.total)
        elif event.status in ("Download complete", "Pull complete") and layer in self._layers:
            self._layers[layer] = (self._layers[layer][1], self._layers[layer][1])
        if self._report is not None:
            done, whole = (sum(one[at] for one in self._layers.values()) for at in (0, 1))
            words = f"{self._image}: {event.status} {layer}".strip()
            await self._report(100.0 * done / whole if whole else 0.0, 100.0, words)


def shown_command(command: Iterable[str]) -> str:
    return shlex.join(command)


def _parse_bindings(ports: Mapping[str, Any]) -> tuple[Port, ...]:
    found = []
    for name, bindings in ports.items():
        inside, _, protocol = name.partition("/")
        every: list[dict[str, str]] = bindings or [{}]
        for one in every:
            outside = one.get("HostPort") or None
            found.append(
                Port(int(inside), int(outside) if outside else None, protocol or "tcp", _address(one.get("HostIp")))
            )
    return _unique(found)


def _unique(ports: Iterable[Port]) -> tuple[Port, ...]:
    return tuple(dict.fromkeys(ports))


def _address(address: str | None) -> str:
    return "" if address in (None, "", "0.0.0.0", "::") else str(address)  # noqa: S104 - it is read, not listened on


def _cpus(limits: Mapping[str, Any]) -> float | None:
    if limits.get("NanoCpus"):
        return float(limits["NanoCpus"]) / NANO
    if limits.get("CpuQuota") and limits.get("CpuPeriod"):
        return float(limits["CpuQuota"]) / float(limits["CpuPeriod"])
    return None


def _moment(time: Any) -> str:
    return "" if not time or str(time).startswith("0001-") else str(time)
