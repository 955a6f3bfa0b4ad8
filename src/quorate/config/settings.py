"""The settings themselves, as the rest of the program sees them."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from pathlib import Path

from quorate.config.folders import usual_audit_file
from quorate.pve.connection import Connection

WAIT_SECONDS = 45.0


class ConfigError(Exception):
    """A setting is wrong. The text is one sentence for the operator and never holds a secret."""


class Access(enum.StrEnum):
    """How much the operator lets callers do. Each level includes the ones before it."""

    READ = "read"
    OPERATE = "operate"
    ADMIN = "admin"

    def allows(self, needed: Access) -> bool:
        levels = list(Access)
        return levels.index(self) >= levels.index(needed)


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    name: str
    connection: Connection
    default_node: str | None = None
    default_storage: str | None = None
    default_bridge: str | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    clusters: tuple[ClusterSettings, ...] = ()
    """Empty when nothing is configured: the tools can still be listed."""
    access: Access = Access.READ
    toolsets: tuple[str, ...] | None = None
    """None is the default set, `("all",)` is every toolset."""
    look_inside: bool = False
    """Looking inside guests is allowed at access read already."""
    audit_file: Path = field(default_factory=usual_audit_file)
    wait_seconds: float = WAIT_SECONDS
    """How long a change is followed before its task is handed back."""
    warnings: tuple[str, ...] = ()
    problem: str | None = None
    """Why there is no cluster."""
