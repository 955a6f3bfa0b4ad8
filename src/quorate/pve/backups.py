"""What PVE says about its backups: what they leave out of a guest, and why one failed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from quorate.pve import values
from quorate.pve.tasks import LOG_KEPT, Upid, read_log_tail

if TYPE_CHECKING:
    from quorate.pve.client import PveClient

BACKUP_TASK = "vzdump"
UNEXPLAINED = "job errors"
"""How a backup task ends when the backup of some guest failed: only its log says why."""
_VM_DISKS = (*values.BOOTABLE, "efidisk", "tpmstate")


def excluded_volumes(config: Mapping[str, Any], *, is_vm: bool) -> list[str]:
    """What a backup of a guest with this configuration does not hold, such as `mp0 /data 500G (backup=0)`.

    PVE includes the disks of a VM unless they say backup=0, and mount points of a container only if they say backup=1.
    """
    excluded = []
    for key, value in sorted(config.items()):
        bus, parts = values.bus_of(key), values.parse(str(value), "volume")
        volume, size = parts.get("volume") or parts.get("file", ""), parts.get("size", "")
        if is_vm and key.startswith("virtiofs"):
            name = values.parse(str(value), "dirid").get("dirid", "")
            excluded.append(f"{key} {name} (a directory of the node, never in a backup)")
        elif is_vm and bus in _VM_DISKS and values.is_disk(key, str(value)):
            if not values.is_on(parts.get("backup", "1")):
                excluded.append(" ".join(part for part in (key, volume, size, "(backup=0)") if part))
        elif not is_vm and bus == "mp":
            if volume.startswith("/"):
                excluded.append(f"{key} {parts.get('mp', '')} ({volume} of the node, never in a backup)")
            elif not values.is_on(parts.get("backup", "0")):
                excluded.append(" ".join(part for part in (key, parts.get("mp", ""), size, "(backup=0)") if part))
    return excluded


def excluded_paths(options: Mapping[str, Any], source: str) -> list[str]:
    """The paths in containers that a job, or the defaults of a node, leave out."""
    listed = options.get("exclude-path") or ()
    paths = [listed] if isinstance(listed, str) else [str(path) for path in listed]
    return [f"{path} (exclude-path of {source})" for each in paths for path in each.replace("\0", " ").split() if path]


def volumes_left_out(tree: Mapping[str, Any]) -> dict[int, list[str]]:
    """vmid -> the volumes that a job leaves out of the guest, by PVE's own list of what a job includes."""
    return {
        int(guest["id"]): [
            f"{str(volume['id']).partition(':')[2]} {volume.get('name', '')} ({volume.get('reason', '')})"
            for volume in guest.get("children") or ()
            if not volume.get("included")
        ]
        for guest in tree.get("children") or ()
        if guest.get("type") != "unknown"
    }


# -- failed backups ----------------------------------------------------------------------------------------------------

_STARTS = re.compile(r"INFO: Starting Backup of VM \d+")
_FAILED = re.compile(r"ERROR: Backup of VM (?P<vmid>\d+) failed - (?P<reason>.*)")
_SAYS_LITTLE = re.compile(r"command '.*' failed|Broken pipe|job failed with err(?!.*- )")
"""Reasons that name only the program that failed; what it said is in the lines above."""
_SYSTEM_ERROR = re.compile(
    r"No space left on device|Disk quota exceeded|Input/output error|Read-only file system|Permission denied"
    r"|Connection refused|Connection timed out|No route to host|Stale file handle|Cannot allocate memory|ENOSPC"
)
_COMPLAINT = re.compile(r"\b(?:error|cannot|failed|fatal|unable|denied)\b", re.I)
_AFTERMATH = re.compile(r"is not recoverable|exiting now|^(?:ERROR: )?Backup job failed", re.I)
_LONGEST_CAUSE = 160


def failed_backups(log: Iterable[str]) -> dict[int, str]:
    """vmid -> why its backup failed, by the log of a backup task."""
    causes: dict[int, str] = {}
    lines: list[str] = []
    for line in log:
        if _STARTS.match(line):
            lines = []
        elif failure := _FAILED.match(line):
            causes[int(failure["vmid"])] = _cause(failure["reason"], lines)[:_LONGEST_CAUSE]
        else:
            lines.append(line)
    return causes


def _cause(reason: str, lines: Sequence[str]) -> str:
    if not _SAYS_LITTLE.search(reason):
        return reason
    said = [text for line in lines if not _AFTERMATH.search(text := re.sub(r"^\w+: ", "", line, count=1).strip())]
    for pattern in (_SYSTEM_ERROR, _COMPLAINT):
        if telling := [text for text in said if pattern.search(text)]:
            return telling[-1]
    return reason


def describe_failed_backups(log: Iterable[str]) -> str:
    """The causes in one line, each once, with the guests if there are several; empty if the log names none."""
    guests: dict[str, list[str]] = {}
    for vmid, cause in failed_backups(log).items():
        guests.setdefault(cause, []).append(str(vmid))
    if len(guests) == 1:
        return next(iter(guests))
    return "; ".join(f"{', '.join(vmids)}: {cause}" for cause, vmids in guests.items())


async def explain_failed_task(client: PveClient, task: Mapping[str, Any]) -> dict[str, Any]:
    """A row of a task list. If it is a failed backup, its status is the cause in its log instead of `job errors`."""
    if task.get("type") != BACKUP_TASK or task.get("status") != UNEXPLAINED:
        return dict(task)
    cause = await read_failed_backups(client, Upid.parse(str(task["upid"])))
    return {**task, "status": cause or UNEXPLAINED}


async def read_failed_backups(client: PveClient, upid: Upid) -> str:
    """Why backups of this task failed."""
    lines, _ = await read_log_tail(client, upid, LOG_KEPT)
    return describe_failed_backups(lines)
