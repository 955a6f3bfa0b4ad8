"""A device of the network: its parts, how it is recognized again, and how sightings are merged."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator
from typing import Any, Literal

import msgspec

from quorate.homelab.machines import Machine
from quorate.inside.facts.model import SECTIONS, Facts, Interface, Network
from quorate.inside.transport import Command
from quorate.problems import Problem

State = Literal["up", "away", "stopped", "retired"]
View = dict[str, dict[str, Any]]
"""Section -> key -> value: the parts of a device that its history tracks."""


class Sighting(msgspec.Struct, frozen=True, kw_only=True):
    """One observation. What it does not mention was not observed, which does not mean that it is gone."""

    kind: str = "device"
    """host, node, vm, ct; device if only seen on the network."""
    name: str = ""
    ref: str = ""
    """The name that host tools accept."""
    place: str = ""
    """cluster/vmid or cluster/node, for members of a cluster."""
    node: str = ""
    """The node it runs on."""
    address: str = ""
    """Where it was reached."""
    macs: tuple[str, ...] = ()
    machine_id: str = ""
    serial: str = ""
    facts: Facts | None = None
    open_ports: tuple[int, ...] = ()
    closed_ports: tuple[int, ...] = ()
    """Scanned and not open."""


class Device(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything known about a device."""

    id: int = 0
    first_seen: float = 0.0
    last_seen: float = 0.0
    kind: str = "device"
    name: str = ""
    refs: tuple[str, ...] = ()
    place: str = ""
    node: str = ""
    addresses: tuple[str, ...] = ()
    """With their prefix if known: 192.168.1.5/24"""
    macs: tuple[str, ...] = ()
    machine_id: str = ""
    serial: str = ""
    facts: Facts | None = None
    open_ports: tuple[int, ...] = ()
    closed_ports: tuple[int, ...] = ()
    state: State = "up"
    discovered: float | None = None
    """When facts were last collected from it."""
    changed: float = 0.0
    """When its history last got an entry."""
    reported: View = msgspec.field(default_factory=dict, name="told")  # the name in stored rows
    """The state in its history: small changes are measured from here, so that they add up."""

    def __str__(self) -> str:
        return self.name or self.address or f"device {self.id}"

    @property
    def address(self) -> str:
        """Its first address, without the prefix."""
        return bare(self.addresses[0]) if self.addresses else ""


def bare(address: str) -> str:
    return address.partition("/")[0]


def is_address(text: str) -> bool:
    """A scoped address such as fe80::1%eth0 does not count: it means nothing to others."""
    if "%" in text:
        return False
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def is_place(text: str) -> bool:
    """True for an address with or without a port, False for a name."""
    return is_address(text) or is_address(text.rpartition(":")[0].strip("[]"))


def segment_of(address: str) -> str:
    """The network of an address; without a prefix, the usual size of a home network."""
    bits = "" if "/" in address else "/24" if ":" not in address else "/64"
    return str(ipaddress.ip_network(f"{address}{bits}", strict=False))


_FLEETING = re.compile(r"lo\d*|veth.*|tap.*|vnet\d+|fw(?:br|pr|ln).*|cali.*|lxc[0-9a-f_]{6,}|ifb\d+|dummy\d+")
"""Created and removed with their owner."""
_INWARD = re.compile(
    r"docker\d*|br-[0-9a-f]{12}|virbr\d+|lxdbr\d+|incusbr\d+|lxcbr\d+|cni\d*|podman\d+|flannel.*|bridge100"
)
"""Networks inside one machine."""


def lasting(network: Network) -> Iterator[Interface]:
    """Permanent interfaces: `veth…` and similar ones belong to containers and guests."""
    return (interface for interface in network.interfaces if not _FLEETING.fullmatch(interface.name))


def outward(network: Network) -> Iterator[Interface]:
    """Interfaces that other machines can reach."""
    return (interface for interface in lasting(network) if not _INWARD.fullmatch(interface.name))


def addresses(network: Network) -> tuple[str, ...]:
    """Addresses that other machines can reach, that of the default route first."""
    first = {words[2] for gateway in network.gateways if len(words := gateway.split()) > 2 and words[1] == "dev"}
    interfaces = sorted(outward(network), key=lambda interface: (interface.name not in first, interface.name))
    return tuple(
        dict.fromkeys(address for interface in interfaces for address in interface.addresses if steady(address))
    )


