"""Names of volumes: what a name says about its volume on each type of storage, and who may look at it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from quorate.sim import volumes
from quorate.sim.option_privileges import check_volume_access
from quorate.sim.refusals import Refusal, bad_parameters, failure
from quorate.sim.routing import Call
from quorate.sim.storages import FILE_BASED, Storage
from quorate.sim.tasks import TaskError
from quorate.sim.world import World

ISO_NAME = re.compile(r"[^/]+\.(?:iso|img)", re.IGNORECASE)
TEMPLATE_NAME = re.compile(r"[^/]+\.tar(?:\.(?:gz|xz|zst|bz2))?", re.IGNORECASE)
IMPORT_NAME = re.compile(r"[a-zA-Z0-9\-.+=_]+\.(ova|qcow2|raw|vmdk)")
_IN_ARCHIVE = re.compile(r"[a-zA-Z0-9\-.+=_]+\.ova/[a-zA-Z0-9\-.+=_]+\.(qcow2|raw|vmdk)")

_IMAGE = re.compile(r"(?:\d+/\S+/)?(\d+)/([^/\s]+\.(raw|qcow2|vmdk|subvol))")
_SUBVOLUME = re.compile(r"(?:\d+/\S+/)?(\d+)/(subvol-\d+-[^/\s]+|basevol-\d+-[^/\s]+)")
_BACKUP_FILE = re.compile(r"[^/]+\.(?:tgz|(?:tar|vma)(?:\.(?:gz|lzo|zst|bz2))?)")
_GUEST_BACKUP = re.compile(r"vzdump-(openvz|lxc|qemu)-(\d+)-.+")
_LOGICAL_VOLUME = re.compile(r"(?:vm|base)-(\d+)-\S+")
_DATASET = re.compile(r"(?:(?:base|basevol)-\d+-\S+/)?(base|basevol|vm|subvol)-(\d+)-\S+")
_PBS_SNAPSHOT = re.compile(r"backup/(vm|ct|host)/([^\s_/]+)/(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)")
_ILLEGAL_CHARACTER = re.compile(r"[^a-zA-Z0-9_.\-]")


@dataclass(frozen=True, slots=True)
class VolumeName:
    """What the name alone tells: the content type, the owner if there is one, the format."""

    content: str
    vmid: int | None
    format: str


def parse(storage: Storage, name: str) -> VolumeName:
    """The parts of a volume's name, or PVE's complaint, which differs with the type of storage."""
    if storage.type in FILE_BASED:
        return _parse_file(name)
    if storage.type in ("lvm", "lvmthin"):
        return _parse_logical_volume(name)
    if storage.type == "zfspool":
        return _parse_dataset(name)
    return _parse_snapshot(name)


def _parse_file(name: str) -> VolumeName:
    directory, _, rest = name.partition("/")
    image = _IMAGE.fullmatch(name)
    if image is not None:
        return VolumeName("images", int(image[1]), image[3])
    subvolume = _SUBVOLUME.fullmatch(name)
    if subvolume is not None:
        return VolumeName("images", int(subvolume[1]), "subvol")
    if directory == "iso" and ISO_NAME.fullmatch(rest):
        return VolumeName("iso", None, "raw")
    if directory == "vztmpl" and TEMPLATE_NAME.fullmatch(rest):
        return VolumeName("vztmpl", None, "raw")
    if directory == "backup" and _BACKUP_FILE.fullmatch(rest):
        owner = _GUEST_BACKUP.fullmatch(rest)
        return VolumeName("backup", int(owner[2]) if owner else None, "raw")
    if directory == "snippets" and rest and "/" not in rest:
        return VolumeName("snippets", None, "raw")
    if directory == "import":
        imported = IMPORT_NAME.fullmatch(rest)
        if imported is not None:
            return VolumeName("import", None, imported[1])
        inside = _IN_ARCHIVE.fullmatch(rest)
        if inside is not None:
            return VolumeName("import", None, f"ova+{inside[1]}")
    raise failure(f"unable to parse directory volume name '{name}'")


def _parse_logical_volume(name: str) -> VolumeName:
    match = _LOGICAL_VOLUME.fullmatch(name)
    if match is None:
        raise failure(f"unable to parse lvm volume name '{name}'")
    return VolumeName("images", int(match[1]), "raw")


def _parse_dataset(name: str) -> VolumeName:
    match = _DATASET.fullmatch(name)
    if match is None:
        raise failure(f"unable to parse zfs volume name '{name}'")
    return VolumeName("images", int(match[2]), "subvol" if match[1] in ("subvol", "basevol") else "raw")


def _parse_snapshot(name: str) -> VolumeName:
    match = _PBS_SNAPSHOT.fullmatch(name)
    if match is None:
        raise failure(f"unable to parse PBS volume name '{name}'")
    return VolumeName("backup", int(match[2]) if match[2].isdecimal() else None, f"pbs-{match[1]}")


def existing_storage(world: World, storage_id: str) -> Storage:
    """The storage of that name, switched on or not."""
    storage = world.storages.get(storage_id)
    if storage is None:
        raise failure(f"storage '{storage_id}' does not exist")
    return storage


def storage_of_path(call: Call) -> Storage:
    """The storage in the path, if it can be used on the node in the path."""
    return volumes.usable_storage(call.world, call.node, call.values["storage"])


def full_volid(storage_id: str | None, volume: str) -> str:
    """A volume of a path: the storage may be left out there, but must not contradict."""
    if ":" not in volume:
        return f"{storage_id}:{volume}"
    try:
        found, _ = volumes.split_volid(volume)
    except TaskError as error:
        raise bad_parameters({"volume": f"{error}\n"}) from error
    if storage_id and found != storage_id:
        raise bad_parameters({"volume": f"storage ID mismatch ({found} != {storage_id})\n"})
    return volume


def check_access(
    call: Call, volid: str, *, vmid: int | None = None, content: str | None = None
) -> tuple[Storage, VolumeName]:
    """Storage and parsed name of a volume that the caller may read; `vmid` is a guest whose own disks are fine."""
    if volumes.VOLID.fullmatch(volid) is None:
        check_volume_access(call, vmid, volid)  # a path of the host, which is for root alone
    storage_id, name = volumes.split_volid(volid)
    storage = existing_storage(call.world, storage_id)
    parsed = parse(storage, name)
    check_volume_access(call, vmid, volid, content=content)
    return storage, parsed


def may_read(call: Call, volid: str) -> bool:
    """Whether lists show the volume to the caller."""
    try:
        check_volume_access(call, None, volid)
    except (Refusal, TaskError):
        return False
    return True


def normalized_file_name(name: str) -> str:
    """The name a file gets on a storage: no directory, and nothing that a shell could mistake."""
    return _ILLEGAL_CHARACTER.sub("_", name.rpartition("/")[2].rpartition("\\")[2])


def check_file_name(content: str, name: str) -> None:
    """Refuse a file whose ending does not fit its content type."""
    if content == "import":
        if IMPORT_NAME.fullmatch(name) is None:
            raise bad_parameters({"filename": "invalid filename or wrong extension"})
        return
    pattern = ISO_NAME if content == "iso" else TEMPLATE_NAME
    if pattern.fullmatch(name) is None:
        raise bad_parameters({"filename": "wrong file extension"})


def listed_format(content: str, name: str) -> str:
    """The `format` that lists show for a file: `iso`, `tzst`, `vma.zst`, `qcow2`."""
    ending = name.rpartition(".")[2].lower()
    if content == "vztmpl":
        return "tar" if ending == "tar" else f"t{ending}"
    if content == "backup":
        tail = re.search(r"\.(tgz|(?:tar|vma)(?:\.\w+)?)$", name)
        return tail[1] if tail else ending
    return "iso" if content == "iso" else ending


def used_by_file(size: int) -> int:
    """What a file of this size takes on a disk: whole blocks of 4 KiB."""
    return -(-size // 4096) * 4096
