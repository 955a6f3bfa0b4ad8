"""Which machine is at an address, so that another name for it does not bypass the rules about it.

Registered hosts are compared by the addresses that their names resolve to. Nodes and guests are looked up only in
clusters where it matters, because asking every guest for its addresses costs a request each.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from collections import defaultdict
from collections.abc import Collection
from functools import partial
from typing import NamedTuple

from quorate.homelab.host import Host
from quorate.inside.guest_addresses import is_usable, read_interfaces, strip_prefix
from quorate.problems import Problem, Refused
from quorate.pve import values
from quorate.pve.cluster import Cluster, Guest
from quorate.pve.connection import Clock
from quorate.pve.tasks import gather_bounded
from quorate.ssh.target import split_port

LIFE_SECONDS = 60.0
RESOLVE_SECONDS = 5.0
KNOWN_SECONDS = 1.0
"""For the name of a node whose addresses PVE reports: few networks resolve node names."""
GUEST_SECONDS = 10.0
AT_ONCE = 8
MOST_NAMES = 1000
THIS_MACHINE = "this machine"


class Member(NamedTuple):
    """A node or guest of a cluster, and one address of it."""

    kind: str
    id: str
    ip: str
    port: int | None
    """None: any port at that address."""


class AddressIndex:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._resolved: dict[str, tuple[float, frozenset[str]]] = {}
        self._members: dict[str, tuple[float, list[Member]]] = {}
        self._nodes: dict[str, tuple[float, list[Member]]] = {}
        self._asking_for: dict[str, asyncio.Task[tuple[float, frozenset[str]]]] = {}
        self._asking: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def find_aliases(self, host: Host, hosts: list[Host]) -> list[Host]:
        """The hosts that are the same machine under another name."""
        others = [other for other in hosts if other.port == host.port and other.name != host.name]
        here, *there = await asyncio.gather(*(self._ips(candidate.address) for candidate in (host, *others)))
        return [other for other, ips in zip(others, there, strict=True) if ips & here]

    async def find_member(self, cluster: Cluster, host: Host) -> Member | None:
        """The node or guest of the cluster that is at the host's address."""
        ips = await self._ips(host.address)
        return _pick_member(await self._load_members(cluster), ips, host.port)

    async def find_node(self, cluster: Cluster, host: Host) -> str | None:
        """The node of the cluster at the host's address, without asking guests. Raises if the cluster is silent."""
        async with self._asking[cluster.name]:
            known = self._nodes.get(cluster.name)
            if known is None or self._is_old(known[0]):
                try:
                    known = self._nodes[cluster.name] = self._clock.monotonic(), await self._nodes_of(cluster)
                except Problem:
                    if known is None:
                        raise
        ips = await self._ips(host.address)
        member = _pick_member(known[1], ips, host.port)
        return member.id if member else None

    async def find_guest_by_name(self, cluster: Cluster, host: Host) -> Guest | None:
        """The guest of the host's name, if it is at the host's address. Only guests of that name are asked."""
        ips = await self._ips(host.address)
        for row in await cluster.inventory.guests():
            if row.name != host.name or row.template:
                continue
            guest = Guest(cluster, row)
            for name, port in map(split_port, await _addresses(cluster, guest)):
                if port in (None, host.port) and ips & await self._ips(name):
                    return guest
        return None

    async def _load_members(self, cluster: Cluster) -> list[Member]:
        async with self._asking[cluster.name]:  # concurrent lookups share one request
            known = self._members.get(cluster.name)
            if known is None or self._is_old(known[0]):
                try:
                    known = self._clock.monotonic(), await self._members_of(cluster)
                    self._members[cluster.name] = known
                except Problem as problem:
                    if known is None:
                        raise Refused(
                            f"Whether this host belongs to the cluster {cluster.name} is unknown",
                            why=f"Rules apply to that cluster, and it does not answer: {problem.what}",
                            next_step="Try again when it answers",
                        ) from None
            return known[1]

    async def _members_of(self, cluster: Cluster) -> list[Member]:
        nodes = await self._nodes_of(cluster)
        guests = [Guest(cluster, row) for row in await cluster.inventory.guests() if not row.template]
        shown = await gather_bounded(AT_ONCE, [partial(_addresses, cluster, guest) for guest in guests])
        endpoints: list[tuple[str, str, str, int | None]] = []
        for guest, addresses in zip(guests, shown, strict=True):
            endpoints += [("guest", str(guest.vmid), *split_port(address)) for address in addresses]
        return [*nodes, *await self._resolve_members(endpoints)]

    async def _nodes_of(self, cluster: Cluster) -> list[Member]:
        from quorate.inside.pct import addresses_of_nodes  # with SSH, which a call that reaches no host does without

        nodes = await addresses_of_nodes(cluster)
        endpoints = [("node", node, *split_port(address)) for node, addresses in nodes.items() for address in addresses]
        located = {node for _, node, host, _ in endpoints if _is_ip(host)}
        return await self._resolve_members(endpoints, located)

    async def _resolve_members(
        self, endpoints: list[tuple[str, str, str, int | None]], located: Collection[str] = ()
    ) -> list[Member]:
        """One member per address. `located` are names that need not resolve, because an address is known already."""
        waits = (KNOWN_SECONDS if host in located else None for _, _, host, _ in endpoints)
        resolved = await asyncio.gather(*map(self._ips, (host for _, _, host, _ in endpoints), waits))
        return [
            Member(kind, name, ip, port)
            for (kind, name, _, port), ips in zip(endpoints, resolved, strict=True)
            for ip in ips
        ]

    async def _ips(self, address: str, seconds: float | None = None) -> frozenset[str]:
        """The addresses of a name; the name itself if it cannot be resolved, in that time if one is set."""
        with contextlib.suppress(ValueError):
            return frozenset([_plain(address)])
        name = address.lower()
        known = self._resolved.get(name)
        if known is None or self._is_old(known[0]):
            asking = self._asking_for.get(name)
            if asking is None:  # concurrent lookups share one request
                asking = self._asking_for[name] = asyncio.ensure_future(self._resolve(name))
            try:
                async with asyncio.timeout(seconds):
                    known = await asyncio.shield(asking)
            except TimeoutError:
                return _keep_name(name)  # the lookup continues, for those who ask later
        return known[1]

    def _is_old(self, time: float) -> bool:
        return self._clock.monotonic() - time > LIFE_SECONDS

    async def _resolve(self, name: str) -> tuple[float, frozenset[str]]:
        try:
            addresses = await _lookup_addresses(name)
        finally:
            del self._asking_for[name]
        if len(self._resolved) >= MOST_NAMES:  # callers choose the names
            self._resolved.clear()
        self._resolved[name] = self._clock.monotonic(), addresses
        return self._resolved[name]


