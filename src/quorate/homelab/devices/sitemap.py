"""Which devices a caller may see: rules that hide a host or guest hide its stored data, too."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from quorate.homelab.address_index import reported_addresses
from quorate.homelab.devices.device import Device, bare, is_address, is_place, segment_of
from quorate.homelab.devices.store import Devices
from quorate.homelab.homelab import Homelab
from quorate.homelab.host import Host
from quorate.inside.pct import reported_address, ssh_of_node
from quorate.problems import Problem
from quorate.pve.cluster import Cluster, Guest
from quorate.pve.inventory import Resource
from quorate.pve.tasks import gather_bounded

CLUSTER_SECONDS = 15.0
GUESTS_SECONDS = 10.0
MOST_ASKED = 200
AT_ONCE = 8
ORDER = ("router", "hypervisor", "host", "guest", "device")
"""Roles on the map, most specific first."""


@dataclass
class MapDevice:
    role: str
    name: str
    state: str = "up"
    id: int | None = None
    addresses: tuple[str, ...] = ()
    system: str = ""
    cores: int | None = None
    memory: int | None = None
    containers: int = 0
    place: str = ""
    ref: str = ""
    """The name that host tools accept."""
    mac: str = ""
    guests: list[MapDevice] = field(default_factory=list)

    @property
    def address(self) -> str:
        return bare(self.addresses[0]) if self.addresses else ""

    def address_in(self, network: str) -> str:
        inside = ipaddress.ip_network(network)
        return next((bare(address) for address in self.addresses if ipaddress.ip_address(bare(address)) in inside), "")


@dataclass
class Segment:
    network: str
    assumed: bool = True
    """True if no machine reported the prefix."""
    gateways: list[str] = field(default_factory=list)
    devices: list[MapDevice] = field(default_factory=list)
    visitors: list[MapDevice] = field(default_factory=list)
    """Devices of another segment with an address in this one."""


@dataclass
class Sitemap:
    segments: list[Segment]
    unplaced: list[MapDevice]
    """Devices without a known address."""
    silent: dict[str, str]
    """Clusters that do not answer, and why."""

    def everything(self) -> Iterator[tuple[str, str, MapDevice]]:
        """Segment, hypervisor, device."""
        lanes = [*((segment.network, segment.devices) for segment in self.segments), ("", self.unplaced)]
        for network, spots in lanes:
            for spot in spots:
                yield network, "", spot
                yield from ((network, spot.name, guest) for guest in spot.guests)


@dataclass(frozen=True, slots=True)
class Tree:
    """A cluster's resources and the addresses of its nodes."""

    cluster: Cluster
    rows: Sequence[Resource]
    addresses: dict[str, str]
    guest_addresses: dict[int, tuple[str, ...]] = field(default_factory=dict)


async def trees(homelab: Homelab) -> tuple[list[Tree], dict[str, str]]:
    """A tree for every cluster that answers, and why the others do not."""
    answers = await asyncio.gather(*(_tree(cluster) for cluster in homelab.clusters))
    reachable = [answer for answer in answers if isinstance(answer, Tree)]
    silent = {
        cluster.name: answer
        for cluster, answer in zip(homelab.clusters, answers, strict=True)
        if isinstance(answer, str)
    }
    return reachable, silent


async def _tree(cluster: Cluster) -> Tree | str:
    try:
        async with asyncio.timeout(CLUSTER_SECONDS):
            rows = await cluster.inventory.rows()
            nodes = [row.node for row in rows if row.type == "node"]
            addresses = {node: await _address(cluster, node) for node in nodes}
            return Tree(cluster, rows, addresses, await _guest_addresses(cluster, rows))
    except TimeoutError:
        return f"It did not answer within {CLUSTER_SECONDS:g} s"
    except Problem as problem:
        return problem.what


async def _guest_addresses(cluster: Cluster, rows: Sequence[Resource]) -> dict[int, tuple[str, ...]]:
    """Addresses of running guests, from PVE. In a large cluster only discovered guests: each costs two requests."""
    running = [Guest(cluster, row) for row in rows if row.is_guest and row.status == "running" and not row.template]
    if len(running) > MOST_ASKED:
        return {}
    try:
        async with asyncio.timeout(GUESTS_SECONDS):
            reported = await gather_bounded(AT_ONCE, [partial(reported_addresses, guest) for guest in running])
    except TimeoutError:
        return {}
    return {guest.vmid: tuple(addresses) for guest, addresses in zip(running, reported, strict=True)}


