"""Every machine that commands can be sent to, by one kind of name: registered hosts, nodes, guests, bare addresses."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from quorate.homelab.admin.keys import key_of
from quorate.homelab.home import Homelab
from quorate.homelab.host import Host, is_ip, require_address, unregistered
from quorate.homelab.registry import jumps
from quorate.homelab.secrets import hidden_in_this_call
from quorate.inside.node_addresses import ssh_of_node
from quorate.inside.over_ssh import SshWay, not_started
from quorate.inside.reaching import way_into
from quorate.inside.way import Command, Way
from quorate.problems import BadArgument, Conflict, NotConfigured, NotFound, Problem, Refused
from quorate.pve.cluster import Cluster, Guest
from quorate.secret import Secret
from quorate.ssh.access import SshAccess
from quorate.ssh.process import Ended, Place
from quorate.ssh.settings import split_port
from quorate.ssh.target import SshTarget

SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Login:
    """How the caller wants to get in, in place of what is kept."""

    user: str | None = None
    key: str | None = None
    password: Secret | None = None
    port: int | None = None


@dataclass(frozen=True, slots=True)
class Machine:
    """One of them, and the way to it."""

    kind: str
    """host, node, vm or ct"""
    name: str
    """As callers name it."""
    way: Way
    where: Cluster | None = None
    """The cluster that it belongs to."""
    guest: Guest | None = None
    sudo_password: Secret | None = None
    target: SshTarget | None = None
    """Where SSH goes, if that is the way."""
    ssh: SshAccess | None = None
    """Whose connections it goes by."""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"

    def as_root(self, command: Command) -> Command:
        """With sudo where the login is not root; its password goes over standard input."""
        return replace(command, user="root", password=self.sudo_password)


_lent: ContextVar[Login] = ContextVar("a login for one call", default=Login())  # noqa: B039 - it is frozen


@contextlib.contextmanager
def logging_in_by(login: Login) -> Iterator[None]:
    """In this context, machines are logged in to so, unless the call itself says how.

    For callers that bring a login to operations which take none: it goes no further than this call.
    """
    token = _lent.set(login)
    try:
        with hidden_in_this_call(login.password):
            yield
    finally:
        _lent.reset(token)


async def machine(home: Homelab, ref: str, login: Login = Login()) -> Machine:  # noqa: B008 - it is frozen
    """The machine that `ref` names: a registered host, `cluster/guest`, a node, a guest, or `user@address:port`."""
    login = _lent.get() if login == Login() else login
    ref = ref.strip()
    if not ref:
        raise BadArgument("The host is empty", next_step="host_list shows the hosts")
    if host := await home.hosts.find(ref):
        return await registered(home, host, login)
    user, _, place = ref.rpartition("@")
    name, port = split_port(place)
    # An address is never the name of a guest: whoever names guests must not choose who gets the commands for it.
    if not is_ip(name) and (found := await _of_clusters(home.clusters, ref)):
        return found
    login = replace(login, user=login.user or user or None, port=login.port or port)
    if host := await home.hosts.find(name):
        return await registered(home, host, login)
    return await registered(home, _at_address(ref, name, await _known(home)), login)


async def registered(home: Homelab, host: Host, login: Login = Login()) -> Machine:  # noqa: B008
    """The way to a host by its own login, else by what is set for all hosts."""
    host = await _as_known(home, host, login.port or host.port)
    if not host.active:
        raise Conflict(f"{host} is switched off here", next_step=f"host_update host={host.name} active=true")
    known = await _admitted(home, host)
    target = await _target(home, host, login)
    sudo = login.password or await _secret(home, host.sudo_password) or target.password
    way = _ssh_way(home.ssh, target, str(host))
    kind, name, where, guest = known or ("host", host.name, None, None)
    return Machine(kind, name, way, where, guest, sudo_password=sudo, target=target, ssh=home.ssh)


async def _as_known(home: Homelab, host: Host, port: int) -> Host:
    """At another port there may be another machine: the one that is registered there, or one that nobody knows."""
    everyone = await home.hosts.everyone()
    if port == host.port and any(one.name == host.name for one in everyone):
        return host
    named = f"[{host.address}]:{port}" if ":" in host.address else f"{host.address}:{port}"
    there = msgspec.structs.replace(host, name=named, port=port)
    return next(iter(await home.whereabouts.same(there, everyone)), there)


async def _admitted(home: Homelab, host: Host) -> tuple[str, str, Cluster, Guest | None] | None:
    """The node or guest that the host is, where rules of its cluster have a say in that. Raises if rules hide it."""
    if home.hosts.hides is not None:
        for one in (host, *await home.whereabouts.same(host, await home.hosts.everyone())):
            home.hosts.require_seen(one)
    for cluster in home.guarded:
        if found := await home.whereabouts.member(cluster, host):
            seen = next((one for one in home.clusters if one.name == cluster.name), None)
            if seen is None:
                raise Refused(
                    f"{host} is {found.kind} {found.id} of the cluster {cluster.name}, which this call may not reach",
                    next_step="Only the operator can change that",
                )
            if found.kind == "node":
                await seen.inventory.node(found.id)  # raises if it is hidden
                return "node", found.id, seen, None
            guest = await seen.guest(int(found.id))
            return guest.row.kind, host.name, seen, guest
    return None


async def require_seen(home: Homelab, name: str) -> None:
    """Raises if rules hide the host of that name, or what stands at that address, from the call."""
    everyone = await home.hosts.everyone()
    await _admitted(home, next((one for one in everyone if one.name == name), None) or unregistered(name))


def logged_in_as(machine: Machine, user: str, key: Path) -> Machine:
    """The same machine by another login: with that key, and nothing else."""
    if machine.target is None or machine.ssh is None:
        raise NotConfigured(
            f"{machine} is not reached over SSH, but by {machine.way.description}",
            next_step="Register it with host_register, by the address of its SSH server",
        )
    target = replace(machine.target, user=user, key=key, password=None)
    way = _ssh_way(machine.ssh, target, str(machine))
    return replace(machine, way=way, target=target, sudo_password=None)


async def _target(home: Homelab, host: Host, login: Login) -> SshTarget:
    jump: SshTarget | None = None
    for one in reversed(await jumps(home.hosts, host)):
        await _admitted(home, one)
        jump = await _hop(home, one, Login(), jump)
    return await _hop(home, host, login, jump)


async def _hop(home: Homelab, host: Host, login: Login, jump: SshTarget | None) -> SshTarget:
    if not home.ssh.is_allowed(host.address):  # the demo leaves everybody else's machines alone
        networks = ", ".join(map(str, home.ssh.settings.networks))
        raise NotConfigured(f"SSH to {host.at} is not allowed", why=f"From here only {networks} may be reached")
    usual = home.settings.ssh.nodes
    user = login.user or host.user or usual.user or "root"
    key = login.key or host.key
    own_password = login.password or await _secret(home, host.password)
    if not key and not own_password and user != usual.user and (own := key_of(home.settings, user)):
        key = str(own)  # an administration account has a key of its own
    return SshTarget(
        host.address,
        host.port,
        user,
        _path(key) if key else None if own_password else usual.key,
        own_password or (None if key else usual.password),
        jump or usual.jump,
    )


def _path(text: str) -> Path:
    return Path(text).expanduser()


async def _secret(home: Homelab, reference: str | None) -> Secret | None:
    return await home.secret_store.fetch(reference) if reference else None


def _ssh_way(ssh: SshAccess, target: SshTarget, name: str) -> SshWay:
    def explain(ended: Ended) -> Problem:
        return not_started(name, ended.exit_code, ended.words)

    return SshWay("ssh", f"ssh to {target}", Place(ssh.pool, target), explain, most=ssh.settings.max_output)


# -- nodes and guests of the clusters ----------------------------------------------------------------------------------


async def _of_clusters(clusters: Iterable[Cluster], ref: str) -> Machine | None:
    """The one node or guest of that name. A cluster that does not answer is not asked twice, and hides nothing."""
    prefix, slash, rest = ref.partition("/")
    asked = [one for one in clusters if not slash or one.name == prefix]
    named = rest if slash and asked else ref
    answers = await asyncio.gather(*(_found_in(one, named) for one in asked))
    found = [machine for answer in answers for machine in answer]
    if len(found) > 1:
        names = ", ".join(f"{where.name}/{label}" for where, label, _ in found)
        raise BadArgument(f"{ref!r} may mean several", why=f"They are {names}", next_step="Say which, in that way")
    if not found:
        return None
    cluster, name, guest = found[0]
    if guest is None:
        target = await ssh_of_node(cluster, name)
        return Machine(
            "node", name, _ssh_way(cluster.ssh, target, f"node {name}"), cluster, target=target, ssh=cluster.ssh
        )
    return Machine(guest.row.kind, str(guest.row.name or guest.vmid), await way_into(cluster, guest), cluster, guest)


async def _found_in(cluster: Cluster, ref: str) -> list[tuple[Cluster, str, Guest | None]]:
    try:
        async with asyncio.timeout(SECONDS):
            nodes = [row.node for row in await cluster.inventory.of_type("node") if row.node == ref]
            guests = await cluster.inventory.matching(ref)
    except (Problem, TimeoutError):
        return []
    return [
        *((cluster, name, None) for name in nodes),
        *((cluster, str(row.vmid), Guest(cluster, row)) for row in guests),
    ]


# -- bare addresses ----------------------------------------------------------------------------------------------------


def _at_address(ref: str, host: str, known: list[str]) -> Host:
    """A host that nobody registered; whoever may be there has to show a key that the operator trusts."""
    if "." not in host and ":" not in host and host != "localhost":
        listed = f"There are {', '.join(known[:20])}" if known else "None is registered"
        raise NotFound(
            f"There is no host {ref!r}", why=listed, next_step="Register it with host_register, or give its address"
        )
    require_address(host)
    return Host(host, host)


async def _known(home: Homelab) -> list[str]:
    return [host.name for host in await home.hosts.all()]
