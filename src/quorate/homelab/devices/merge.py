"""Merges a sighting into a device."""

from __future__ import annotations

import msgspec

from quorate.homelab.devices import interfaces
from quorate.homelab.devices.device import Device, Sighting, bare, is_address, is_place, segment_of
from quorate.inside.facts.model import SECTIONS, Facts


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
        macs=interfaces.macs(seen.facts.network) if seen.facts and seen.facts.network else seen.macs or device.macs,
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
        read = {one.mount for one in new.filesystems}
        kept["filesystems"] = (*new.filesystems, *(one for one in old.filesystems or () if one.mount not in read))
    return msgspec.structs.replace(new, **kept)


def _name(device: Device, seen: Sighting, facts: Facts | None) -> str:
    """A guest has its cluster's name, a host the name it was first registered with, others the best known one."""
    if seen.place:
        return seen.name
    if device.place or (device.name in device.refs and not is_place(device.name)):
        return device.name
    hostname = facts.system.hostname if facts and facts.system else None
    given = seen.name if seen.name and not is_place(seen.name) else hostname
    if seen.kind == "device" and device.name and not is_place(device.name):
        return device.name
    return given or device.name or seen.name or seen.address


def _addresses(device: Device, seen: Sighting) -> tuple[str, ...]:
    """Those that the machine reports, the one where it was reached first.

    A scan finds one address, which replaces those in the same segment.
    """
    reached = (seen.address,) if is_address(seen.address) else ()
    if seen.facts is not None and seen.facts.network is not None:
        own = interfaces.addresses(seen.facts.network)
        return tuple(sorted(own, key=lambda one: bare(one) not in reached)) or reached or device.addresses
    if not reached or seen.address in (bare(one) for one in device.addresses):
        return device.addresses
    others = (one for one in device.addresses if segment_of(bare(one)) != segment_of(seen.address))
    return (*reached, *others)
