"""Files inside backups on a Proxmox Backup Server: a folder of one, and a file or a folder as a download."""

from __future__ import annotations

import base64
import functools
from typing import Any

from pve_simulator.http.refusals import Refusal, bad_parameters, failure
from pve_simulator.http.routing import Binary, Call, route
from pve_simulator.nodes.tasks import TaskContext, TaskError
from pve_simulator.pbs import archives as trees
from pve_simulator.pbs.archives import Entry, Tree
from pve_simulator.pbs.refusals import Refusal as BackupServerRefusal
from pve_simulator.storage import archives, volume_access, volumes
from pve_simulator.storage.archives import Archive
from pve_simulator.storage.storages import Volume

_FILE_RESTORE = "/nodes/{node}/storage/{storage}/file-restore"
_CONTAINER = "root.pxar.didx"
_NO_IMAGE = "cannot run file-restore VM: package 'proxmox-backup-restore-image' is not (correctly) installed"


@route(f"GET {_FILE_RESTORE}/list")
def list_files(call: Call) -> list[dict[str, Any]]:
    volume = _volume(call)
    contents = _contents(archives.open_archive(call.world, volume), volume.file_system)
    path = _decode_path(call.params["filepath"]).strip("/")
    if not path:
        return [_archive_row(name, tree) for name, tree in contents.items()]
    name, _, inside = path.partition("/")
    _require_restore_image(call, name)
    tree = contents.get(name)
    if tree is None or tree.find(inside) is None:
        raise failure(f'path "{path}" not found in catalog')
    try:
        rows = trees.listing(tree, inside, name)
    except BackupServerRefusal as refusal:  # it is a file
        raise failure(refusal.text) from refusal
    virtual = volume.file_system.rpartition("/")[0] if name.endswith(".img.fidx") else None
    return [{**row, "leaf": int(row["leaf"]), **_as_part_of_disk(virtual, inside)} for row in rows]


@route(f"GET {_FILE_RESTORE}/download")
def download(call: Call) -> Binary:
    """A file, or a folder as an archive. What is missing is an empty answer: only the log of the task says so."""
    volume = _volume(call)
    contents = _contents(archives.open_archive(call.world, volume), volume.file_system)
    path = _decode_path(call.params["filepath"]).strip("/")
    name, _, inside = path.partition("/")
    _require_restore_image(call, name)
    content: bytes | None = None
    complaint = "blob crc check failed" if volume.damaged else f'path "{path}" not found in catalog'
    if name in contents and not volume.damaged:
        try:
            content = trees.download(contents[name], inside, as_tar=bool(call.params.get("tar")))
        except BackupServerRefusal as refusal:
            complaint = refusal.text

    async def work(context: TaskContext) -> None:
        if content is None:
            raise TaskError(f"proxmox-file-restore failed: Error: {complaint}")
        context.log(f"finished reading {len(content)} bytes")

    call.start_task("pbs-download", "", work)
    return Binary(content or b"", path.rpartition("/")[2])


def _volume(call: Call) -> Volume:
    """The backup. Only a Proxmox Backup Server supports looking inside."""
    name = call.params["volume"]
    is_short = ":" not in name or name.startswith(("vm/", "ct/", "host/"))
    volid = f"{call.values['storage']}:backup/{name}" if is_short else name
    storage, parsed = volume_access.check_access(call, volume_access.full_volid(call.values["storage"], volid))
    if storage.type != "pbs":
        raise bad_parameters({"storage": "Only PBS storages supported for file-restore."})
    if parsed.vmid is not None:
        call.require(f"/vms/{parsed.vmid}", "VM.Backup")
    volume = volumes.find(call.world, call.node, volid)
    if volume is None:
        raise Refusal(400, f"snapshot {volid.partition(':backup/')[2]} does not exist.\n")
    if volume.encrypted:
        raise failure(f"missing key - manifest was created with key {volume.encrypted}")
    return volume


def _contents(archive: Archive, file_system: str) -> dict[str, Tree]:
    """The archives and disks of a backup by name; on a disk, where its file system is."""
    files = Tree(archive.files) if archive.files is not None else Tree()
    if archive.kind == "lxc":
        return {_CONTAINER: files}
    disks = [f"drive-{drive.key}.img.fidx" for drive in archive.drives()]
    empty = Entry("folder")
    partitions = [files.root, *(empty for _ in disks[1:])]  # the system is on the first disk
    return {
        name: Tree(functools.reduce(_folder_around, reversed(file_system.split("/")), partition))
        for name, partition in zip(disks, partitions, strict=True)
    }


def _folder_around(entry: Entry, name: str) -> Entry:
    return Entry("folder", children={name: entry})


def _archive_row(name: str, tree: Tree) -> dict[str, Any]:
    row = {"filepath": trees.encode_path(f"/{name}"), "text": name, "leaf": 0, "size": tree.size}
    return {**row, "type": "v" if name.endswith(".img.fidx") else "d"}


def _as_part_of_disk(virtual: str | None, inside: str) -> dict[str, Any]:
    """Partition tables, partitions and volumes are virtual, like the disk."""
    return {"type": "v"} if virtual is not None and f"{virtual}/".startswith(f"{inside}/" if inside else "") else {}


def _require_restore_image(call: Call, name: str) -> None:
    """A disk is opened by a helper VM on the node."""
    if name.endswith(".img.fidx") and not call.world.nodes[call.node].has_restore_image:
        raise failure(_NO_IMAGE)


def _decode_path(text: str) -> str:
    """Decode a base64 path; `/` is plain."""
    if text == "/":
        return text
    try:
        return base64.b64decode(text, validate=True).decode()
    except ValueError as error:
        complaint = f"Failed base64-decoding path '{text}' - error decoding base64 data"
        raise failure(f"proxmox-file-restore failed: Error: {complaint}") from error