def macs(network: Network) -> tuple[str, ...]:
    """The addresses of its own network cards."""
    own = {interface.mac.lower() for interface in outward(network) if interface.mac}
    return tuple(sorted(own - {"00:00:00:00:00:00"}))


def steady(address: str) -> bool:
    """False for link-local and temporary IPv6 addresses."""
    try:
        parsed = ipaddress.ip_address(bare(address))
    except ValueError:
        return False
    if parsed.is_loopback or parsed.is_link_local or parsed.is_unspecified:
        return False
    if parsed.version == 4:
        return True
    own = int(parsed) & (2**64 - 1)
    return own >> 24 & 0xFFFF == 0xFFFE or own < 2**32  # derived from the MAC, or set manually


SECONDS = 10.0
# Machine id and serial number: a line each, empty if there is none.
_SCRIPT = """
cat /etc/machine-id 2>/dev/null || cat /var/lib/dbus/machine-id 2>/dev/null || cat /etc/hostid 2>/dev/null ||
    ioreg -rd1 -c IOPlatformExpertDevice 2>/dev/null | sed -n 's/.*IOPlatformUUID" = "\\(.*\\)".*/\\1/p' || echo
echo =
cat /sys/class/dmi/id/product_serial 2>/dev/null || kenv -q smbios.system.serial 2>/dev/null ||
    tr -d '\\000' </sys/firmware/devicetree/base/serial-number 2>/dev/null || echo
"""
_BLANK_SERIALS = ("", "none", "unknown", "default string", "not specified", "system serial number", "n/a", "invalid")


async def read_fingerprint(machine: Machine) -> tuple[str, str]:
    """Its machine id and serial number, if they can be read."""
    try:
        output = await machine.transport.run(Command(("sh", "-c", _SCRIPT)), seconds=SECONDS, keep=2000)
    except Problem:
        return "", ""
    return parse_fingerprint(output.text)


def parse_fingerprint(text: str) -> tuple[str, str]:
    machine_id, _, serial = text.partition("=\n")
    return _word(machine_id).lower(), "" if _is_blank(serial) else _word(serial)


