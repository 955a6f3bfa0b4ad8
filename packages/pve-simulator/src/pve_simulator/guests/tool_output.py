"""Tool output in task logs: mkfs, resize2fs, rsync, qemu-img and QEMU's block jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pve_simulator.guests import drives
from pve_simulator.guests.guest import GIB, MIB, Guest
from pve_simulator.nodes.tasks import TaskContext
from pve_simulator.storage import volumes
from pve_simulator.storage.storages import Volume
from pve_simulator.world import World

Log = Callable[..., None]

_KIB = 1024
_BYTES_PER_SECOND = 2 * GIB
_LONGEST = 30.0
_SOON_COPIED = 100 * MIB  # less than this is copied before a second progress line
_FILE_SIZE, _LINKS = 24_000, 282  # average file size in a container
_INODE = 256
_EMPTY = 64 * 1024  # used by an empty file system
_LINE_WIDTH = 72


def amount(size: int, digits: int = 1) -> str:
    """A size as PVE's log lines show it."""
    for unit, letters in ((GIB, "GiB"), (MIB, "MiB"), (_KIB, "KiB")):
        if size >= unit:
            return f"{size / unit:.{digits}f} {letters}"
    return f"{size:.{digits}f} B"


def copy_efi_image(volume: Volume) -> Iterator[str]:
    """Copy OVMF's empty variable store into a new EFI disk."""
    total = amount(volume.size)
    yield f"transferred 0.0 B of {total} (0.00%)"
    for _ in range(2):
        yield f"transferred {total} of {total} (100.00%)"


async def copy_image(context: TaskContext, volume: Volume) -> None:
    """Take as long as qemu-img convert, with its progress lines."""
    steps = 10 if volume.used > _SOON_COPIED else 1
    for step in range(steps + 1):
        done = volume.size * step // steps
        context.log(f"transferred {amount(done)} of {amount(volume.size)} ({100 * step / steps:.2f}%)")
        if step < steps:
            await context.sleep(_seconds(volume) / steps)


async def mirror_image(context: TaskContext, key: str, volume: Volume) -> None:
    """Mirror the disk of a running VM until it is in sync."""
    context.log(f"drive mirror is starting for drive-{key}")
    steps = 4 if volume.used > _SOON_COPIED else 1
    seconds = _seconds(volume) / steps
    for step in range(1, steps + 1):
        done = volume.size * step // steps
        share = f"transferred {amount(done)} of {amount(volume.size)} ({100 * step / steps:.2f}%)"
        context.log(f"mirror-{key}: {share} in {int(seconds * (step - 1))}s")
        await context.sleep(seconds)
    total = amount(volume.size)
    context.log(f"mirror-{key}: transferred {total} of {total} (100.00%) in {int(seconds * steps)}s, ready")
    context.log("all 'mirror' jobs are ready")


def cancel_mirror(log: Log, guest: Guest, key: str, now: float) -> None:
    """End the mirror of a clone; the source keeps its disk."""
    frozen = guest.agent_answers(now)
    if not guest.agent_enabled():
        log("skipping guest-agent 'guest-fsfreeze-freeze', disabled in VM options")
    log("freeze filesystem" if frozen else "suspend vm")
    log(f"mirror-{key}: Cancelling block job")
    log(f"mirror-{key}: Done.")
    log("unfreeze filesystem" if frozen else "resume vm")


def complete_mirror(log: Log, key: str) -> None:
    """Switch the VM over to the copy."""
    log(f"mirror-{key}: Completing block job...")
    log(f"mirror-{key}: Completed successfully.")
    log(f"mirror-{key}: mirror-job finished")


def _seconds(volume: Volume) -> float:
    return min(_LONGEST, max(1.0, volume.used / _BYTES_PER_SECOND))


def _block_size(size: int) -> int:
    return _KIB if size < 512 * MIB else 4 * _KIB


