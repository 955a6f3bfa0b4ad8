"""How to reach a server: endpoints, credentials, trust and limits; and the clock that everything waits by."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Protocol

from quorate.hints import ToolHint, tools
from quorate.secret import Secret


class Clock(Protocol):
    """Time as the product sees it, so that following a task can be tested without waiting."""

    def monotonic(self) -> float: ...

    def time(self) -> float: ...

    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    def monotonic(self) -> float:
        return time.monotonic()

    def time(self) -> float:
        return time.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


__all__ = ["PBS", "PVE", "Connection", "Limits", "Password", "Product", "Secret", "Token", "Trust"]


@dataclass(frozen=True, slots=True)
class Product:
    """The server behind a connection. Both products share the transport, and differ in these."""

    name: str
    port: int
    authorization: str
    """The header of a token, with its id and secret."""
    show_certificate: str
    """The command that shows its certificate on the server."""
    renew_certificate: str
    service: str
    """The service that answers."""
    overview: ToolHint
    """Shows whether it is well."""
    recent_tasks: ToolHint


PVE = Product(
    "PVE",
    8006,
    "PVEAPIToken={id}={secret}",
    "pvenode cert info",
    "pvecm updatecerts --force",
    "pveproxy",
    tools.node_list,
    tools.task_list,
)
PBS = Product(
    "PBS",
    8007,
    "PBSAPIToken={id}:{secret}",
    "proxmox-backup-manager cert info",
    "proxmox-backup-manager cert update --force",
    "proxmox-backup-proxy",
    tools.pbs_status,
    tools.pbs_task_list,
)


@dataclass(frozen=True, slots=True)
class Token:
    """An API token, `user@realm!name` and its UUID secret."""

    id: str
    secret: Secret


@dataclass(frozen=True, slots=True)
class Password:
    """A user that logs in for a ticket: `user@realm` and password."""

    user: str
    password: Secret


@dataclass(frozen=True, slots=True)
class Trust:
    """How the server's certificate is verified. The default is full verification with the system's CAs."""

    verify: bool = True
    ca_file: str | None = None
    fingerprint: str | None = None
    """SHA-256 of the certificate: 64 hex digits, with or without colons."""


@dataclass(frozen=True, slots=True)
class Limits:
    request_seconds: float = 30.0
    """One HTTP request. PVE's own proxy times out after 30 s."""
    silence_seconds: float = 5.0
    """How long a node may be silent before the others are asked whether it is online."""
    total_seconds: float = 60.0
    """One API call with its retries and failovers."""
    connections: int = 16
    """Open connections to the cluster at any time."""
    answer_bytes: int = 32 * 1024 * 1024
    """One answer, decompressed. The resources of ten thousand guests take 6 MB."""


@dataclass(frozen=True, slots=True)
class Connection:
    """One cluster, through any of its nodes, or one backup server."""

    endpoints: tuple[str, ...]
    """Base URLs such as `https://pve1:8006`, tried in order."""
    credentials: Token | Password
    trust: Trust = field(default_factory=Trust)
    limits: Limits = field(default_factory=Limits)
    product: Product = PVE
