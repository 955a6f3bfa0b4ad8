"""Files inside backups: what is there, and one of them back without restoring the guest.

Proxmox VE shows only what is in backups on a Proxmox Backup Server. Paths are passed in base64, below the name of an
archive (`root.pxar.didx` of a container) or a disk (`drive-scsi0.img.fidx/part/1`). What is missing is not an error to
its download: it answers with nothing. So what is downloaded is found in a listing first.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import posixpath
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from quorate.hints import NAMED, OMITTED, Advice, either, see, tools
from quorate.homelab.machines import Machine
from quorate.inside import files as guest_files
from quorate.operations.plan import Action, ActionResult, Call, Plan, StepContext, Target
from quorate.operations.registry import GuestRef, Risk, Table, operation, page
from quorate.problems import BadArgument, Conflict, NotFound, Problem, ServerFailed, TimedOut
from quorate.pve.cluster import Cluster
from quorate.pve.tasks import TaskOutcome, Upid, follow
from quorate.server_files import ServerFiles
from quorate.suggestions import similar
from quorate.tools.backups import BackupRef, find_backup
from quorate.tools.commands import WayName
from quorate.tools.machines import MOST_WRITTEN, FileWrite, guest_machine, machine_label, write_action
from quorate.tools.storages import StoredVolume
from quorate.tools.volumes import OnNode
from quorate.units import moment, size

COLUMNS = ("name", "type", "size", "modified")
FOLDER, FILE, HARD_LINK = "d", "f", "h"
_TYPES = {
    FOLDER: "folder", FILE: "file", "l": "link", "h": "hard link", "p": "pipe", "s": "socket", "c": "device",
    "b": "device", "v": "disk",
}  # fmt: skip
_DISK = ".img.fidx"
_DOWNLOAD_TASK = "pbs-download"
_TASK_SECONDS = 5.0
_BELOW_DISK = {"part": 1, "zpool": 1, "lvm": 2, "raw": 0}
"""How many names follow those words below a disk before the root of a file system: `part/1`, `lvm/VG/LV`."""
_ARCHIVES = {b"\x28\xb5\x2f\xfd": (".tar.zst", "tar archive, packed with Zstandard"), b"PK\x03\x04": (".zip", "zip")}
"""What a folder is sent as, by its first bytes."""
_PRIVATE = "0600"
_NOT_FOUND = ("not found", "no such file", "not a directory", "enoent")

PathInside = Annotated[str, Meta(description="As in the guest; of a VM below a disk, as listed")]


class StoredEntry(msgspec.Struct, frozen=True):
    """One row of a folder in a backup."""

    filepath: str
    text: str
    type: str
    size: int | None = None
    mtime: int | None = None

    def as_row(self) -> list[Any]:
        modified = moment(self.mtime) if self.mtime is not None else ""
        return [self.text, _TYPES.get(self.type, self.type), self.size if self.type != FOLDER else None, modified]


@dataclass(frozen=True, slots=True)
class _Contents:
    """The files of one backup."""

    pve: Cluster
    backup: StoredVolume

    @property
    def _path(self) -> str:
        return f"/nodes/{self.backup.node}/storage/{self.backup.storage}/file-restore"

    async def list_folder(self, path: str) -> list[StoredEntry]:
        """A folder by its path from the top, where the archives and disks are."""
        query = {"volume": self.backup.volid, "filepath": _encode(path)}
        try:
            rows = await self.pve.client.get_as(list[StoredEntry], f"{self._path}/list", **query)
        except Problem as problem:
            raise self._explain(problem, path) from None
        return sorted(rows, key=lambda row: row.text)

    async def locate(self, path: str) -> str:
        """The path from the top of what has this path in the guest."""
        if not path.isprintable() or "\\" in path or ".." in path.split("/"):
            raise BadArgument(f"{path!r} is not a path in a backup", next_step="Write it as in /etc/nginx")
        parts = [part for part in path.split("/") if part not in ("", ".")]
        names = [row.text for row in await self.list_folder("/")]
        if parts and parts[0] in names:
            return "/" + "/".join(parts)
        if len(names) == 1 and not names[0].endswith(_DISK):
            return "/" + "/".join([names[0], *parts])
        if not parts:
            return "/"
        raise NotFound(
            f"{path} is not in {self.backup}",
            why=f"A path in the backup of a VM begins with a disk: {', '.join(names)}",
            next_step=see("Look at the top", tools.backup_files(backup=self.backup.volid, path="/")),
        )

    async def find(self, located: str, path: str) -> StoredEntry:
        """The entry at a path, from the listing of its folder."""
        folder, name = posixpath.split(located)
        rows = await self.list_folder(folder)
        entry = next((row for row in rows if row.text == name), None)
        if entry is None:
            near = similar(name, [row.text for row in rows], 2)
            seen = see("See what there is", tools.backup_files(backup=self.backup.volid, path=posixpath.dirname(path)))
            hint = Advice(f"There is {' and '.join(near)}") if near else seen
            raise NotFound(f"{path} is not in {self.backup}", next_step=hint)
        return entry

    def download_call(self, entry: StoredEntry, located: str) -> Call:
        """How it is read: rules see that this looks inside the guest of the backup."""
        params: dict[str, Any] = {"volume": self.backup.volid, "filepath": _encode(located)}
        if entry.type == FOLDER:
            params["tar"] = 1
        return Call(f"Read {located} from {self.backup}", "GET", f"{self._path}/download", params)

    async def download(self, entry: StoredEntry, located: str, path: str) -> bytes:
        """What is there. PVE always answers 200: the size in the listing or the task shows what is missing."""
        call = self.download_call(entry, located)
        is_sized = entry.type == FILE and entry.size is not None
        before = frozenset() if is_sized else await self._download_tasks()
        try:
            data = await self.pve.client.download(call.path, **call.params)
        except Problem as problem:
            raise self._explain(problem, path) from None
        if is_sized and len(data) == entry.size:
            return data
        failed = [] if is_sized else await self._failures(await self._download_tasks() - before)
        log = see("Try again; the log of the task says more", tools.task_list(type=_DOWNLOAD_TASK))
        if is_sized:
            raise ServerFailed(
                f"PVE sent {len(data)} of the {entry.size} bytes of {path}",
                why="The backup may be damaged, or the backup server was interrupted",
                next_step=log,
            )
        if not data and entry.type == HARD_LINK:
            raise ServerFailed(
                f"PVE sent nothing of {path}",
                why="It is a hard link: its content is under the other name of the same file"
                + (f". The task says: {failed[0]}" if failed else ""),
                next_step="Restore the file under its other name, or the folder that both are in",
            )
        if failed or not data:
            raise ServerFailed(
                f"PVE sent {'only a part' if data else 'nothing'} of {path}",
                why=failed[0]
                if failed
                else "The listing names no size, and an empty answer is what an error looks like",
                next_step=log,
            )
        return data

    async def _download_tasks(self) -> frozenset[str]:
        path = f"/nodes/{self.backup.node}/tasks"
        rows = await self.pve.get(path, typefilter=_DOWNLOAD_TASK, source="all", limit=50)
        return frozenset(str(row["upid"]) for row in rows or ())

    async def _failures(self, tasks: Iterable[str]) -> list[str]:
        """Why those of the tasks failed that did; a download ends a moment before its task."""
        client, clock = self.pve.client, self.pve.clock
        reads = (follow(client, Upid.parse(task), clock=clock, wait=_TASK_SECONDS) for task in sorted(tasks))
        return [state.exit or "" for state in await asyncio.gather(*reads) if state.outcome is TaskOutcome.FAILED]

    def _explain(self, problem: Problem, path: str) -> Problem:
        """PVE's words about backups as problems that can be acted on."""
        text = f"{problem.what} {problem.why or ''}"
        lowered, storage = text.lower(), self.backup.storage
        restore = Advice("restore the guest next to itself", tools.backup_restore(backup=self.backup.volid))
        if "proxmox-backup-restore-image" in lowered:
            return Conflict(
                f"Node {self.backup.node} cannot open the disks in backups of VMs",
                why="The package proxmox-backup-restore-image is not installed there",
                next_step=either("Install it there: `apt install proxmox-backup-restore-image`", restore),
            )
        if "not finished in time" in lowered:
            return TimedOut(
                f"Node {self.backup.node} is still opening the disk", next_step="Call again in half a minute"
            )
        if "missing key" in lowered:
            return Conflict(
                f"{self.backup} is encrypted with a key that storage {storage} does not have",
                why=problem.what,
                next_step=f"Its owner has to give it the key: `pvesm set {storage} --encryption-key FILE`",
            )
        if any(words in lowered for words in _NOT_FOUND):
            return NotFound(f"{path} is not in {self.backup}", why=problem.what)
        return problem


