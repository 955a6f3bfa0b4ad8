"""Every machine that commands can be sent to, under one naming scheme: registered hosts, nodes, guests, addresses."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from quorate.hints import Advice, see, tools
from quorate.homelab.accounts import key_of
from quorate.homelab.homelab import Homelab
from quorate.homelab.host import Host, address_to_host, is_ip, require_address, resolve_jumps
from quorate.inside.facts.model import SECTIONS, Facts
from quorate.inside.pct import ssh_of_node
from quorate.inside.ssh_transport import SshTransport, start_problem
from quorate.inside.transport import Command, Transport
from quorate.inside.transport_selection import select_transport
from quorate.problems import BadArgument, Conflict, HostNotFound, NotConfigured, Problem, Refused
from quorate.pve.cluster import Cluster, Guest
from quorate.secret import Secret
from quorate.server_files import expand_home
from quorate.ssh.process import ExecutionTarget, ExitStatus
from quorate.ssh.settings import SshAccess
from quorate.ssh.target import SshTarget, split_port

SECONDS = 20.0
SEEN_SECONDS = 300.0
NO_KEY = "Leave out the key to use the registered login, or ask the operator to put the key there"
CLUSTER_FILE = "/etc/pve/.members"
"""A file that exists on every node and nowhere else; any user may check for it."""


@dataclass(frozen=True, slots=True)
class Login:
    """Credentials from the caller, in place of the stored ones."""

    user: str | None = None
    key: str | None = None
    password: Secret | None = None
    port: int | None = None


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine and the transport to it."""

    kind: str
    """host, node, vm or ct"""
    name: str
    """The name that callers use."""
    transport: Transport
    where: Cluster | None = None
    """The cluster it belongs to."""
    guest: Guest | None = None
    sudo_password: Secret | None = None
    target: SshTarget | None = None
    """The SSH target, if the transport is SSH."""
    ssh: SshAccess | None = None
    """The owner of its connections."""
    may_be_node: bool = False
    """True if a cluster that could have it as a node does not answer."""
    ref: str = field(default="", compare=False)
    """How the caller named it; leads to it again."""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"

    def as_root(self, command: Command) -> Command:
        """The command with sudo, unless the login is root; the password goes over standard input."""
        return replace(command, user="root", password=self.sudo_password)

    def with_root(self) -> Machine:
        """The same machine, with everything run as root; an agent and `pct` already do that."""
        if not isinstance(self.transport, SshTransport) or (self.guest is not None and self.transport.name == "pct"):
            return self
        return replace(self, transport=self.transport.with_adapter(self.as_root))

    async def collect_facts(
        self, *, seconds: float = 30, sections: Collection[str] | None = None, sudo: bool = False
    ) -> Facts:
        """What can be found out in that time; all sections by default. Raises a Problem if it cannot be asked."""
        from quorate.inside.facts.collector import collect_facts  # the parsers take time to import

        through = f" (through {self.target.jump.address})" if self.target and self.target.jump else ""
        return await collect_facts(
            self.transport,
            f"{self}{through}",
            seconds=seconds,
            sections=SECTIONS if sections is None else sections,
            as_root=self.as_root if sudo else None,
        )


async def find_machine(homelab: Homelab, ref: str, login: Login = Login()) -> Machine:  # noqa: B008 - it is frozen
    """The machine that `ref` names: a registered host, `cluster/guest`, a node, a guest, or `user@address:port`."""
    ref = ref.strip()
    if not ref:
        raise BadArgument("The host is empty", next_step=see("See which hosts exist", tools.host_list))
    return replace(await _find(homelab, ref, (homelab.login or login) if login == Login() else login), ref=ref)


async def _find(homelab: Homelab, ref: str, login: Login) -> Machine:
    if host := await homelab.hosts.find(ref):
        return await resolve_host(homelab, host, login)
    user, _, place = ref.rpartition("@")
    name, port = split_port(place)
    # An address is never the name of a guest: anyone who can name guests could redirect commands otherwise.
    if not is_ip(name) and (machine := await _find_in_clusters(homelab.clusters, ref)):
        return machine
    login = replace(login, user=login.user or user or None, port=login.port or port)
    if host := await homelab.hosts.find(name):
        return await resolve_host(homelab, host, login)
    return await resolve_host(homelab, _at_address(ref, name, [host.name for host in await homelab.hosts.all()]), login)


