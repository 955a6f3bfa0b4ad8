"""The settings, as the rest of the program sees them."""

from __future__ import annotations

import enum
import ipaddress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from quorate.command_rules import CommandRules
from quorate.config.folders import usual_audit_file, usual_state
from quorate.config.rules import NO_POLICY, Policy
from quorate.pve.connection import Connection, Secret
from quorate.ssh.settings import Network, SshSettings

if TYPE_CHECKING:
    from quorate.config.http import HttpSettings
    from quorate.config.watch import WatchSettings

WAIT_SECONDS = 45.0
HOMELAB = "homelab"
"""The name that rules and the audit trail use for everything outside the clusters."""
SERVER = "quorate"
"""The name that findings about this server itself have in place of a cluster."""
PRIVATE_NETWORKS = tuple(
    ipaddress.ip_network(one) for one in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7")
)
SCRIPTS_URL = "https://raw.githubusercontent.com/community-scripts/ProxmoxVE/main"
SERVICES_FOLDER = "/opt/quorate"


class ConfigError(Exception):
    """A setting is wrong. The text is for the operator and never contains a secret."""


class Access(enum.StrEnum):
    """What callers may do. Each level includes the ones before it."""

    READ = "read"
    OPERATE = "operate"
    ADMIN = "admin"

    def rank(self) -> int:
        return _LEVELS[self]

    def allows(self, needed: Access) -> bool:
        return self.rank() >= needed.rank()


_LEVELS = {level: number for number, level in enumerate(Access)}


class Approval(enum.StrEnum):
    """How destructive calls are approved."""

    ASK = "ask"
    """The person at the client approves, otherwise an operator at a terminal."""
    TOKEN = "token"  # noqa: S105
    """The plan token of a dry run is required, where nobody can be asked."""
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
    """Overrides the server's access level for this cluster."""
    policy: Policy = NO_POLICY
    """Applies in addition to the server's."""


@dataclass(frozen=True, slots=True)
class HomelabSettings:
    ssh: SshSettings = field(default_factory=SshSettings)
    """`ssh.nodes` is the login for hosts without one of their own."""
    networks: tuple[Network, ...] = PRIVATE_NETWORKS
    """Networks that may be scanned."""
    secrets_folder: Path = Path("secrets.d")
    """Where `file:NAME` is looked up: no other file of the server may be sent to a host."""
    secrets_file: Path = Path("secrets")
    """The encrypted file that `quorate secrets` manages."""
    passphrase: Secret | None = None
    """Decrypts that file."""
    catalogue: Path = Path("services")
    """The operator's own service templates, in addition to those in the package."""
    services_folder: str = SERVICES_FOLDER
    """Where services are installed on the hosts, one folder each."""
    work: Path = Path("work")
    """State and work folders of Terraform and Ansible."""
    scripts_url: str = SCRIPTS_URL
    """Where community scripts are fetched from."""
    scripts_index: Path = Path("scripts.json")
    """The index that `quorate scripts refresh` stores."""


@dataclass(frozen=True, slots=True)
class Settings:
    clusters: tuple[ClusterSettings, ...] = ()
    """Empty when nothing is configured: the tools can still be listed."""
    access: Access = Access.READ
    toolsets: tuple[str, ...] | None = None
    """None means the default set; `all` and `homelab` are groups."""
    surfaces: tuple[str, ...] = ("native",)
    """Native, lean, or those of other servers."""
    opt_ins: frozenset[str] = frozenset()
    """Opt-in variables of other servers that are set."""
    gate_chosen: bool = False
    """Whether access or approval is set explicitly."""
    look_inside: bool = False
    """Looking inside guests is allowed at access read."""
    command_rules: CommandRules = field(default_factory=CommandRules)
    """Commands that may run inside guests and on hosts."""
    upload_dirs: tuple[Path, ...] = ()
    """Folders of this machine with images that callers over HTTP may upload."""
    homelab: HomelabSettings = field(default_factory=HomelabSettings)
    policy: Policy = NO_POLICY
    approval: Approval = Approval.ASK
    approve_changes: bool = False
    """All changes need approval."""
    state: str = field(default_factory=usual_state, repr=False)
    """A file, or the address of a PostgreSQL database that several replicas share."""
    audit_file: Path = field(default_factory=usual_audit_file)
    wait_seconds: float = WAIT_SECONDS
    """How long to follow a change before returning its task id."""
    container_password: Secret | None = None
    """Root's password in containers created by bsahane's tools; that server reads it from its environment."""
    http: HttpSettings | None = None
    """Only for `serve --http`."""
    watch: WatchSettings | None = None
    """None unless clusters and hosts are watched."""
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """What was taken from a `.env` and what was ignored; printed at every start."""
    config_file: Path | None = None
    """The TOML file, if there is one."""
    problem: str | None = None
    """Why there is no cluster."""

    @property
    def applicable_opt_ins(self) -> frozenset[str]:
        """Opt-ins of other servers never loosen what was chosen here."""
        return frozenset() if self.gate_chosen else self.opt_ins