def _pick_member(members: list[Member], ips: frozenset[str], port: int) -> Member | None:
    """The member at one of the addresses; one with exactly this port beats one at any port."""
    matches = [member for member in members if member.ip in ips and member.port in (None, port)]
    return min(matches, key=lambda member: member.port is None, default=None)


async def _lookup_addresses(name: str) -> frozenset[str]:
    try:
        async with asyncio.timeout(RESOLVE_SECONDS):
            infos = await asyncio.get_running_loop().getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, TimeoutError, UnicodeError):
        return _keep_name(name)
    return frozenset(_plain(str(info[4][0])) for info in infos)


def _keep_name(name: str) -> frozenset[str]:
    return frozenset([name.lower().rstrip(".")])


def _is_ip(address: str) -> bool:
    try:
        ipaddress.ip_address(strip_prefix(address))
    except ValueError:
        return False
    return True


def _plain(ip: str) -> str:
    """The canonical form of an IP address; all addresses of this machine are one."""
    parsed = ipaddress.ip_address(strip_prefix(ip))
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return THIS_MACHINE if _is_own(mapped or parsed) else str(mapped or parsed)


def _is_own(ip: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """True for an address of this machine: a socket connected to it has that address itself. Nothing is sent."""
    if ip.is_loopback or ip.is_unspecified:
        return True
    try:
        with socket.socket(socket.AF_INET if ip.version == 4 else socket.AF_INET6, socket.SOCK_DGRAM) as asking:
            asking.connect((str(ip), 9))
            return ipaddress.ip_address(strip_prefix(asking.getsockname()[0])) == ip
    except OSError:
        return False


async def _addresses(cluster: Cluster, guest: Guest) -> list[str]:
    """The guest's addresses from our settings, from PVE, and from its configuration."""
    configured = cluster.ssh.guest(guest.vmid)
    written = [] if configured is None else [configured.address]
    return [*written, *await reported_addresses(guest)]


async def reported_addresses(guest: Guest) -> list[str]:
    """The addresses of a running guest that PVE shows or that are in its configuration."""
    if guest.row.status != "running":
        return []
    shown: list[str] = []
    with contextlib.suppress(Problem, TimeoutError):
        async with asyncio.timeout(GUEST_SECONDS):
            shown += [address for card in await read_interfaces(guest) for address in card.addresses]
    with contextlib.suppress(Problem, TimeoutError):
        async with asyncio.timeout(GUEST_SECONDS):
            shown += _configured_addresses(await guest.get("config"))
    return list(dict.fromkeys(strip_prefix(address) for address in shown if is_usable(address)))


def _configured_addresses(config: dict[str, object]) -> list[str]:
    """Addresses of `net0` (container) and `ipconfig0` (cloud-init)."""
    lines = [values.parse(str(line)) for key, line in config.items() if key.startswith(("net", "ipconfig"))]
    return [str(line[key]) for line in lines for key in ("ip", "ip6") if line.get(key)]
