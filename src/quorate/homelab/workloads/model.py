"""A workload, and the specification of a new one, independent of the engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

EngineName = Literal["docker", "podman", "lxd", "incus"]
Pull = Literal["missing", "always", "never"]
Power = Literal["start", "stop", "restart"]
Restart = Literal["no", "always", "unless-stopped", "on-failure"]


@dataclass(frozen=True, slots=True)
class Port:
    inside: int
    outside: int | None = None
    """None: the engine chooses one."""
    protocol: str = "tcp"
    address: str = ""
    """Of the host; empty means every address."""

    def __str__(self) -> str:
        at = f"[{self.address}]" if ":" in self.address else self.address
        outer = f"{at}:{self.outside or ''}" if at else str(self.outside or "")
        return (f"{outer}:" if outer else "") + f"{self.inside}/{self.protocol}"


@dataclass(frozen=True, slots=True)
class Mount:
    source: str
    """A host path, or the name of a volume."""
    path: str
    read_only: bool = False

    @property
    def is_path(self) -> bool:
        return self.source.startswith("/")

    def __str__(self) -> str:
        return f"{self.source}:{self.path}" + (":ro" if self.read_only else "")


@dataclass(frozen=True, slots=True)
class Spec:
    """What should run."""

    name: str
    image: str
    ports: tuple[Port, ...] = ()
    mounts: tuple[Mount, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    command: tuple[str, ...] = ()
    memory: int | None = None
    """In bytes."""
    cpus: float | None = None
    restart: Restart = "unless-stopped"
    network: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    pull: Pull = "missing"
    exact: Mapping[str, Any] | None = None
    """For a copy: the engine's own request, which is used instead of the other fields."""


@dataclass(frozen=True, slots=True)
class Workload:
    """An existing workload. A list has fewer details than `get`."""

    name: str
    engine: str
    id: str
    state: str
    """running, exited, stopped, created, paused, restarting …: the engine's own word in lowercase."""
    image: str = ""
    status: str = ""
    health: str = ""
    ports: tuple[Port, ...] = ()
    mounts: tuple[Mount, ...] = ()
    addresses: Mapping[str, str] = field(default_factory=dict)
    """By network."""
    memory: int | None = None
    cpus: float | None = None
    restart: str = ""
    restarts: int = 0
    exit_code: int | None = None
    error: str = ""
    digest: str = ""
    """The image's digest in its registry, else its id."""
    created: str = ""
    started: str = ""
    command: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    """Names only: values are often secrets."""
    labels: Mapping[str, str] = field(default_factory=dict)
    fleeting: bool = False
    """It is removed when it stops (`docker run --rm`)."""

    @property
    def running(self) -> bool:
        return self.state == "running"

    def __str__(self) -> str:
        return f"{self.engine} {self.name}"