def _word(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[0].strip()[:80] if lines else ""


def _is_blank(serial: str) -> bool:
    """Placeholders from vendors that do not assign serial numbers."""
    plain = _word(serial).lower()
    return plain in _BLANK_SERIALS or "o.e.m" in plain or len(set(plain)) < 3 or plain in "0123456789"


def match_device(devices: Iterable[Device], seen: Sighting) -> Device | None:
    """The known device that was seen, by the strongest evidence."""
    matches = [(strength, device) for device in devices if (strength := likeness(device, seen))]
    if not matches:
        return None
    return max(matches, key=lambda match: (match[0], seen.ref in match[1].refs, match[1].last_seen, -match[1].id))[1]


def likeness(device: Device, seen: Sighting) -> int:
    """How certain it is that they are the same; 0 if they are not."""
    ids_meet = bool(device.machine_id) and device.machine_id == seen.machine_id
    ids_part = bool(device.machine_id and seen.machine_id) and not ids_meet
    macs_meet = bool(set(device.macs) & set(seen.macs))
    macs_part = bool(device.macs and seen.macs) and not macs_meet
    same_place = bool(device.place) and device.place == seen.place
    same_ref = same_place or (bool(seen.ref) and seen.ref in device.refs)
    other_ref = bool(device.refs and seen.ref) and not same_ref
    if (ids_part and macs_part) or (device.place and seen.place and not same_place):
        return 0
    if same_place:
        return 6
    elsewhere = bool(device.addresses) and seen.address not in map(bare, device.addresses)
    if other_ref and elsewhere and _is_specific(seen.address):
        return 0  # another name at another address is another machine
    if ids_meet:  # with other network cards and another name it is a clone
        return 0 if macs_part and not same_ref else 5
    if seen.serial and device.serial == seen.serial and not ids_part and not macs_part:
        return 4  # containers show the serial number of their host
    if macs_meet:  # with another machine id it was reinstalled, unless both have names of their own
        return 0 if ids_part and other_ref else 3
    if ids_part or macs_part:
        return 0
    if same_ref:
        return 2
    return 1 if device.addresses and not elsewhere and not other_ref else 0


def _is_specific(address: str) -> bool:
    """False for a name and for the local end of a tunnel."""
    return is_address(address) and not ipaddress.ip_address(address).is_loopback


def identities(seen: Sighting) -> Iterator[str]:
    """Identities for a new device, strongest first: two servers that see it at once choose the same."""
    if seen.place:
        yield f"place:{seen.place}"
    if seen.machine_id:
        yield f"machine:{seen.machine_id}"
    if seen.serial:
        yield f"serial:{seen.serial}"
    yield from (f"mac:{mac}" for mac in seen.macs)
    if seen.ref:
        yield f"name:{seen.ref}"
    last = f"address:{seen.address}" if seen.address else "device"
    yield last
    yield from (f"{last}#{number}" for number in range(2, 10_000))


def merge(device: Device, seen: Sighting, now: float) -> Device:
    """The device after the sighting; what was not observed stays unchanged."""
    refs = (*device.refs, seen.ref) if seen.ref and seen.ref not in device.refs else device.refs
    facts = _newest(device.facts, seen.facts)
    looked_at = {*seen.open_ports, *seen.closed_ports}
    return msgspec.structs.replace(
        device,
        last_seen=now,
        kind=device.kind if seen.kind == "device" else seen.kind,
        name=_name(device, seen, facts),
        refs=refs,
        place=seen.place or device.place,
        node=seen.node or device.node,
        addresses=_addresses(device, seen),
        macs=macs(seen.facts.network) if seen.facts and seen.facts.network else seen.macs or device.macs,
        machine_id=seen.machine_id or device.machine_id,
        serial=seen.serial or device.serial,
        facts=facts,
        open_ports=tuple(sorted({*device.open_ports} - looked_at | {*seen.open_ports})),
        closed_ports=tuple(sorted({*device.closed_ports} - looked_at | {*seen.closed_ports})),
        state="up",
        discovered=now if seen.facts is not None else device.discovered,
    )


def first_looks(device: Device, seen: Sighting) -> list[str]:
    """Paths of ports that were never scanned before."""
    known = {*device.open_ports, *device.closed_ports}
    return [f"open_ports.{port}" for port in seen.open_ports if port not in known]


def _newest(old: Facts | None, new: Facts | None) -> Facts | None:
    """Section by section: one that could not be read completely keeps its old value."""
    if old is None or new is None:
        return new or old
    kept = {
        name: value
        for name in SECTIONS
        if (getattr(new, name) is None or name in new.not_known) and (value := getattr(old, name)) is not None
    }
    if "filesystems" in kept and new.filesystems is not None:  # only network file systems were not listed
        read = {filesystem.mount for filesystem in new.filesystems}
        kept["filesystems"] = (
            *new.filesystems,
            *(filesystem for filesystem in old.filesystems or () if filesystem.mount not in read),
        )
    return msgspec.structs.replace(new, **kept)


def _name(device: Device, seen: Sighting, facts: Facts | None) -> str:
    """A guest has its cluster's name, a host the name it was first registered with, others the best known one."""
    if seen.place:
        return seen.name
    if device.place or (device.name in device.refs and not is_place(device.name)):
        return device.name
    hostname = facts.system.hostname if facts and facts.system else None
    preferred = seen.name if seen.name and not is_place(seen.name) else hostname
    if seen.kind == "device" and device.name and not is_place(device.name):
        return device.name
    return preferred or device.name or seen.name or seen.address


def _addresses(device: Device, seen: Sighting) -> tuple[str, ...]:
    """The addresses that the machine reports, beginning with the one where it was reached.

    A scan finds one address, which replaces those in the same segment.
    """
    reached = (seen.address,) if is_address(seen.address) else ()
    if seen.facts is not None and seen.facts.network is not None:
        own = addresses(seen.facts.network)
        return tuple(sorted(own, key=lambda address: bare(address) not in reached)) or reached or device.addresses
    if not reached or seen.address in (bare(address) for address in device.addresses):
        return device.addresses
    others = (address for address in device.addresses if segment_of(bare(address)) != segment_of(seen.address))
    return (*reached, *others)