async def resolve_host(homelab: Homelab, host: Host, login: Login = Login()) -> Machine:  # noqa: B008
    """A host with its own login, else with the one configured for all hosts."""
    host = await _host_on_port(homelab, host, login.port or host.port)
    if not host.active:
        activate = tools.host_update(host=host.name, active="true")
        raise Conflict(f"{host} is deactivated here", next_step=Advice("Activate it", activate))
    known = await _require_reachable_member(homelab, host)
    target = await _target(homelab, host, login)
    sudo = login.password or await _secret(homelab, host.sudo_password) or target.password
    transport = _ssh_transport(homelab.ssh, target, str(host))
    node, uncertain = (None, False) if known else await _node_at(homelab, host)
    kind, name, where, guest = known or node or ("host", host.name, None, None)
    return Machine(
        kind, name, transport, where, guest, sudo_password=sudo, target=target, ssh=homelab.ssh, may_be_node=uncertain
    )


async def _host_on_port(homelab: Homelab, host: Host, port: int) -> Host:
    """Another port may be another machine: a registered one, or an unknown one."""
    everyone = await homelab.hosts.everyone()
    if port == host.port and any(other.name == host.name for other in everyone):
        return host
    named = f"[{host.address}]:{port}" if ":" in host.address else f"{host.address}:{port}"
    there = msgspec.structs.replace(host, name=named, port=port)
    return next(iter(await homelab.address_index.find_aliases(there, everyone)), there)


async def _require_reachable_member(homelab: Homelab, host: Host) -> tuple[str, str, Cluster, Guest | None] | None:
    """The node or guest that the host is, in clusters whose rules apply to it. Raises if rules hide it."""
    if homelab.hosts.hides is not None:
        for registered in (host, *await homelab.address_index.find_aliases(host, await homelab.hosts.everyone())):
            homelab.hosts.require_visible(registered)
    for cluster in homelab.guarded:
        if member := await homelab.address_index.find_member(cluster, host):
            seen = next((visible for visible in homelab.clusters if visible.name == cluster.name), None)
            if seen is None:
                raise Refused(
                    f"{host} is {member.kind} {member.id} of the cluster {cluster.name}, which this call may not reach",
                    next_step="Ask the operator to allow that cluster",
                )
            if member.kind == "node":
                await seen.inventory.node(member.id)  # raises if it is hidden
                return "node", member.id, seen, None
            guest = await seen.guest(int(member.id))
            return guest.row.kind, host.name, seen, guest
    return None


async def _node_at(homelab: Homelab, host: Host) -> tuple[tuple[str, str, Cluster, None] | None, bool]:
    """The node that the host is, of any cluster; and whether a silent cluster might have it."""
    uncertain = False
    for cluster in homelab.clusters:
        if any(guarded.name == cluster.name for guarded in homelab.guarded):
            continue  # already asked
        try:
            if name := await homelab.address_index.find_node(cluster, host):
                return ("node", name, cluster, None), False
        except Problem:
            uncertain = True
    return None, uncertain


async def resolve_guest(homelab: Homelab, machine: Machine) -> Machine:
    """A host that is registered under the name of a guest, at its address, as that guest. Raises if that is unknown."""
    if machine.kind != "host" or machine.target is None or machine.target.jump is not None:
        return machine
    host = Host(machine.name, machine.target.host, machine.target.port)
    for cluster in homelab.clusters:
        if guest := await homelab.address_index.find_guest_by_name(cluster, host):
            return replace(machine, kind=guest.row.kind, where=cluster, guest=guest)
    return machine


async def require_visible(homelab: Homelab, name: str) -> None:
    """Raises if rules hide the host of that name, or the machine at that address, from the call."""
    everyone = await homelab.hosts.everyone()
    await _require_reachable_member(
        homelab, next((host for host in everyone if host.name == name), None) or address_to_host(name)
    )


async def is_node(machine: Machine) -> bool:
    """Whether Proxmox VE runs there, as the machine itself shows: an address may belong to an unknown node."""
    if machine.target is None or machine.ssh is None or machine.transport.system != "posix":
        return machine.kind == "node"
    place, now = f"{machine.target.jump or ''} {machine.target.host}:{machine.target.port}", time.monotonic()
    asked, answer = machine.ssh.node_checks.get(place, (float("-inf"), False))
    if now - asked > SEEN_SECONDS:
        answer = (await machine.transport.run(Command(("test", "-e", CLUSTER_FILE)), seconds=SECONDS)).exit_code == 0
        machine.ssh.node_checks[place] = now, answer
    return answer


def with_login(machine: Machine, user: str, key: Path) -> Machine:
    """The same machine with another login: that user and key only."""
    if machine.target is None or machine.ssh is None:
        raise NotConfigured(
            f"{machine} is not reached over SSH, but through the {machine.transport.description}",
            next_step=Advice("Register it with the address of its SSH server", tools.host_register),
        )
    target = replace(machine.target, user=user, key=key, password=None)
    transport = _ssh_transport(machine.ssh, target, str(machine))
    return replace(machine, transport=transport, target=target, sudo_password=None)


