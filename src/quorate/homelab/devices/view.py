"""The parts of a device that its history tracks, and how they changed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

from quorate.homelab.devices import interfaces
from quorate.homelab.devices.device import Device, View
from quorate.inside.facts.model import Facts, Filesystem, Network, Port

STEP_PERCENT = 10
"""Smaller changes of a file system's usage are ignored until they add up to this."""
FULL_PERCENT = 90
SAME_SIZE = 0.05
"""Sizes of memory and file systems vary by this share between boots."""
EPHEMERAL = range(32768, 65536)
_RPC = re.compile(r"rpc[.\w]*|lockd|nlockmgr|statd|mountd")


def view(device: Device) -> View:
    """Only what is known: a missing section means nothing."""
    found: View = {"state": {"": device.state}}
    for section in ("node", "machine_id", "serial"):
        if value := getattr(device, section):
            found[section] = {"": value}
    facts = device.facts or Facts()
    found |= {name: part for name, part in _sections(facts).items() if part is not None}
    if facts.network is None:
        found["addresses"] = {"": " ".join(sorted(device.addresses))} if device.addresses else {}
        found["macs"] = {"": " ".join(device.macs)} if device.macs else {}
    if facts.ports is None and (device.open_ports or device.closed_ports):
        found["open_ports"] = {str(port): "open" for port in device.open_ports}
    return {section: part for section, part in found.items() if part or section not in ("macs", "addresses")}


def differences(old: View, new: View, *, learned: Iterable[str] = ()) -> tuple[list[dict[str, Any]], View]:
    """The changes, and the new state of the history.

    Learning something is not a change of the device: only sections that both have are compared, and `learned` paths
    were never observed before.
    """
    changes: list[dict[str, Any]] = []
    merged: View = {}
    fresh = set(learned)
    for section, part in new.items():
        before = old.get(section)
        if before is None:
            merged[section] = part
            continue
        merged[section] = {}
        for key in {**before, **part}:
            was, is_now = before.get(key), part.get(key)
            path = f"{section}.{key}" if key else section
            if was is not None and is_now is not None and _about_the_same(section, key, was, is_now):
                merged[section][key] = was
                continue
            if is_now is not None:
                merged[section][key] = is_now
            if path not in fresh:
                changes.append({"path": path, "old": was, "new": is_now})
    return changes, merged


def _about_the_same(section: str, key: str, was: Any, is_now: Any) -> bool:
    if was == is_now:
        return True
    if not (isinstance(was, int) and isinstance(is_now, int)):
        return False
    if section == "filesystems" and key.endswith(".used%"):
        filled = (was < FULL_PERCENT) != (is_now < FULL_PERCENT) and abs(was - is_now) > 1
        return abs(was - is_now) < STEP_PERCENT and not filled
    if (section, key.rpartition(".")[2]) in (("memory", "total"), ("filesystems", "size")):
        return abs(was - is_now) <= SAME_SIZE * max(was, is_now)
    return False


# -- section by section ------------------------------------------------------------------------------------------------


def _sections(facts: Facts) -> dict[str, dict[str, Any] | None]:
    usb = None if facts.usb is None else Counter(one.name or one.id for one in facts.usb)
    gpus = None if facts.gpus is None else Counter(facts.gpus)
    return {
        "hardware": _fields(facts.hardware, "vendor", "model", "virtualisation"),
        "system": _fields(facts.system, "hostname", "id", "version", "kernel", "architecture"),
        "cpu": _fields(facts.cpu, "model", "sockets", "cores", "threads"),
        "memory": _fields(facts.memory, "total", "swap_total"),
        "disks": _index_rows(facts.disks, lambda one: {one.name: " ".join(filter(None, (one.model, _size(one.size))))}),
        "filesystems": _index_rows(facts.filesystems, _filesystem),
        "network": None if facts.network is None else _network(facts.network),
        "usb": None if usb is None else dict(usb),
        "pci": _index_rows(facts.pci, lambda one: {one.slot: one.name or one.kind or ""}),
        "gpus": None if gpus is None else dict(gpus),
        "containers": _index_rows(
            facts.containers,
            lambda one: {f"{one.engine}/{one.name}": f"{_running(one.state)} {one.image or ''}".strip()},
        ),
        "vms": _index_rows(facts.vms, lambda one: {f"{one.manager}/{one.name}": _running(one.state)}),
        "ports": None if facts.ports is None else _ports(facts.ports),
        "services": None if facts.services is None else dict.fromkeys(facts.services.failed, "failed"),
        "time": _fields(facts.time, "zone"),
    }


def _fields(part: Any, *names: str) -> dict[str, Any] | None:
    if part is None:
        return None
    return {name: value for name in names if (value := getattr(part, name)) is not None}


def _index_rows(parts: Iterable[Any] | None, keyed: Any) -> dict[str, Any] | None:
    return None if parts is None else {key: value for one in parts for key, value in keyed(one).items()}


def _size(count: int | None) -> str:
    return "" if count is None else f"{count} bytes"


def _running(state: str | None) -> str:
    return "running" if (state or "").lower().startswith(("running", "up")) else "not running"


def used_percent(one: Filesystem) -> int | None:
    return None if one.share is None else round(100 * one.share)


def _filesystem(one: Filesystem) -> dict[str, Any]:
    fields = {"device": one.device, "type": one.type, "size": one.size, "used%": used_percent(one)}
    return {f"{one.mount}.{name}": value for name, value in fields.items() if value is not None}


def _network(network: Network) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for one in interfaces.lasting(network):
        steady = " ".join(sorted(address for address in one.addresses if interfaces.steady(address)))
        speed = None if one.name.startswith("wl") else one.speed
        values = {"mac": one.mac, "state": one.state, "addresses": steady, "speed": speed}
        fields |= {f"{one.name}.{name}": value for name, value in values.items() if value is not None}
    return fields | {"gateways": " ".join(sorted(network.gateways)), "dns": " ".join(sorted(network.dns))}


def _ports(ports: Iterable[Port]) -> dict[str, Any]:
    """Port -> the addresses it listens on, without ephemeral ports."""
    found: dict[str, set[str]] = {}
    for one in ports:
        if not (one.port in EPHEMERAL and _by_chance(one)):
            found.setdefault(f"{one.protocol}/{one.port}", set()).add(one.address)
    return {key: " ".join(sorted(where)) for key, where in found.items()}


def _by_chance(one: Port) -> bool:
    """An ephemeral port counts only if others can reach it and a known program keeps it."""
    inward = one.address.startswith(("127.", "::1", "[::1"))
    return inward or one.protocol.startswith("udp") or not one.process or _RPC.fullmatch(one.process) is not None