async def _address(cluster: Cluster, node: str) -> str:
    try:
        host = await reported_address(cluster, node) or (await ssh_of_node(cluster, node)).host
    except Problem:
        return ""
    return host if is_address(host) else ""


def sitemap(
    devices: Sequence[Device],
    clusters: Sequence[Tree],
    silent: dict[str, str] | None = None,
    hosts: Sequence[Host] = (),
) -> Sitemap:
    """Builds the map. A guest is placed with its node, wherever its address is."""
    by_place = {device.place: device for device in devices if device.place}
    alone = [device for device in devices if not device.place]
    spots = [spot for tree in clusters for spot in _hypervisors(tree, by_place)]
    answered = {tree.cluster.name for tree in clusters}
    of_silent = [device for place, device in by_place.items() if place.partition("/")[0] not in answered]
    spots += [_spot(device) for device in (*alone, *of_silent)]
    spots += _find_undiscovered(hosts, devices, spots)
    known = _reported_segments(devices)
    gateways = _gateways(devices)
    segments: dict[str, Segment] = {}
    unplaced = []
    for spot in spots:
        networks = list(dict.fromkeys(_network(address, known) for address in spot.addresses))
        if not networks:
            unplaced.append(spot)
            continue
        for number, network in enumerate(networks):
            segment = segments.setdefault(network, Segment(network, network not in known))
            (segment.visitors if number else segment.devices).append(spot)
        for guest in spot.guests:
            for network in dict.fromkeys(_network(address, known) for address in guest.addresses):
                if network not in networks:
                    segments.setdefault(network, Segment(network, network not in known)).visitors.append(guest)
    for gateway in gateways:
        _place_gateway(gateway, segments, known, spots)
    for segment in segments.values():
        segment.devices.sort(key=_order)
    ordered = sorted(segments.values(), key=lambda segment: _sortable(segment.network))
    return Sitemap(ordered, sorted(unplaced, key=_order), dict(silent or {}))


def _find_undiscovered(hosts: Iterable[Host], devices: Iterable[Device], spots: Iterable[MapDevice]) -> list[MapDevice]:
    """Registered hosts that nobody has looked into yet."""
    discovered = {ref for device in devices for ref in device.refs}
    taken = {bare(address) for spot in spots for part in (spot, *spot.guests) for address in part.addresses}
    return [
        MapDevice(
            "host", host.name, "unknown", addresses=(host.address,) if is_address(host.address) else (), ref=host.name
        )
        for host in hosts
        if host.name not in discovered and host.address not in taken
    ]


def _hypervisors(tree: Tree, by_place: dict[str, Device]) -> Iterator[MapDevice]:
    for row in sorted((row for row in tree.rows if row.type == "node"), key=lambda row: row.node):
        place = f"{tree.cluster.name}/{row.node}"
        address = tree.addresses.get(row.node, "")
        state = "up" if row.status == "online" else "away"
        spot = (
            _spot(by_place[place], state)
            if place in by_place
            else MapDevice("hypervisor", row.node, state, place=place, ref=place)
        )
        spot.role, spot.name = "hypervisor", row.node
        spot.addresses = spot.addresses or ((address,) if address else ())
        spot.cores, spot.memory = spot.cores or int(row.maxcpu) or None, spot.memory or row.maxmem or None
        guests = sorted(
            (guest for guest in tree.rows if guest.is_guest and guest.node == row.node), key=lambda guest: guest.vmid
        )
        spot.guests = [_guest(guest, tree, by_place) for guest in guests if not guest.template]
        yield spot


def _guest(row: Resource, tree: Tree, by_place: dict[str, Device]) -> MapDevice:
    place = f"{tree.cluster.name}/{row.vmid}"
    state = "up" if row.status == "running" else "stopped"
    spot = _spot(by_place[place], state) if place in by_place else MapDevice("guest", "", state, place=place, ref=place)
    spot.role, spot.name = "guest", row.name or str(row.vmid)
    spot.addresses = spot.addresses or tree.guest_addresses.get(row.vmid, ())
    spot.cores, spot.memory = spot.cores or int(row.maxcpu) or None, spot.memory or row.maxmem or None
    return spot


