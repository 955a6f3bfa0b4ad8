"""Who may be reached over SSH and how: nodes and guests, by the operator's settings."""

from __future__ import annotations

import ipaddress
from pathlib import Path

from quorate.problems import NotConfigured
from quorate.ssh.host_keys import HostKeys
from quorate.ssh.pool import Pool
from quorate.ssh.settings import Login, Network, SshSettings
from quorate.ssh.target import SshTarget


class SshAccess:
    def __init__(self, settings: SshSettings | None = None) -> None:
        self.settings = settings or SshSettings()
        self.pool = Pool(HostKeys(self.settings.known_hosts, self.settings.pins))
        self.told: dict[str, str] = {}
        """Addresses of the nodes as the cluster tells them."""
        self.told_at = float("-inf")

    def configured_node(self, name: str) -> SshTarget | None:
        """The node, if the operator wrote down its address."""
        host = self.settings.node_hosts.get(name)
        return self.settings.nodes.at(host) if host else None

    def node_at(self, host: str) -> SshTarget:
        return self.settings.nodes.at(host)

    @property
    def single_host(self) -> str | None:
        """One host for SSH, given without saying which node it is."""
        return self.settings.nodes.host

    def require_allowed(self, told: str) -> None:
        """An address that was told, not written down by the operator, counts only in the networks they named."""
        if not self.is_allowed(told):
            raise NotConfigured(
                f"SSH to {told} is not allowed",
                why=f"The address was told, and only {', '.join(map(str, self.settings.networks))} may be reached so",
                next_step="The operator can widen `networks` under [ssh], or give the host's address there",
            )

    def is_allowed(self, told: str) -> bool:
        networks = self.settings.networks
        return not networks or any(_within(told, network) for network in networks)

    def guest(self, vmid: int, host: str | None = None) -> SshTarget | None:
        """The guest, at the address that is configured for it, else at `host`; None if there is neither."""
        login = self.guest_login(vmid)
        at = login.host or host
        return login.at(at) if at else None

    def guest_login(self, vmid: int) -> Login:
        """What is set for this guest, else for all guests. User and key, but never a password, may be the nodes'."""
        own, all_of_them, nodes = self._own_login(vmid), self.settings.guests, self.settings.nodes
        return Login(
            host=own.host,
            port=own.port or all_of_them.port,
            user=own.user or all_of_them.user or nodes.user,
            key=own.key or all_of_them.key or nodes.key,
            password=own.password or all_of_them.password,
            jump=own.jump or all_of_them.jump,
        )

    def told_login(self, vmid: int) -> Login:
        """For an address that the guest tells of itself: only with what is meant for guests, never the nodes' key."""
        login, nodes = self.guest_login(vmid), self.settings.nodes
        own, all_of_them = self._own_login(vmid), self.settings.guests
        if nodes.key is not None and login.key == nodes.key and not (own.key or all_of_them.key):
            raise NotConfigured(
                f"No login for guest {vmid} is configured",
                why="The key of the nodes is not tried at an address that a guest tells of itself",
                next_step="Give user and key for guests: PROXMOX_VM_SSH_USER and PROXMOX_VM_SSH_KEY, or [ssh.guests]",
            )
        return login

    def has_login_for_guests(self) -> bool:
        """Whether the operator said anything about logging in to guests in general."""
        return self.settings.guests != Login()

    def secrets(self) -> list[str]:
        logins = [self.settings.nodes, self.settings.guests, *self.settings.single_guests.values()]
        passwords = [login.password for login in logins] + [login.jump.password for login in logins if login.jump]
        return [password.reveal() for password in passwords if password]

    async def close(self) -> None:
        await self.pool.close()

    def _own_login(self, vmid: int) -> Login:
        """The environment is stronger than the file, and read now: it may name guests made since the start."""
        written = self.settings.single_guests.get(vmid, Login())
        variables = self.settings.variables()

        def given(name: str) -> str | None:
            return variables.get(f"PROXMOX_VM_{vmid}_SSH_{name}", "").strip() or None

        key = given("KEY")
        return Login(
            host=given("HOST") or written.host,
            port=written.port,
            user=given("USER") or written.user,
            key=Path(key).expanduser() if key else written.key,
            password=written.password,
            jump=written.jump,
        )


def _within(address: str, network: Network) -> bool:
    """A name is in no network: what it leads to may change."""
    try:
        return ipaddress.ip_address(address) in network
    except ValueError:
        return False
