"""Drives and network cards in a guest's configuration: property strings, volumes, and new MAC addresses and UUIDs."""

from __future__ import annotations

import hashlib
import itertools
import re
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from pve_schema.schema import facts
from pve_schema.validation import PropertyString
from pve_simulator.cluster.datacenter import DEFAULT_MAC_PREFIX, Datacenter
from pve_simulator.guests.guest import GIB, Kind, Value, volume_of_drive
from pve_simulator.guests.guest import is_net as is_net
from pve_simulator.world import World

Properties = dict[str, str]

HOST_CDROM = "cdrom"
CLOUDINIT_VOLUME = re.compile(r"(?:.*/)?vm-\d+-cloudinit(?:\.\w+)?")

_QEMU_DRIVE = re.compile(r"(?:ide|sata|scsi|virtio)\d+|efidisk0|tpmstate0")
_MOUNT_POINT = re.compile(r"rootfs|mp\d+")
_NUMBER_AT_END = re.compile(r"\d+$")
_NEW_DISK = re.compile(r"(?:([^/:\s]+):)?(\d+(?:\.\d+)?)")


def is_drive(kind: Kind, key: str) -> bool:
    """Whether the option holds a disk or CD-ROM of a VM, or a mount point of a container."""
    return (_QEMU_DRIVE if kind == "qemu" else _MOUNT_POINT).fullmatch(key) is not None


def mount_order(key: str) -> int:
    """The order of mount points: the root file system first."""
    return -1 if key == "rootfs" else int(key[2:])


def volume_key(kind: Kind) -> str:
    """The name of the property with the volume."""
    return "file" if kind == "qemu" else "volume"


def parse(world: World, kind: Kind, key: str, text: str) -> Properties:
    """Parse the property string of an option that has passed the API's checks."""
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
    """Storage and bytes if the volume requests a new disk, such as `local-lvm:32` (GiB)."""
    match = _NEW_DISK.fullmatch(volume)
    if match is None:
        return None
    return match[1] or default_storage, int(float(match[2]) * GIB)


def is_cdrom(drive: Mapping[str, str]) -> bool:
    """Whether a drive of a VM is a CD-ROM, a cloud-init drive included."""
    return drive.get("media") == "cdrom" or drive.get("file") in ("none", "cdrom") or is_cloudinit(drive)


def is_cloudinit(drive: Mapping[str, str]) -> bool:
    """Whether a drive is a cloud-init drive, existing or requested."""
    _, _, name = drive.get("file", "").partition(":")
    return name == "cloudinit" or CLOUDINIT_VOLUME.fullmatch(name) is not None


def cloudinit_drive(world: World, config: Mapping[str, Value]) -> str | None:
    """The key of the VM's cloud-init drive."""
    for key, value in config.items():
        if is_drive("qemu", key) and is_cloudinit(parse(world, "qemu", key, str(value))):
            return key
    return None


def complete_net(world: World, kind: Kind, vmid: int, key: str, text: str) -> str:
    """A network device as PVE stores it: with a MAC address, and for containers a type."""
    net = parse(world, kind, key, text)
    own = "macaddr" if kind == "qemu" else "hwaddr"
    net[own] = net[own].upper() if own in net else new_mac(world, vmid, key)
    if kind == "lxc":
        net.setdefault("type", "veth")
    return render(world, kind, key, net)