async def _target(homelab: Homelab, host: Host, login: Login) -> SshTarget:
    jump: SshTarget | None = None
    for jump_host in reversed(await resolve_jumps(homelab.hosts, host)):
        await _require_reachable_member(homelab, jump_host)
        jump = await _hop(homelab, jump_host, Login(), jump)
    return await _hop(homelab, host, login, jump)


async def _hop(homelab: Homelab, host: Host, login: Login, jump: SshTarget | None) -> SshTarget:
    if not homelab.ssh.is_allowed(host.address):  # the demo must not reach real machines
        networks = ", ".join(map(str, homelab.ssh.settings.networks))
        raise NotConfigured(f"SSH to {host.at} is not allowed", why=f"Only {networks} may be reached from here")
    usual = homelab.settings.ssh.nodes
    user = login.user or host.user or usual.user or "root"
    if login.key:
        homelab.files.require(login.key, NO_KEY)
    key = login.key or host.key
    own_password = login.password or await _secret(homelab, host.password)
    other = login.user not in (None, host.user) and not login.key and not login.password
    if (other or (not key and not own_password and user != usual.user)) and (own := key_of(homelab.settings, user)):
        key, own_password = str(own), None  # an administration account has a key of its own
    return SshTarget(
        host.address,
        host.port,
        user,
        _path(key) if key else None if own_password else usual.key,
        own_password or (None if key else usual.password),
        jump or usual.jump,
    )


def _path(text: str) -> Path:
    try:
        return expand_home(text)
    except OSError as error:
        raise NotConfigured(
            f"The SSH key {text} cannot be read", why=error.strerror, next_step="Correct the path"
        ) from None


async def _secret(homelab: Homelab, reference: str | None) -> Secret | None:
    return await homelab.secret_store.fetch(reference) if reference else None


def _ssh_transport(ssh: SshAccess, target: SshTarget, name: str) -> SshTransport:
    def explain(ended: ExitStatus) -> Problem:
        return start_problem(name, ended.exit_code, ended.message)

    return SshTransport(
        "ssh", f"ssh to {target}", ExecutionTarget(ssh.pool, target), explain, max_output=ssh.settings.max_output
    )


# -- nodes and guests of the clusters ----------------------------------------------------------------------------------


async def list_cluster_matches(homelab: Homelab, ref: str) -> list[str]:
    """The nodes and guests that a name may mean: CLUSTER/NAME. A cluster that does not answer is skipped."""
    answers = await asyncio.gather(*(_search_cluster(cluster, ref) for cluster in homelab.clusters))
    return [f"{cluster.name}/{name}" for answer in answers for cluster, name, _ in answer]


async def _find_in_clusters(clusters: Iterable[Cluster], ref: str) -> Machine | None:
    """The node or guest of that name. A cluster that does not answer is skipped."""
    prefix, slash, rest = ref.partition("/")
    asked = [cluster for cluster in clusters if not slash or cluster.name == prefix]
    named = rest if slash and asked else ref
    answers = await asyncio.gather(*(_search_cluster(cluster, named) for cluster in asked))
    matches = [match for answer in answers for match in answer]
    if len(matches) > 1:
        names = ", ".join(f"{where.name}/{label}" for where, label, _ in matches)
        raise BadArgument(f"{ref!r} is ambiguous", why=f"It may be {names}", next_step="Use one of these names")
    if not matches:
        return None
    cluster, name, guest = matches[0]
    if guest is None:
        target = await ssh_of_node(cluster, name)
        return Machine(
            "node", name, _ssh_transport(cluster.ssh, target, f"node {name}"), cluster, target=target, ssh=cluster.ssh
        )
    return Machine(
        guest.row.kind, str(guest.row.name or guest.vmid), await select_transport(cluster, guest), cluster, guest
    )


async def _search_cluster(cluster: Cluster, ref: str) -> list[tuple[Cluster, str, Guest | None]]:
    try:
        async with asyncio.timeout(SECONDS):
            nodes = [name for name in (await cluster.inventory.view()).nodes if name == ref]
            certain = bool(nodes) or is_ip(ref)  # no second lookup is needed
            guests = await (cluster.inventory.matching(ref) if certain else cluster.inventory.candidates(ref))
    except (Problem, TimeoutError):
        return []
    return [
        *((cluster, name, None) for name in nodes),
        *((cluster, str(row.vmid), Guest(cluster, row)) for row in guests),
    ]


# -- bare addresses ----------------------------------------------------------------------------------------------------


def _at_address(ref: str, host: str, known: list[str]) -> Host:
    """An unregistered host; it has to show a host key that the operator trusts."""
    if "." not in host and ":" not in host and host != "localhost":
        listed = f"Registered hosts: {', '.join(known[:20])}" if known else "No host is registered"
        advice = Advice("Register it, or give its address", tools.host_register)
        raise HostNotFound(f"There is no host {ref!r}", why=listed, next_step=advice)
    require_address(host)
    return Host(host, host)
