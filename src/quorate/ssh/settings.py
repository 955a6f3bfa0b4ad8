"""What the operator allows over SSH, and who logs in where."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from quorate.problems import NotConfigured
from quorate.secret import Secret
from quorate.ssh.host_keys import HostKeys
from quorate.ssh.pool import Pool
from quorate.ssh.target import SSH_PORT, SshTarget, split_port

MAX_OUTPUT = 1024 * 1024

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True)
class Login:
    """How to log in; None means that a broader setting applies."""

    host: str | None = None
    port: int | None = None
    user: str | None = None
    key: Path | None = None
    password: Secret | None = None
    jump: SshTarget | None = None

    def at(self, host: str) -> SshTarget:
        """The target at `host`, which may include a port: `10.0.0.5:2222`."""
        name, port = split_port(host)
        return SshTarget(
            name, port or self.port or SSH_PORT, self.user or "root", self.key, self.password, jump=self.jump
        )


@dataclass(frozen=True, slots=True)
class SshSettings:
    nodes: Login = Login()
    node_hosts: Mapping[str, str] = field(default_factory=dict)
    guests: Login = Login()
    """For every guest."""
    single_guests: Mapping[int, Login] = field(default_factory=dict)
    known_hosts: tuple[Path, ...] = ()
    pins: Path = Path("known_hosts")
    networks: tuple[Network, ...] = ()
    """Networks that contain every usable address reported by a cluster or guest; empty means any."""
    follow_reported: bool = True
    """If no networks are set: whether reported addresses are used. Not for a cluster described by a `.env` file."""
    max_output: int = MAX_OUTPUT
    """The limit for each output of a command, whatever the caller requests."""
    variables: Callable[[], Mapping[str, str]] = field(default=dict, compare=False)
    """The environment at the time of a lookup: PROXMOX_VM_101_SSH_HOST and similar."""


class SshAccess:
    def __init__(self, settings: SshSettings | None = None) -> None:
        self.settings = settings or SshSettings()
        self.pool = Pool(HostKeys(self.settings.known_hosts, self.settings.pins))
        self.reported: dict[str, str] = {}
        """Node -> address, as the cluster reports it."""
        self.reported_at = float("-inf")
        self.node_checks: dict[str, tuple[float, bool]] = {}
        """Address -> when the machine there was asked whether it is a node, and the answer."""

    def configured_node(self, name: str) -> SshTarget | None:
        """The node, if its address is configured."""
        host = self.settings.node_hosts.get(name)
        return self.settings.nodes.at(host) if host else None

    def node_at(self, host: str) -> SshTarget:
        return self.settings.nodes.at(host)

    def is_set_up(self, node: SshTarget) -> bool:
        """True if anything about SSH to nodes is configured, or the host key of this one is known."""
        return self.settings.nodes != Login() or bool(self.settings.node_hosts) or self.pool.host_keys.knows(node)

    @property
    def single_host(self) -> str | None:
        """A host for SSH, configured without a node's name."""
        return self.settings.nodes.host

    def require_allowed(self, address: str) -> None:
        """An address that a cluster or guest reports is used only within the operator's networks."""
        if not self.is_allowed(address):
            if not self.settings.networks:
                raise NotConfigured(
                    f"SSH to {address} is not allowed",
                    why="A .env file in the working directory describes the cluster, and your SSH keys are not used at "
                    "addresses that such a cluster reports",
                    next_step="The operator can describe the cluster in the environment or in the TOML file instead, "
                    "or allow networks with PROXMOX_SSH_NETWORKS",
                )
            raise NotConfigured(
                f"SSH to {address} is not allowed",
                why="The cluster or guest reported this address, and only "
                f"{', '.join(map(str, self.settings.networks))} may be reached that way",
                next_step="The operator can extend `networks` under [ssh], or set the host's address there",
            )

    def is_allowed(self, address: str) -> bool:
        networks = self.settings.networks
        return any(_within(address, network) for network in networks) if networks else self.settings.follow_reported

    def guest(self, vmid: int, host: str | None = None) -> SshTarget | None:
        """The guest at its configured address, else at `host`; None without either."""
        login = self.guest_login(vmid)
        at = login.host or host
        return login.at(at) if at else None

    def guest_login(self, vmid: int) -> Login:
        """What is set for this guest, else for all guests. User and key (never a password) default to the nodes'."""
        own, all_of_them, nodes = self._own_login(vmid), self.settings.guests, self.settings.nodes
        return Login(
            host=own.host,
            port=own.port or all_of_them.port,
            user=own.user or all_of_them.user or nodes.user,
            key=own.key or all_of_them.key or nodes.key,
            password=own.password or all_of_them.password,
            jump=own.jump or all_of_them.jump,
        )

    def reported_login(self, vmid: int) -> Login:
        """For an address that the guest reports: only credentials meant for guests, never the nodes' key."""
        login, nodes = self.guest_login(vmid), self.settings.nodes
        own, all_of_them = self._own_login(vmid), self.settings.guests
        if nodes.key is not None and login.key == nodes.key and not (own.key or all_of_them.key):
            raise NotConfigured(
                f"No login for guest {vmid} is configured",
                why="The key of the nodes is not used at an address that a guest reports",
                next_step="Set user and key for guests: PROXMOX_VM_SSH_USER and PROXMOX_VM_SSH_KEY, or [ssh.guests]",
            )
        return login

    def has_login_for_guests(self) -> bool:
        return self.settings.guests != Login()

    def secrets(self) -> list[str]:
        logins = [self.settings.nodes, self.settings.guests, *self.settings.single_guests.values()]
        passwords = [login.password for login in logins] + [login.jump.password for login in logins if login.jump]
        return [password.reveal() for password in passwords if password]

    async def close(self) -> None:
        await self.pool.close()

    def _own_login(self, vmid: int) -> Login:
        """The environment overrides the file. It is read now, because it may name guests created since the start."""
        written = self.settings.single_guests.get(vmid, Login())
        variables = self.settings.variables()

        def variable(name: str) -> str | None:
            return variables.get(f"PROXMOX_VM_{vmid}_SSH_{name}", "").strip() or None

        key = variable("KEY")
        return Login(
            host=variable("HOST") or written.host,
            port=written.port,
            user=variable("USER") or written.user,
            key=Path(key).expanduser() if key else written.key,
            password=written.password,
            jump=written.jump,
        )


def _within(address: str, network: Network) -> bool:
    """A name is not in any network: its address may change."""
    try:
        return ipaddress.ip_address(address) in network
    except ValueError:
        return False