def _encode(path: str) -> str:
    return "/" if path in ("", "/") else base64.b64encode(path.encode()).decode()


async def _open(pve: Cluster, backup: str, node: str | None) -> _Contents:
    volume = await find_backup(pve, backup, node)
    if not volume.format.startswith("pbs-"):
        raise Conflict(
            f"The files in {volume} cannot be reached",
            why="Proxmox VE looks only into backups on a Proxmox Backup Server",
            next_step=Advice("Restore the guest next to itself", tools.backup_restore(backup=volume.volid)),
        )
    return _Contents(pve, volume)


@operation(
    toolset="backups",
    risk=Risk.LOOK_INSIDE,
    search_words="browse look inside folder contents of a backup yesterday old version single lost deleted",
    example="backup=newest:postgres path=/etc",
)
async def backup_files(
    pve: Cluster,
    backup: BackupRef,
    path: PathInside = "/",
    node: OnNode | None = None,
    limit: Annotated[int, Meta(ge=1, le=1000)] = 200,
    offset: Annotated[int, Meta(ge=0)] = 0,
) -> Table:
    """A folder inside a backup on a Proxmox Backup Server; backup_file_restore gets a file back."""
    contents = await _open(pve, backup, node)
    located = await contents.locate(path)
    rows = await _list_or_find(contents, located, path)
    table = page(COLUMNS, (row.as_row() for row in rows), limit=limit, offset=offset)
    volume = contents.backup
    table.facts = {"backup": volume.volid, "guest": volume.vmid, "made": moment(volume.ctime), "path": path}
    return table