def _spot(device: Device, state: str | None = None) -> MapDevice:
    facts = device.facts
    role = "device" if device.kind == "device" else "guest" if device.kind in ("vm", "ct") else "host"
    spot = MapDevice(role, str(device), state or device.state, device.id, device.addresses, place=device.place)
    spot.ref = device.place or min(device.refs, key=is_place, default="")  # prefers the name of a registered host
    spot.mac = device.macs[0] if device.macs else ""
    if facts is None:
        return spot
    spot.system = " ".join(filter(None, (facts.system.id, facts.system.version))) if facts.system else ""
    spot.cores = (facts.cpu.threads or facts.cpu.cores) if facts.cpu else None
    spot.memory = facts.memory.total if facts.memory else None
    spot.containers = len(facts.containers or ())
    if facts.vms:
        spot.role = "hypervisor"
        spot.guests = [
            MapDevice("guest", vm.name, "up" if (vm.state or "").lower() in ("running", "up") else "stopped")
            for vm in facts.vms
        ]
    return spot


# -- segments ----------------------------------------------------------------------------------------------------------


def _reported_segments(devices: Iterable[Device]) -> set[str]:
    """Networks whose prefix a machine reported."""
    return {
        segment_of(address)
        for device in devices
        for address in device.addresses
        if "/" in address and not _single(address)
    }


def _single(address: str) -> bool:
    return address.endswith(("/32", "/128"))


def _network(address: str, known: set[str]) -> str:
    plain = ipaddress.ip_address(bare(address))
    if "/" in address and not _single(address):
        return segment_of(address)
    holding = [network for segment in known if plain in (network := ipaddress.ip_network(segment))]
    return str(max(holding, key=lambda network: network.prefixlen)) if holding else segment_of(bare(address))


def _gateways(devices: Iterable[Device]) -> list[str]:
    networks = [device.facts.network for device in devices if device.facts and device.facts.network]
    gateways = (gateway.split()[0] for network in networks for gateway in network.gateways if gateway.split())
    return list(dict.fromkeys(gateway for gateway in gateways if is_address(gateway)))


def _place_gateway(gateway: str, segments: dict[str, Segment], known: set[str], spots: list[MapDevice]) -> None:
    """The device with that address is a router; without one, the gateway is shown alone."""
    if ipaddress.ip_address(gateway).is_link_local or (network := _network(gateway, known)) not in segments:
        return
    segments[network].gateways.append(gateway)
    everyone = (device for spot in spots for device in (spot, *spot.guests))
    owners = [device for device in everyone if gateway in map(bare, device.addresses)]
    for owner in owners:
        owner.role = "router" if owner.role in ("device", "host") else owner.role
    if not owners:
        segments[network].devices.append(MapDevice("router", "gateway", "unknown", addresses=(gateway,)))


def _order(spot: MapDevice) -> tuple[int, tuple[int, int], str]:
    return ORDER.index(spot.role), _sortable(spot.address), spot.name


def _sortable(address: str) -> tuple[int, int]:
    if not address:
        return 9, 0
    network = ipaddress.ip_network(address, strict=False)
    return network.version, int(network.network_address)


@dataclass(frozen=True, slots=True)
class VisibleDevices:
    devices: list[Device]
    hosts: list[Host]
    clusters: list[Tree]
    silent: dict[str, str]
    """Clusters that do not answer, and why."""

    def map(self) -> Sitemap:
        return sitemap(self.devices, self.clusters, self.silent, self.hosts)


async def visible_devices(homelab: Homelab) -> VisibleDevices:
    """The devices, hosts and clusters that the caller may see."""
    devices, (clusters, silent), hosts, everyone = await asyncio.gather(
        Devices(homelab.store).all(), trees(homelab), homelab.hosts.all(), homelab.hosts.everyone()
    )
    seen = {host.name for host in hosts}
    hidden = [host for host in everyone if host.name not in seen]
    names, addresses = {host.name for host in hidden}, {host.address for host in hidden}
    unguarded = {cluster.name for cluster in homelab.clusters} - {cluster.name for cluster in homelab.guarded}
    places = {
        f"{tree.cluster.name}/{row.vmid or row.node}"
        for tree in clusters
        for row in tree.rows
        if row.is_guest or row.type == "node"
    }

    def may_be_seen(device: Device) -> bool:
        if device.place and device.place.partition("/")[0] not in unguarded and device.place not in places:
            return False
        return not (names & set(device.refs) or addresses & {bare(address) for address in device.addresses})

    return VisibleDevices([device for device in devices if may_be_seen(device)], hosts, clusters, silent)
