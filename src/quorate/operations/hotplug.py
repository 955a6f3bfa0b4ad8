"""Which options of a running guest PVE changes at once, and which wait for a restart."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

from pve_schema.formats import split_list
from quorate.operations.backend import Backend
from quorate.operations.plan import Call, Plan
from quorate.problems import Problem
from quorate.pve import values
from quorate.pve.cluster import Guest
from quorate.pve.stored_objects import sets
from quorate.pve.wire import read

_CONFIG: Final = re.compile(r"/nodes/{node}/(?:qemu|lxc)/{vmid}/config")
_DEFAULT_FEATURES: Final = frozenset({"network", "disk", "usb"})
_VM_LIVE: Final = frozenset(
    [
        *("description", "hookscript", "lock", "migrate_downtime", "migrate_speed", "name", "onboot", "protection"),
        *("shares", "startup", "tags", "vmstatestorage", "cpulimit", "cpuunits"),
        *("ciuser", "cipassword", "citype", "ciupgrade", "cicustom", "sshkeys", "nameserver", "searchdomain"),
    ]
)
_CONTAINER_LIVE: Final = frozenset(
    [
        *("description", "onboot", "startup", "protection", "hostname", "hookscript", "cores", "tags", "lock"),
        *("memory", "swap", "cpulimit", "cpuunits", "template"),
    ]
)
_LIVE_PARTS_OF_NIC: Final = frozenset({"bridge", "tag", "trunks", "firewall", "rate", "link_down"})
_FIXED_PARTS_OF_DISK: Final = frozenset(
    {"aio", "discard", "iothread", "queues", "product", "cache", "ssd", "vendor", "ro"}
)
_COLD_DISKS: Final = ("efidisk", "tpmstate")
_COLD_BUSES: Final = ("ide", "sata", *_COLD_DISKS)
_PLUGGED_BY: Final = {"tablet": "usb", "vcpus": "cpu", "memory": "memory"}


async def predict_pending(backend: Backend, plan: Plan) -> dict[str, list[str]]:
    """By guest, the options that this plan would leave pending until a restart."""
    waiting: dict[str, list[str]] = {}
    for call in plan.api_calls:
        try:
            async for guest, name in _waiting_options(backend, call):
                waiting.setdefault(str(guest), []).append(name)
        except Problem:  # a guest that the plan creates, or one that cannot be read now
            continue
    return {guest: list(dict.fromkeys(names)) for guest, names in waiting.items()}


async def _waiting_options(backend: Backend, call: Call) -> AsyncIterator[tuple[Guest, str]]:
    if not re.search(r"/(?:qemu|lxc)/\d+/config$", call.path):
        return
    cluster = backend.api
    request = read(await cluster.facts(), call.method, call.path, call.params)
    if request is None or not _CONFIG.fullmatch(request.template):
        return
    guest = await cluster.guest(int(request.text("vmid")))
    if await guest.status() != "running":
        return
    current = await guest.get("config", current=1)
    for name, value in sets(request).items():
        text = value if isinstance(value, str) else ",".join(value)
        if not values.same(current.get(name), text) and not _changes_live(guest, current, name, text):
            yield guest, name
    for name in split_list(request.text("delete")):
        if name in current and not _goes_live(guest, current, name):
            yield guest, name


def _changes_live(guest: Guest, current: Mapping[str, Any], name: str, new: str) -> bool:
    bus = values.bus_of(name)
    old = None if name not in current else str(current[name])
    if not guest.is_vm:
        return name in _CONTAINER_LIVE or bus in ("net", "unused") or (bus == "mp" and old is None)
    features = _features(current)
    if bus == "net":
        return "network" in features or (old is not None and _differing(old, new, "model") <= _LIVE_PARTS_OF_NIC)
    if bus in values.DISKS:
        return _disk_changes_live(name, old, new, plugs="disk" in features)
    match name:
        case "balloon":
            return bool(int(current.get("balloon", 1))) == bool(int(new))
        case "hotplug":
            return not {"cpu", "memory"} & {*split_list(f"{new},{old or ''}".replace(";", ","))}
        case "agent":
            return old is not None and _differing(old, new, "enabled") <= {"fstrim_cloned_disks"}
        case _:
            return _plugs(current, name, features)


def _goes_live(guest: Guest, current: Mapping[str, Any], name: str) -> bool:
    bus = values.bus_of(name)
    if not guest.is_vm:
        return (name in _CONTAINER_LIVE and name != "memory") or bus in ("net", "unused")
    features = _features(current)
    if bus == "net":
        return "network" in features
    if bus in values.DISKS:
        return "disk" in features and not name.startswith(_COLD_BUSES) and name not in values.boot_devices(current)
    if name == "balloon":
        return str(current.get("balloon")) != "0"
    if name == "hotplug":
        return not {"cpu", "memory"} & features
    return bus == "unused" or _plugs(current, name, features)


def _features(current: Mapping[str, Any]) -> frozenset[str]:
    setting = str(current.get("hotplug", "1"))
    if setting in ("0", "1"):
        return _DEFAULT_FEATURES if setting == "1" else frozenset()
    return frozenset(split_list(setting))


def _plugs(current: Mapping[str, Any], name: str, features: frozenset[str]) -> bool:
    if name in _VM_LIVE or values.bus_of(name) in ("ipconfig", "unused"):
        return True
    if re.fullmatch(r"usb\d+", name):  # only these have a controller that can be plugged into
        system = str(current.get("ostype", "other"))
        return "usb" in features and (system == "l26" or (system.startswith("win") and system != "win7"))
    return _PLUGGED_BY.get(name) in features


def _disk_changes_live(name: str, old: str | None, new: str, *, plugs: bool) -> bool:
    if name.startswith(_COLD_DISKS):
        return False
    if old is not None:
        before, now = values.parse(old, "file"), values.parse(new, "file")
        if before.get("media") == "cdrom" or now.get("media") == "cdrom":  # another disc in the same drive
            return before.get("media") == now.get("media")
        if before.get("file") == now.get("file"):
            return not _differing(old, new, "file") & _FIXED_PARTS_OF_DISK
        return plugs
    return plugs and not name.startswith(_COLD_BUSES)


def _differing(old: str, new: str, default_key: str) -> set[str]:
    before, now = values.parse(old, default_key), values.parse(new, default_key)
    return {key for key in before.keys() | now.keys() if before.get(key) != now.get(key)}
