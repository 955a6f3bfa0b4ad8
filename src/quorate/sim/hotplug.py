"""Which changes a running guest takes at once; all others wait until it was off."""

from __future__ import annotations

from quorate.sim import drives
from quorate.sim.guest_options import is_cloudinit_option, split_list
from quorate.sim.guests import Guest, Value
from quorate.sim.world import World

_DEFAULT_FEATURES = frozenset({"network", "disk", "usb"})

# Options that nothing inside a running VM depends on.
_VM_ALWAYS = frozenset(
    {
        "description",
        "hookscript",
        "lock",
        "migrate_downtime",
        "migrate_speed",
        "name",
        "onboot",
        "protection",
        "shares",
        "startup",
        "tags",
        "vmstatestorage",
        "cpulimit",
        "cpuunits",
        "tablet",
        "vmstate",
        "runningmachine",
        "runningcpu",
        "template",
    }
)
_CONTAINER_ALWAYS = frozenset(
    {
        "description",
        "onboot",
        "startup",
        "protection",
        "hostname",
        "hookscript",
        "cores",
        "tags",
        "lock",
        "memory",
        "swap",
        "cpulimit",
        "cpuunits",
        "template",
    }
)
# What of a network card or a disk can change without taking it out.
_LIVE_NET = frozenset({"bridge", "tag", "trunks", "firewall", "rate", "link_down"})
_LIVE_DISK = ("mbps", "iops", "bps", "replicate", "backup", "size")
_COLD_BUSES = ("ide", "sata", "efidisk", "tpmstate")


def sets_live(world: World, guest: Guest, key: str, new: Value) -> bool:
    """Whether a running guest takes this value at once."""
    if guest.kind == "lxc":
        return _container_sets_live(guest, key)
    if key in _VM_ALWAYS or is_cloudinit_option(key) or key.startswith("unused"):
        return True
    features = _features(guest)
    old = guest.config.get(key)
    if drives.is_net(key):
        return _net_live(world, key, old, str(new), plugging="network" in features)
    if drives.is_drive("qemu", key):
        return _drive_live(world, key, old, str(new), plugging="disk" in features)
    if key.startswith("usb"):
        return "usb" in features
    match key:
        case "vcpus":
            return "cpu" in features
        case "memory":
            return "memory" in features
        case "balloon":  # the size of the balloon may change, its being there may not
            return bool(guest.config.get("balloon", 1)) == bool(new)
        case "hotplug":
            return not {"cpu", "memory"} & (features ^ set(split_list(str(new))))
        case _:
            return False


def deletes_live(guest: Guest, key: str) -> bool:
    """Whether a running guest does without the option at once."""
    if guest.kind == "lxc":
        return (key in _CONTAINER_ALWAYS and key != "memory") or drives.is_net(key) or key.startswith("unused")
    if key in _VM_ALWAYS or is_cloudinit_option(key) or key.startswith("unused"):
        return True
    features = _features(guest)
    if drives.is_net(key):
        return "network" in features
    if drives.is_drive("qemu", key):
        return "disk" in features and not key.startswith(_COLD_BUSES)
    return key.startswith("usb") and "usb" in features


def _features(guest: Guest) -> frozenset[str]:
    setting = str(guest.config.get("hotplug", "1"))
    if setting in ("0", "1"):
        return _DEFAULT_FEATURES if setting == "1" else frozenset()
    return frozenset(split_list(setting))


def _container_sets_live(guest: Guest, key: str) -> bool:
    if key in _CONTAINER_ALWAYS or drives.is_net(key) or key.startswith("unused"):
        return True
    return key.startswith("mp") and key not in guest.config


def _net_live(world: World, key: str, old: Value | None, new: str, *, plugging: bool) -> bool:
    if old is None or plugging:
        return plugging
    before, after = drives.parse(world, "qemu", key, str(old)), drives.parse(world, "qemu", key, new)
    return _changed(before, after) <= _LIVE_NET


def _drive_live(world: World, key: str, old: Value | None, new: str, *, plugging: bool) -> bool:
    after = drives.parse(world, "qemu", key, new)
    if old is not None:
        before = drives.parse(world, "qemu", key, str(old))
        if drives.is_cdrom(before) and drives.is_cdrom(after):  # another disc goes into the same drive
            return True
        if before["file"] == after["file"]:
            return all(name.startswith(_LIVE_DISK) for name in _changed(before, after))
    return plugging and not key.startswith(_COLD_BUSES)


def _changed(before: dict[str, str], after: dict[str, str]) -> set[str]:
    return {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
