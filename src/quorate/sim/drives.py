"""The property strings of a guest's configuration: drives, mount points and network cards.

They are read with the schemas of the API itself and written back in PVE's order: the default key bare and first,
then the required keys, then the others by name. `virtio,bridge=vmbr0` becomes `virtio=BC:24:11:…,bridge=vmbr0`.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Mapping
from functools import cache
from typing import Any

from quorate.pve.schema import facts
from quorate.pve.validation import PropertyString
from quorate.sim.datacenter import DEFAULT_MAC_PREFIX, Datacenter
from quorate.sim.guests import GIB, Kind, Value
from quorate.sim.world import World

Properties = dict[str, str]

CLOUDINIT_VOLUME = re.compile(r"(?:.*/)?vm-\d+-cloudinit(?:\.\w+)?")

_QEMU_DRIVE = re.compile(r"(?:ide|sata|scsi|virtio)\d+|efidisk0|tpmstate0")
_MOUNT_POINT = re.compile(r"rootfs|mp\d+")
_NUMBER_AT_END = re.compile(r"\d+$")
_NEW_DISK = re.compile(r"(?:([^/:\s]+):)?(\d+(?:\.\d+)?)")


def is_drive(kind: Kind, key: str) -> bool:
    """Whether the option holds a disk or CD-ROM of a VM, or a mount point of a container."""
    return (_QEMU_DRIVE if kind == "qemu" else _MOUNT_POINT).fullmatch(key) is not None


def is_net(key: str) -> bool:
    return key.startswith("net") and key[3:].isdecimal()


def volume_key(kind: Kind) -> str:
    """How the property with the volume is called."""
    return "file" if kind == "qemu" else "volume"


def parse(world: World, kind: Kind, key: str, text: str) -> Properties:
    """The properties of an option's value, which has passed the API's checks."""
    return _strings(world.version, kind, key)[0].parse(text)


def render(world: World, kind: Kind, key: str, properties: Mapping[str, str]) -> str:
    """The value as PVE writes it to the configuration."""
    _, schemas = _strings(world.version, kind, key)
    left = dict(properties)
    parts = []
    if "model" in left and "virtio" in schemas:  # a network card is written as model=MAC
        model, mac = left.pop("model"), left.pop("macaddr", None)
        parts.append(model if mac is None else f"{model}={mac}")
    for name, schema in schemas.items():
        if schema.get("default_key") and name in left:
            parts.append(left.pop(name))
    required = sorted(name for name in left if not schemas.get(name, {}).get("optional"))
    optional = sorted(name for name in left if name not in required)
    return ",".join([*parts, *(f"{name}={left[name]}" for name in (*required, *optional))])


@cache
def _strings(version: str, kind: Kind, key: str) -> tuple[PropertyString, Mapping[str, Mapping[str, Any]]]:
    table = facts(version)
    parameters = table.endpoint("POST", f"/nodes/{{node}}/{kind}").parameters
    schema = parameters.get(key) or parameters[_NUMBER_AT_END.sub("[n]", key)]
    declared = schema["format"]
    schemas: Mapping[str, Mapping[str, Any]] = (
        (table.formats.properties(declared) or {}) if isinstance(declared, str) else declared
    )
    return PropertyString(schemas, table.formats), schemas


def new_disk(volume: str, default_storage: str | None = None) -> tuple[str | None, int] | None:
    """Storage and bytes if the volume is a wish such as `local-lvm:32`, which is in GiB."""
    match = _NEW_DISK.fullmatch(volume)
    if match is None:
        return None
    return match[1] or default_storage, int(float(match[2]) * GIB)


def is_cdrom(drive: Mapping[str, str]) -> bool:
    """Whether a drive of a VM is a CD-ROM, a cloud-init drive included."""
    return drive.get("media") == "cdrom" or drive.get("file") in ("none", "cdrom") or is_cloudinit(drive)


def is_cloudinit(drive: Mapping[str, str]) -> bool:
    """Whether a drive holds the settings for cloud-init, made or still to be made."""
    _, _, name = drive.get("file", "").partition(":")
    return name == "cloudinit" or CLOUDINIT_VOLUME.fullmatch(name) is not None


def cloudinit_drive(world: World, config: Mapping[str, Value]) -> str | None:
    """The key of the VM's cloud-init drive."""
    for key, value in config.items():
        if is_drive("qemu", key) and is_cloudinit(parse(world, "qemu", key, str(value))):
            return key
    return None


def complete_net(world: World, kind: Kind, vmid: int, key: str, text: str) -> str:
    """A network card as PVE stores it: with a MAC address, and a container's with its type."""
    net = parse(world, kind, key, text)
    own = "macaddr" if kind == "qemu" else "hwaddr"
    net[own] = net[own].upper() if own in net else new_mac(world, vmid, key)
    if kind == "lxc":
        net.setdefault("type", "veth")
    return render(world, kind, key, net)


def new_mac(world: World, *salt: object) -> str:
    """An address that no guest has, the same in every run with the same seed."""
    taken = {
        str(value).upper()
        for guest in world.guests.values()
        for key, value in (*guest.config.items(), *guest.pending.items())
        if is_net(key)
    }
    prefix = str(world.part(Datacenter).options.get("mac_prefix", DEFAULT_MAC_PREFIX)).upper().rstrip(":").split(":")
    attempt = 0
    while True:
        tail = hashlib.sha256(f"mac {world.seed} {salt} {attempt}".encode()).hexdigest().upper()
        mac = ":".join([*prefix, *(tail[at : at + 2] for at in range(0, 12, 2))][:6])
        if not any(mac in card for card in taken):
            return mac
        attempt += 1


def new_uuid(world: World, *salt: object) -> str:
    """An identity for a guest, repeatable like everything else."""
    digest = hashlib.sha256(f"uuid {world.seed} {world.clock.now()} {salt}".encode()).digest()
    return str(uuid.UUID(bytes=digest[:16], version=4))
