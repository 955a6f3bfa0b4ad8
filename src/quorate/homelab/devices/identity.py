"""Which device a sighting belongs to. Addresses move between devices, and machine ids may be cloned."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator

from quorate.homelab.devices.device import Device, Sighting, bare, is_address
from quorate.homelab.machines import Machine
from quorate.inside.transport import Command
from quorate.problems import Problem

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
    return parse_fingerprint(output.stdout.decode("utf-8", "replace"))


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
    found = [(strength, one) for one in devices if (strength := likeness(one, seen))]
    if not found:
        return None
    return max(found, key=lambda match: (match[0], seen.ref in match[1].refs, match[1].last_seen, -match[1].id))[1]


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
    """Neither a name nor the local end of a tunnel."""
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