async def _list_or_find(contents: _Contents, located: str, path: str) -> Iterable[StoredEntry]:
    """The folder, or the single entry that has this path."""
    try:
        return await contents.list_folder(located)
    except NotFound:
        if located.count("/") < 2:
            raise
        entry = await contents.find(located, path)
        if entry.type in (FOLDER, "v"):
            raise
        return [entry]


def _restore_risk(arguments: Mapping[str, Any]) -> Risk:
    return Risk.DESTROY if arguments.get("overwrite") else Risk.CHANGE


@operation(
    toolset="backups",
    risk=Risk.DESTROY,
    risk_of=_restore_risk,
    least=Risk.CHANGE,
    search_words="get back recover one file folder lost deleted config from backup yesterday single",
    example="backup=newest:postgres path=/etc/hosts",
)
async def backup_file_restore(
    pve: Cluster,
    backup: BackupRef,
    path: PathInside,
    guest: Annotated[GuestRef, Meta(description="Default: the guest of the backup")] | None = None,
    to: Annotated[str, Meta(description="Path there; default: a new name next to the original")] | None = None,
    file: Annotated[str, Meta(description="Instead of a guest: a new file on the machine of Quorate")] | None = None,
    overwrite: Annotated[bool, Meta(description="Replace what is at `to`; needs access admin")] = False,
    node: OnNode | None = None,
    way: WayName | None = None,
    *,
    files: ServerFiles,
) -> Plan:
    """Get a file back from a backup, or a folder as tar archive, into the guest under a new name."""
    if file is not None and (guest is not None or to is not None or overwrite):
        raise BadArgument("A file on this machine has no guest, and is never replaced", next_step="Give file alone")
    if overwrite and to is None:
        raise BadArgument("Only a path that is named can be replaced", next_step=Advice("Give {to}", to=path))
    contents = await _open(pve, backup, node)
    located = await contents.locate(path)
    if located.count("/") < 2:
        raise BadArgument(f"{path} is a whole archive or disk", next_step="Give the path of a file or folder in it")
    entry = await contents.find(located, path)
    if entry.type not in (FILE, FOLDER, HARD_LINK):
        raise Conflict(f"{path} is a {_TYPES.get(entry.type, entry.type)}", next_step="Restore a file or a folder")
    if (entry.size or 0) > MOST_WRITTEN:
        raise Conflict(
            f"{path} has {size(entry.size or 0)}; at most {size(MOST_WRITTEN)} can be restored alone",
            next_step=Advice("Restore the guest next to itself", tools.backup_restore(backup=contents.backup.volid)),
        )
    data = await contents.download(entry, located, path)
    if len(data) > MOST_WRITTEN:
        raise Conflict(f"{path} has more than {size(MOST_WRITTEN)} with its content", next_step="Restore it in parts")
    reading = contents.download_call(entry, located)
    facts = {
        "from": contents.backup.volid,
        "made": moment(contents.backup.ctime),
        "path": path,
        "bytes": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
        **({"note": f"The folder is one {_archive_of(data)[1]}"} if entry.type == FOLDER else {}),
    }
    if file is not None:
        action = _saving(file, data, files)
        facts |= {"file": action.line}
    else:
        machine = await guest_machine(pve, guest if guest is not None else contents.backup.vmid or 0, way)
        target = to or _new_name(contents.backup, entry, located, machine, data)
        write = FileWrite(target, data, append=False, parents=False, mode=_mode(machine, overwrite), owner=None)
        action = write_action(pve.command_rules, machine, write)
        if overwrite:
            action = replace(action, loses=(f"{machine_label(machine)}: {target}, if it exists: what it contains now",))
        else:
            action = _writing_new(action, machine, target)
        facts |= {"guest": machine_label(machine), "way": machine.transport.description, "to": target}
    action = replace(action, line=f"{action.line}, sha256:{facts['sha256']}", needs=(*action.needs, reading))
    return Plan(f"Restore {path} of {contents.backup.volid}", (action,), facts=facts)


