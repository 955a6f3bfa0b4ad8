"""How to reach one Proxmox VE cluster: endpoints, credentials, trust and time limits."""

from __future__ import annotations

from dataclasses import dataclass, field

from quorate.secret import Secret

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