def _inodes(size: int) -> int:
    """The number of inodes that mkfs creates: one per 4 or 16 KiB, in full blocks and equal groups."""
    block = _block_size(size)
    blocks = size // block
    groups = -(-blocks // (block * 8))
    per_group = -(-(size // (block * 4)) // groups)
    per_block = block // _INODE
    per_group = -(-per_group // per_block) * per_block & ~7
    return groups * max(8, per_group)


def make_file_system(world: World, volume: Volume) -> Iterator[str]:
    """The output of mkfs for a container's new file system."""
    block = _block_size(volume.size)
    blocks, group = volume.size // block, block * 8
    powers = sorted(base**power for base in (3, 5, 7) for power in range(1, 16))
    first = int(block == _KIB)
    copies = [group * factor + first for factor in (1, *powers) if group * factor + first < blocks]
    yield f"Creating filesystem with {blocks} {block // _KIB}k blocks and {_inodes(volume.size)} inodes"
    yield f"Filesystem UUID: {drives.new_uuid(world, volume.volid)}"
    yield "Superblock backups stored on blocks: "
    line, left = "\t", _LINE_WIDTH
    for number, copy in enumerate(copies):
        text = str(copy)
        if len(text) + 2 > left:
            yield line
            line, left = "\t", _LINE_WIDTH
        left -= len(text) + 2
        line += text + (", " if number + 1 < len(copies) else "")
    yield line


def grow_file_system(world: World, volume: Volume, before: int, *, mounted: bool) -> Iterator[str]:
    """The output of e2fsck and resize2fs when a container's file system grows."""
    storage = world.storages[volumes.split_volid(volume.volid)[0]]
    path = volumes.path_of(storage, volume.name)
    block = _block_size(before)
    unit, blocks = f"({block // _KIB}k) blocks", volume.size // block
    if mounted:
        yield "resize2fs 1.47.2 (1-Jan-2025)"
        yield "Filesystem at /dev/loop0 is mounted on /tmp; on-line resizing required"
        yield f"old_desc_blocks = {_descriptors(before, block)}, new_desc_blocks = {_descriptors(volume.size, block)}"
        yield f"The filesystem on /dev/loop0 is now {blocks} {unit} long."
        yield ""
        return
    used = min(before, volume.used + _inodes(before) * _INODE + 32 * MIB) // block
    files = 12 + _files(volume.used)[0]
    yield "e2fsck 1.47.2 (1-Jan-2025)"
    for number, step in enumerate(_CHECKS, start=1):
        yield f"Pass {number}: Checking {step}"
    yield f"{path}: {files}/{_inodes(before)} files (0.0% non-contiguous), {used}/{before // block} blocks"
    yield "resize2fs 1.47.2 (1-Jan-2025)"
    yield f"Resizing the filesystem on {path} to {blocks} {unit}."
    yield f"The filesystem on {path} is now {blocks} {unit} long."
    yield ""


_CHECKS = (
    "inodes, blocks, and sizes",
    "directory structure",
    "directory connectivity",
    "reference counts",
    "group summary information",
)


def _descriptors(size: int, block: int) -> int:
    groups = -(-size // (block * block * 8))
    return -(-groups * 64 // block)


def _files(used: int) -> tuple[int, int, int]:
    """The numbers of all files, regular files and directories for this much data."""
    if not used:
        return 2, 0, 2
    plain = max(14, used // _FILE_SIZE)
    folders = max(23, plain // 7)
    return plain + folders + _LINKS, plain, folders


def rsync_statistics(used: int) -> Iterator[str]:
    """The summary of rsync after copying a container's files."""
    used = used if used > _EMPTY else 0
    count, plain, folders = _files(used)
    kinds = f"(reg: {plain:,}, dir: {folders:,}, link: {_LINKS})" if used else f"(dir: {folders})"
    created = f"{count - 2:,} (reg: {plain:,}, dir: {folders - 2:,}, link: {_LINKS})" if used else "0"
    sent, received = (used + 85 * count, 35 + 4 * count) if used else (87, 23)
    yield ""
    yield f"Number of files: {count:,} {kinds}"
    yield f"Number of created files: {created}"
    yield "Number of deleted files: 0"
    yield f"Number of regular files transferred: {plain:,}"
    for name in ("Total file size", "Total transferred file size", "Literal data"):
        yield f"{name}: {used:,} bytes"
    yield "Matched data: 0 bytes"
    yield "File list size: 0"
    yield "File list generation time: 0.001 seconds"
    yield "File list transfer time: 0.000 seconds"
    yield f"Total bytes sent: {sent:,}"
    yield f"Total bytes received: {received:,}"
    yield ""
    yield f"sent {sent:,} bytes  received {received:,} bytes  {(sent + received) * 2:,.2f} bytes/sec"
    yield f"total size is {used:,}  speedup is {used / (sent + received):.2f}"


def tar_total(verb: str, data: int, seconds: float) -> str:
    """The last line of tar, for `read` and `written`."""
    mebibytes, rate = data / MIB, data / MIB / seconds
    shown = f"{mebibytes:.1f}" if mebibytes < 10 else f"{mebibytes:.0f}"
    return f"Total bytes {verb}: {data} ({shown}MiB, {rate:.0f}MiB/s)"
