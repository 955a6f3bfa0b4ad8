"""What the operator says about the homelab."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from pathlib import Path

from quorate.secret import Secret
from quorate.ssh.settings import Network, SshSettings

NAME = "homelab"
"""Where a cluster's name stands, in rules and in the audit trail."""
PRIVATE = tuple(
    ipaddress.ip_network(one) for one in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7")
)
"""What may be scanned unless the operator says otherwise."""

SCRIPTS_URL = "https://raw.githubusercontent.com/community-scripts/ProxmoxVE/main"

SERVICES_FOLDER = "/opt/quorate"


@dataclass(frozen=True, slots=True)
class HomelabSettings:
    ssh: SshSettings = field(default_factory=SshSettings)
    """`ssh.nodes` is the login for hosts that have none of their own."""
    networks: tuple[Network, ...] = PRIVATE
    """Where a scan may look."""
    secrets_folder: Path = Path("secrets.d")
    """Where `file:NAME` may lead: a caller must not have any other file of the server sent to a host."""
    secrets_file: Path = Path("secrets")
    """Encrypted; made by `quorate secrets`."""
    passphrase: Secret | None = None
    """Opens that file."""
    catalogue: Path = Path("services")
    """The operator's own service templates, beside those of the package."""
    services_folder: str = SERVICES_FOLDER
    """Where services stand on the hosts, each in a folder of its own."""
    work: Path = Path("work")
    """State and work folders of Terraform and Ansible."""
    scripts_url: str = SCRIPTS_URL
    """Where community scripts are fetched from."""
    scripts_index: Path = Path("scripts.json")
    """The index of them that `quorate scripts refresh` has fetched."""
