"""Changes that take a guest over at its next start: they may decide what code runs in it, or who can log in.

They are changes of a configuration, but with them the caller decides what happens in the guest, as with a command.
Options that cannot do that are listed; every other option counts, whether it is set, deleted or reverted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pve_schema.formats import split_list
from quorate.operations.plan import Call
from quorate.problems import NotFound
from quorate.pve import values
from quorate.pve.cluster import Cluster
from quorate.pve.targets import owner

_CONFIG: Final = re.compile(r"/nodes/[^/]+/(?P<type>qemu|lxc)/(?P<vmid>\d+)/config")
_START: Final = re.compile(r"/nodes/[^/]+/(?:qemu|lxc)/\d+/status/start")

_ABOUT_THE_CALL: Final = frozenset(
    ["digest", "delete", "revert", "force", "skiplock", "background_delay", "import-working-storage"]
)
_ABOUT_THE_START: Final = frozenset(["timeout", "skiplock", "debug", "nets-host-mtu", "with-conntrack-state"])
"""Parameters of a start that leave the guest as it is configured."""

_OF_BOTH: Final = (
    "description", "tags", "cores", "cpulimit", "cpuunits", "memory", "onboot", "startup", "protection", "unused[n]",
)  # fmt: skip
HARMLESS: Final[Mapping[str, frozenset[str]]] = {
    "qemu": frozenset(
        [
            *_OF_BOTH,
            "name", "agent", "sockets", "smp", "vcpus", "balloon", "shares", "cpu", "numa", "numa[n]", "affinity",
            "hugepages", "keephugepages", "allow-ksm", "acpi", "kvm", "hotplug", "autostart", "freeze", "reboot",
            "keyboard", "tablet", "tdf", "localtime", "vga", "audio0", "spice_enhancements", "serial[n]", "watchdog",
            "migrate_downtime", "migrate_speed", "vmstatestorage",
        ]
    ),
    "lxc": frozenset([*_OF_BOTH, "hostname", "swap", "net[n]", "console", "tty", "debug", "timezone"]),
}  # fmt: skip
"""Options that neither choose what a guest starts nor who can log in. Devices that depend on the rest of the
configuration (drives, mount points, network cards of a VM) are judged one by one."""
_JUDGED_AS_COMMAND: Final = "entrypoint"
"""A container's option to which the operator's patterns for commands apply."""

_NEW_VOLUME: Final = re.compile(r"[^/:,\s]+:\d+(?:\.\d+)?")
_DISC: Final = re.compile(r"[^/:,\s]+:iso/")
_NEW_CLOUDINIT_DRIVE: Final = re.compile(r"[^/:,\s]+:cloudinit")
_CLOUDINIT: Final = frozenset(["cicustom", "cipassword", "citype", "ciupgrade", "ciuser", "sshkeys"])
_SYSTEM_FOLDERS: Final = frozenset(
    ["", "bin", "boot", "dev", "etc", "home", "lib", "lib32", "lib64", "libx32", "opt", "proc", "root", "run", "sbin",
     "sys", "tmp", "usr", "var"]
)  # fmt: skip
"""The top folders of a Linux system. What is mounted there may hide or replace programs, keys and settings."""


async def takes_over(cluster: Cluster, call: Call) -> str | None:
    """The option by which the call may take a guest over; None if it cannot."""
    if call.method == "POST" and _START.fullmatch(call.path):
        return next((name for name in call.params if name not in _ABOUT_THE_START), None)
    target = _CONFIG.fullmatch(call.path)
    if call.method == "GET" or target is None:
        return None
    removed = [option for name in ("delete", "revert") for option in split_list(str(call.params.get(name, "")))]
    changes: dict[str, str | None] = {
        **{name: str(value) for name, value in call.params.items() if name not in _ABOUT_THE_CALL},
        **dict.fromkeys(removed),
    }
    doubtful = {name: value for name, value in changes.items() if not _is_harmless(target["type"], name)}
    if not doubtful:
        return None
    try:
        config = await cluster.get(call.path)
    except NotFound:  # an earlier call of the plan creates it
        return None
    decides = _decides_in_vm if target["type"] == "qemu" else _decides_in_container
    return next((name for name, value in doubtful.items() if decides(name, value, config, target["vmid"])), None)


def _is_harmless(guest_type: str, name: str) -> bool:
    return name in HARMLESS[guest_type] or re.sub(r"\d+$", "[n]", name) in HARMLESS[guest_type]


# -- VMs ---------------------------------------------------------------------------------------------------------------


def _decides_in_vm(name: str, value: str | None, config: Mapping[str, Any], vmid: str) -> bool:
    bus = values.bus_of(name)
    if bus == "net":
        return _boots_first(name, config)
    return bus not in values.BOOTABLE or _drive_decides(name, value, config, vmid)


def _drive_decides(name: str, value: str | None, config: Mapping[str, Any], vmid: str) -> bool:
    """Whether a drive may boot, or hand cloud-init settings to the guest. `value` is None if the drive goes."""
    if value is None:
        return _boots_first(name, config) or values.is_cloudinit(str(config.get(name, "")))
    volume, parts = values.volume_of(value), values.parse(value, "volume")
    if "import-from" in parts or _NEW_CLOUDINIT_DRIVE.fullmatch(volume):
        return True
    if _NEW_VOLUME.fullmatch(volume) and name not in config:
        return False  # nothing is on it
    if _boots_first(name, config):
        return True
    if _DISC.match(volume):
        return _reads_cloudinit(config)  # any disc can carry settings for it
    return volume != "none" and str(owner(volume)) != vmid


def _reads_cloudinit(config: Mapping[str, Any]) -> bool:
    return any(
        name in _CLOUDINIT or values.bus_of(name) == "ipconfig" or values.is_cloudinit(str(value))
        for name, value in config.items()
    )


def _boots_first(device: str, config: Mapping[str, Any]) -> bool:
    """Whether the VM boots from this device, or tries it before its disk. If no disk is in the order, it may."""
    order = values.boot_devices(config) or _legacy_order(config)
    for position, entry in enumerate(order):
        if entry in config and values.bus_of(entry) != "net" and values.is_disk(entry, str(config[entry])):
            return device in order[: position + 1]
    return True


def _legacy_order(config: Mapping[str, Any]) -> Sequence[str]:
    """The order by letters (`cdn` by default): the disk only if `bootdisk` names it, drives with discs, the network."""
    letters = str(config.get("boot") or "cdn").removeprefix("legacy=")
    discs = [name for name, value in config.items() if values.parse(str(value)).get("media") == "cdrom"]
    cards = [name for name in config if values.bus_of(name) == "net"]
    devices = {"c": [str(config["bootdisk"])] if config.get("bootdisk") else [], "d": discs, "n": cards}
    return [device for letter in letters for device in devices.get(letter, ())]


# -- containers --------------------------------------------------------------------------------------------------------


def _decides_in_container(name: str, value: str | None, config: Mapping[str, Any], vmid: str) -> bool:
    if name == _JUDGED_AS_COMMAND and value is not None:
        return False
    if values.bus_of(name) != "mp":
        return True
    replaced = str(config.get(name, ""))
    if replaced and _is_in_system(replaced):
        return True
    if value is None:
        return False
    volume = values.volume_of(value)
    own = _NEW_VOLUME.fullmatch(volume) is not None or (":" in volume and str(owner(volume)) == vmid)
    return not own or _is_in_system(value)


def _is_in_system(mount_point: str) -> bool:
    """Mounted among the folders of the system, or at a path that is not plain."""
    path = values.parse(mount_point, "volume").get("mp", "")
    folders = path.strip("/").split("/")
    return not path.startswith("/") or folders[0] in _SYSTEM_FOLDERS or not {"", ".", ".."}.isdisjoint(folders)
