"""A workload, independent of its engine: what is requested, what exists, and deployments that outlast their call."""

from __future__ import annotations

import asyncio
import ipaddress
import posixpath
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from quorate.problems import BadArgument, Problem
from quorate.pve.tasks import Report
from quorate.secret import HIDDEN, without_secrets
from quorate.ssh.pool import Pool
from quorate.state.store import Records, Store

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
    """The host's address to listen on; empty means every address."""

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
    """A workload as requested."""

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
    """Network -> address."""
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


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}", re.ASCII)
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@+-]{0,511}", re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*", re.ASCII)
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]*", re.ASCII)
_PORT = re.compile(
    r"(?:(?:(?P<address>\[[^\]]+\]|[0-9.]+):)?(?P<outside>\d*):)?(?P<inside>\d+)(?:/(?P<protocol>tcp|udp))?"
)
_SOCKETS = ("docker.sock", "podman.sock", "containerd.sock", "unix.socket")
_WITH_SOCKETS = ("/", "/run", "/var", "/var/run")
_OF_THE_SYSTEM = ("/bin", "/boot", "/dev", "/etc", "/lib", "/proc", "/root", "/sbin", "/sys", "/usr", "/var/lib/docker")
_WITH_SECRETS = ("/etc", "/home", "/root", "/var/lib")


def parse_name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise BadArgument(
            f"{text!r} is not a valid workload name", next_step="Use letters and digits, with . _ - between them"
        )
    return text


def parse_image(text: str) -> str:
    if not _IMAGE.fullmatch(text):
        raise BadArgument(f"{text!r} is not an image name", next_step="Write it like nginx:1.27 or images:debian/12")
    return text


def parse_ports(texts: Iterable[str]) -> tuple[Port, ...]:
    return tuple(dict.fromkeys(_port(text) for text in texts))


def _port(text: str) -> Port:
    match = _PORT.fullmatch(text.strip())
    if match is None:
        raise BadArgument(f"{text!r} is not a port", next_step="Write 80, 8080:80, 127.0.0.1:8080:80 or 53:53/udp")
    inside, outside = int(match["inside"]), int(match["outside"] or 0)
    address = (match["address"] or "").strip("[]")
    try:
        if address:
            ipaddress.ip_address(address)
    except ValueError:
        raise BadArgument(f"{address!r} in the port {text!r} is not an IP address") from None
    if not 0 < inside < 65536 or not 0 <= outside < 65536:
        raise BadArgument(f"The port {text!r} is out of range", next_step="Use 1 to 65535")
    return Port(inside, outside or None, match["protocol"] or "tcp", address)


def parse_mounts(texts: Iterable[str]) -> tuple[Mount, ...]:
    mounts = tuple(_mount(text) for text in texts)
    if len({mount.path for mount in mounts}) < len(mounts):
        raise BadArgument("Two volumes have the same path inside")
    return mounts


def _mount(text: str) -> Mount:
    source, colon, rest = text.partition(":")
    path, _, mode = rest.partition(":")
    sound = source.startswith("/") or _NAME.fullmatch(source)
    if not colon or not sound or not path.startswith("/") or mode not in ("", "ro", "rw") or "\0" in text:
        raise BadArgument(
            f"{text!r} is not a volume", next_step="Write NAME:/path or /host/path:/path, with :ro for read-only"
        )
    return Mount(_normal(source) if source.startswith("/") else source, _normal(path), mode == "ro")


def _normal(path: str) -> str:
    """Python keeps two leading slashes; to Linux they are one."""
    return f"/{posixpath.normpath(path).lstrip('/')}"


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    for name, value in variables.items():
        if not _VARIABLE.fullmatch(name) or "\0" in value:
            raise BadArgument(f"{name!r} is not an environment variable", next_step="Use letters, digits and _")
    return dict(variables)


def parse_labels(labels: Mapping[str, str]) -> dict[str, str]:
    for name in labels:
        if not _LABEL.fullmatch(name):
            raise BadArgument(f"{name!r} is not a label", next_step="Use letters, digits and . _ / -")
    return dict(labels)


def warnings(mounts: Iterable[Mount]) -> tuple[str, ...]:
    """Volumes that give the container control of the host, or show it the host's secrets."""
    return tuple(f"{mount.source} {words}" for mount in mounts if mount.is_path and (words := _danger(mount)))


def has_sockets(mount: Mount) -> bool:
    """A socket works even if its folder is read-only."""
    return mount.source in _WITH_SOCKETS or mount.source.endswith(_SOCKETS)


def _danger(mount: Mount) -> str:
    system = (
        f"{mount.source}/".startswith(tuple(f"{path}/" for path in _OF_THE_SYSTEM)) or mount.source in _WITH_SECRETS
    )
    if (system and not mount.read_only) or has_sockets(mount):
        return "gives the container control of the host"
    return "shows the container secrets of the host, such as its keys" if mount.source in _WITH_SECRETS else ""


SHORTEST_HIDDEN = 5
"""Shorter texts appear in every log."""
_KIND = "deployment"

T = TypeVar("T")


class Deployment:
    """The deployment of one workload on one machine. Stored while it runs, or after an unreported failure."""

    def __init__(self, store: Store, host: str, name: str, hidden: Iterable[str] = ()) -> None:
        """`hidden` are texts that must not be stored: a workload may print its environment before it fails."""
        self._records = Records(store, _KIND, dict[str, Any])
        self._hidden = [text for text in hidden if len(text) >= SHORTEST_HIDDEN]
        self._id = f"{host} {name}"

    async def state(self) -> dict[str, Any]:
        return await self._records.find(self._id) or {}

    async def follow(
        self, begin: Callable[[Report], Awaitable[T]], wait: float, report: Report | None, pool: Pool
    ) -> T | None:
        """The result within `wait`; None if it continues in the background. Canceling the caller does not stop it."""
        progress = _Progress(report)
        work = asyncio.ensure_future(begin(progress.tell))
        try:
            done, _ = await asyncio.wait({work}, timeout=wait)
        except asyncio.CancelledError:
            progress.report = None
            pool.in_background(self._finish(work))
            raise
        progress.report = None
        if done:
            await self.forget()
            return work.result()
        await self._keep({"state": "going on"})
        pool.in_background(self._finish(work))
        return None

    async def _finish(self, work: asyncio.Future[T]) -> None:
        try:
            await work
        except Problem as problem:
            log = [self._redact(str(line)) for line in problem.facts.get("log", ())]
            await self._keep({"state": "failed", "why": self._redact(str(problem)), **({"log": log} if log else {})})
        except asyncio.CancelledError:
            await self._keep({"state": "failed", "why": "The server ended before it was finished."})
            raise
        except Exception:  # a bug: it must not look as if it continued forever
            await self._keep({"state": "failed", "why": "An internal error occurred; see Quorate's log."})
            raise
        else:
            await self.forget()

    def _redact(self, text: str) -> str:
        for secret in self._hidden:
            text = text.replace(secret, HIDDEN)
        return without_secrets(text)

    async def _keep(self, entry: dict[str, Any]) -> None:
        await self._records.keep(self._id, entry)

    async def forget(self) -> None:
        await self._records.forget(self._id)


class _Progress:
    """Progress reports, for as long as the caller waits."""

    def __init__(self, report: Report | None) -> None:
        self.report = report

    async def tell(self, done: float, whole: float | None, line: str) -> None:
        if self.report is not None:
            await self.report(done, whole, line)
