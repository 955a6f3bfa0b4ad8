"""How to reach a cluster: endpoints, credentials, trust and limits; and the clock that everything waits by."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Protocol

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


__all__ = ["Connection", "Limits", "Password", "Secret", "Token", "Trust"]


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
    """One cluster, through any of its nodes."""

    endpoints: tuple[str, ...]
    """Base URLs such as `https://pve1:8006`, tried in order."""
    credentials: Token | Password
    trust: Trust = field(default_factory=Trust)
    limits: Limits = field(default_factory=Limits)