def _archive_of(data: bytes) -> tuple[str, str]:
    """The ending of a folder's archive, and what it is."""
    return next((kind for magic, kind in _ARCHIVES.items() if data.startswith(magic)), (".tar", "tar archive"))


def _new_name(backup: StoredVolume, entry: StoredEntry, located: str, machine: Machine, data: bytes) -> str:
    """Next to the original, with the day of the backup. A file system of a VM is taken for its root."""
    if machine.transport.system == "windows":
        raise BadArgument("Where in the guest is not known", next_step=Advice("Give {to}, such as C:\\file", to=""))
    inside = located.split("/")[2:]
    if not backup.is_container:
        depth = _BELOW_DISK.get(inside[0])
        inside = [] if depth is None else inside[1 + depth :]
    if not inside:
        raise BadArgument(f"Where {located} was in the guest is not known", next_step=Advice("Give {to}", to=NAMED))
    day = moment(backup.ctime).partition(" ")[0]
    return "/" + "/".join(inside) + f".restored-{day}" + (_archive_of(data)[0] if entry.type == FOLDER else "")


def _mode(machine: Machine, overwrite: bool) -> str | None:
    """PVE does not say who may read the file, so a new one is private."""
    return None if overwrite or machine.transport.system == "windows" else _PRIVATE


async def _refuse_existing(machine: Machine, target: str) -> None:
    try:
        existing = await guest_files.stat_path(machine.transport, target)
    except NotFound:
        return
    raise Conflict(
        f"{target} already exists on {machine_label(machine)} ({existing.type})",
        next_step=either(
            Advice("Choose another {to}", to=""), Advice("give {overwrite} to replace it (needs admin)", overwrite=True)
        ),
    )


def _writing_new(action: Action, machine: Machine, target: str) -> Action:
    """The same, unless something is there. Looking runs a command inside, so a dry run does not."""

    async def perform(context: StepContext) -> ActionResult:
        await _refuse_existing(machine, target)
        return await action.perform(context)

    return replace(action, summary=f"{action.summary}, unless something is there", perform=perform)


def _saving(file: str, data: bytes, files: ServerFiles) -> Action:
    """Write a new file on the machine that runs Quorate; callers elsewhere, only where the operator lets them."""
    try:
        target = files.place(file, Advice("Leave {file} out to restore into a guest", file=OMITTED))
        if target.is_taken():
            raise _explain_conflict(target.path)
    except (FileNotFoundError, NotADirectoryError):
        raise Conflict(f"There is no folder for {file}", next_step="Create it, or choose another file") from None
    except (OSError, ValueError) as error:
        raise BadArgument(f"{file} cannot be written: {getattr(error, 'strerror', None) or error}") from None
    path = target.path

    async def perform(_: StepContext) -> ActionResult:
        try:
            await asyncio.to_thread(target.create, data)
        except FileExistsError:
            raise _explain_conflict(path) from None
        except OSError as error:
            raise Conflict(f"{path} could not be written: {error.strerror}") from None
        return ActionResult({"file": str(path), "bytes": len(data)})

    return Action(f"Save it as {path}", str(path), perform, Target("file", str(path)))


def _explain_conflict(path: Path) -> Conflict:
    return Conflict(f"{path} already exists", next_step="Choose another file: none is replaced")
