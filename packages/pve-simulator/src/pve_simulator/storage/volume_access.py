"""Access to volumes and storages, and file names for new files."""

from __future__ import annotations

import re

from pve_simulator.guests.option_privileges import check_volume_access
from pve_simulator.http.refusals import Refusal, bad_parameters
from pve_simulator.http.routing import Call
from pve_simulator.nodes.tasks import TaskContext, TaskError
from pve_simulator.storage import volumes
from pve_simulator.storage.storages import Storage, Volume
from pve_simulator.storage.volume_names import ISO_NAME, TEMPLATE_NAME, UPLOADED_IMPORT_NAME, VolumeName, parse
from pve_simulator.world import World

_ILLEGAL_CHARACTER = re.compile(r"[^a-zA-Z0-9_.\-]")


def storage_of_path(call: Call) -> Storage:
    """The storage in the path, or PVE's refusal if it is not available on the node."""
    return volumes.usable_storage(call.world, call.node, call.values["storage"])


def full_volid(storage_id: str | None, volume: str) -> str:
    """The full volid of a path: the storage may be omitted, but must match."""
    if ":" not in volume:
        return f"{storage_id}:{volume}"
    try:
        named, _ = volumes.split_volid(volume)
    except TaskError as error:
        raise bad_parameters({"volume": f"{error}\n"}) from error
    if storage_id and named != storage_id:
        raise bad_parameters({"volume": f"storage ID mismatch ({named} != {storage_id})\n"})
    return volume


def check_access(
    call: Call, volid: str, *, vmid: int | None = None, content: str | None = None
) -> tuple[Storage, VolumeName]:
    """Storage and parsed name of a volume that the caller may read; a guest's own disks (`vmid`) are allowed."""
    if volumes.VOLID.fullmatch(volid) is None:
        check_volume_access(call, vmid, volid)  # a path of the host, for root only
    storage_id, name = volumes.split_volid(volid)
    storage = call.world.storage(storage_id)
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
    """The normalized name of a file on a storage: no directory, no special characters."""
    return _ILLEGAL_CHARACTER.sub("_", name.rpartition("/")[2].rpartition("\\")[2])


def check_file_name(content: str, name: str) -> None:
    """Refuse a file whose extension does not match its content type."""
    if content == "import":
        if UPLOADED_IMPORT_NAME.fullmatch(name) is None:
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
    """The disk usage of a file: whole blocks of 4 KiB."""
    return -(-size // 4096) * 4096


def verify(context: TaskContext, actual: str | None, expected: str) -> None:
    """Verify a file's checksum, and log it in the task."""
    if actual is None or actual.lower() != expected.lower():
        context.log("calculating checksum...")
        raise TaskError(f"checksum mismatch: got '{actual}' != expect '{expected}'")
    context.log("calculating checksum...OK, checksum verified")


def store_file(
    world: World, storage: Storage, node: str, volid: str, size: int, checksums: dict[str, str] | None, full: str
) -> Volume:
    """Store a file, overwriting one of the same name; `full` is the error without space."""
    content, _, name = volid.partition(":")[2].partition("/")
    now = int(world.clock.now())
    volume = Volume(volid, content, listed_format(content, name), size, used_by_file(size), now, checksums=checksums)
    storage.remove(node, volid)
    try:
        storage.add(node, volume)
    except TaskError as error:
        raise TaskError(full) from error
    return volume
