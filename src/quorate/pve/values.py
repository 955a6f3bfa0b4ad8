"""PVE's property strings: `virtio=BC:24:11:AA:BB:CC,bridge=vmbr0` and the like."""

from __future__ import annotations

import re

_DEVICE = re.compile(r"^(?P<bus>scsi|virtio|sata|ide|efidisk|tpmstate|mp|net|ipconfig|unused)(?P<index>\d+)$|^rootfs$")
DISKS = frozenset({"scsi", "virtio", "sata", "ide", "efidisk", "tpmstate", "mp", "rootfs"})


def parse(text: str, default_key: str = "") -> dict[str, str]:
    """The parts of a property string; a part without a key is filed under `default_key`."""
    parts: dict[str, str] = {}
    for part in text.split(","):
        key, equals, value = part.partition("=")
        if equals:
            parts[key.strip()] = value.strip()
        elif part:
            parts[default_key] = part.strip()
    return parts


def is_on(text: object) -> bool:
    """Inside property strings PVE takes 1, on, yes and true."""
    return str(text).lower() in ("1", "on", "yes", "true")


def bus_of(key: str) -> str | None:
    """The kind of device a config key stands for: `scsi` for scsi0, `rootfs` for rootfs, None for cores."""
    found = _DEVICE.match(key)
    return None if found is None else found["bus"] or "rootfs"


def is_disk(key: str, value: str) -> bool:
    """A drive or mount point that holds data; CD-ROMs do not."""
    return bus_of(key) in DISKS and parse(value, "volume").get("media") != "cdrom"


def agent_enabled(value: object) -> bool:
    """The `agent` option: `1`, `enabled=1,...` or absent."""
    return is_on(parse(str(value or "0"), "enabled").get("enabled", "0"))


def addresses_in_config(config: dict[str, object]) -> list[str]:
    """Static addresses that the configuration sets: containers in netN, cloud-init in ipconfigN."""
    found: list[str] = []
    for key in sorted(config):
        if bus_of(key) in ("net", "ipconfig"):
            parts = parse(str(config[key]), "model")
            found += [parts[name].partition("/")[0] for name in ("ip", "ip6") if _is_address(parts.get(name, ""))]
    return found


def _is_address(text: str) -> bool:
    return bool(text) and text not in ("dhcp", "manual", "auto")
