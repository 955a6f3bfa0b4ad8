"""The settings themselves, as the rest of the program sees them."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from quorate.command_rules import CommandRules
from quorate.config.folders import usual_audit_file, usual_state
from quorate.config.rules import NO_POLICY, Policy
from quorate.homelab.settings import HomelabSettings
from quorate.pve.connection import Connection
from quorate.ssh.settings import SshSettings

if TYPE_CHECKING:
    from quorate.config.http import HttpSettings

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


class Approval(enum.StrEnum):
    """How a person agrees to what destroys, before it is done."""

    ASK = "ask"
    """The person at the client is asked, else an operator at a terminal."""
    TOKEN = "token"  # noqa: S105
    """The plan token of a dry run has to be given back: where nobody can be asked."""
    NONE = "none"


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    name: str
    connection: Connection
    default_node: str | None = None
    default_storage: str | None = None
    default_bridge: str | None = None
    ssh: SshSettings = field(default_factory=SshSettings)
    access: Access | None = None
    """Takes the place of the server's access level there."""
    policy: Policy = NO_POLICY
    """Holds beside the server's."""


@dataclass(frozen=True, slots=True)
class Settings:
    clusters: tuple[ClusterSettings, ...] = ()
    """Empty when nothing is configured: the tools can still be listed."""
    access: Access = Access.READ
    toolsets: tuple[str, ...] | None = None
    """None is the default set; `all` and `homelab` stand for groups of them."""
    surfaces: tuple[str, ...] = ("native",)
    """The ways in which tools are shown: our own, or those of other servers."""
    opt_ins: frozenset[str] = frozenset()
    """Variables by which the operator of another server allows what is dangerous, of those that are set to yes."""
    gate_chosen: bool = False
    """Access or approval were given: then no opt-in of another server speaks for the operator."""
    look_inside: bool = False
    """Looking inside guests is allowed at access read already."""
    command_rules: CommandRules = field(default_factory=CommandRules)
    """Which commands may be run inside guests."""
    homelab: HomelabSettings = field(default_factory=HomelabSettings)
    policy: Policy = NO_POLICY
    approval: Approval = Approval.ASK
    approve_changes: bool = False
    """Plain changes need approval as well."""
    state: str = field(default_factory=usual_state, repr=False)
    """A file, or the address of a PostgreSQL database that several replicas share."""
    audit_file: Path = field(default_factory=usual_audit_file)
    wait_seconds: float = WAIT_SECONDS
    """How long a change is followed before its task is handed back."""
    http: HttpSettings | None = None
    """Only where it is wanted."""
    warnings: tuple[str, ...] = ()
    config_file: Path | None = None
    """The TOML file, if there is one."""
    problem: str | None = None
    """Why there is no cluster."""