def new_mac(world: World, *salt: object) -> str:
    """An unused MAC address, reproducible from the seed."""
    cards = {
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
        if not any(mac in card for card in cards):
            return mac
        attempt += 1


def new_uuid(world: World, *salt: object) -> str:
    """A UUID for a guest, reproducible from the seed."""
    digest = hashlib.sha256(f"uuid {world.seed} {world.clock.now()} {salt}".encode()).digest()
    return str(uuid.UUID(bytes=digest[:16], version=4))


_DRIVE_KEY = re.compile(r"(ide|scsi|virtio|sata|efidisk|tpmstate|rootfs|mp)(\d*)")
_BUSES = ("ide", "scsi", "virtio", "sata", "efidisk", "tpmstate", "rootfs", "mp")
_UNUSED_KEY = re.compile(r"unused\d+")


@dataclass(frozen=True, slots=True)
class Drive:
    """One drive: its key, its whole property string and the volume in it."""

    key: str
    text: str
    volid: str

    @property
    def storage(self) -> str:
        return self.volid.partition(":")[0]

    @property
    def is_cdrom(self) -> bool:
        """A CD-ROM, a cloud-init drive included."""
        return "media=cdrom" in self.text.split(",")

    @property
    def is_cloudinit(self) -> bool:
        return CLOUDINIT_VOLUME.fullmatch(self.volid.partition(":")[2]) is not None

    @property
    def is_bind_mount(self) -> bool:
        """A mount point that is a directory or a device of the host."""
        return self.volid.startswith("/")

    @property
    def is_shared(self) -> bool:
        """Marked as available on every node."""
        return "shared=1" in self.text.split(",")

    def with_volume(self, volid: str, size: str | None = None) -> str:
        """The property string with another volume, and with `size` another size."""
        _, *options = self.text.split(",")
        if size is not None and any(option.startswith("size=") for option in options):
            options = [f"size={size}" if option.startswith("size=") else option for option in options]
        return ",".join([volid, *options])


def drive_order(key: str) -> tuple[int, int, str]:
    """The order in which PVE goes through the drives of a guest; other keys come last."""
    match = _DRIVE_KEY.fullmatch(key)
    return (len(_BUSES), 0, key) if match is None else (_BUSES.index(match[1]), int(match[2] or 0), key)


def all_drives(config: Mapping[str, Value]) -> Iterator[Drive]:
    """Every drive with a volume; empty CD-ROM drives are left out."""
    return (drive for drive in _drives(config) if drive.volid not in ("none", HOST_CDROM))


def host_cdroms(config: Mapping[str, Value]) -> Iterator[Drive]:
    """The drives that pass on the CD drive of the node itself."""
    return (drive for drive in _drives(config) if drive.volid == HOST_CDROM)


def _drives(config: Mapping[str, Value]) -> Iterator[Drive]:
    for key in sorted(config, key=drive_order):
        if _DRIVE_KEY.fullmatch(key):
            text = str(config[key])
            yield Drive(key, text, volume_of_drive(text))


def disks(config: Mapping[str, Value]) -> Iterator[Drive]:
    """The drives that hold the guest's own data: no CD-ROMs, no cloud-init, nothing of the host's."""
    return (drive for drive in all_drives(config) if not drive.is_cdrom and not drive.is_bind_mount)


def unused_drives(config: Mapping[str, Value]) -> Iterator[Drive]:
    """The guest's detached volumes."""
    for key in sorted(config):
        if _UNUSED_KEY.fullmatch(key):
            yield Drive(key, str(config[key]), volume_of_drive(str(config[key])))


def is_unused_key(key: str) -> bool:
    return _UNUSED_KEY.fullmatch(key) is not None


def add_unused(config: dict[str, Value], volid: str) -> None:
    """List a detached volume as unused, once."""
    if any(drive.volid == volid for drive in unused_drives(config)):
        return
    number = next(number for number in range(256) if f"unused{number}" not in config)
    config[f"unused{number}"] = volid


_MAC = re.compile(r"(?:[0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}")


class Identities:
    """Generates identities in a world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._count = itertools.count()

    def mac(self) -> str:
        """An unused MAC address."""
        return new_mac(self._world, next(self._count))

    def uuid(self) -> str:
        return new_uuid(self._world, next(self._count))

    def with_new_mac(self, network: str) -> str:
        """A network card's property string with another MAC address."""
        return _MAC.sub(self.mac(), network, count=1)
