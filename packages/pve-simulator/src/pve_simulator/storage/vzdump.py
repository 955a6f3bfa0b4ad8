"""Backups of guests: one vzdump job in its task, with the log that PVE writes."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pve_simulator.clock import log_time
from pve_simulator.cluster.quorum import check_writable
from pve_simulator.guests import drives
from pve_simulator.guests.guest import MIB, Guest, size_of_drive
from pve_simulator.guests.power import SECONDS
from pve_simulator.guests.tool_output import tar_total
from pve_simulator.http.refusals import Refusal
from pve_simulator.nodes.tasks import TaskContext, TaskError, Work
from pve_simulator.storage import archives, retention, volume_names, volumes
from pve_simulator.storage.archives import Archive, BackupLog, size_text, transfer_steps
from pve_simulator.storage.storages import Storage, Volume
from pve_simulator.world import World

_INTERRUPTED = "interrupted by signal"
_LOCK_POLL_SECONDS = 3.0
_NOTE_VARIABLE = re.compile(r"\{\{(cluster|guestname|node|vmid)\}\}")
_COMPRESSOR = {"zstd": "zstd --threads=1", "gzip": "gzip --rsyncable", "lzo": "lzop", "1": "lzop"}


@dataclass(frozen=True, slots=True)
class Job:
    """One run of vzdump on one node."""

    world: World
    node: str
    user: str
    command: str
    options: Mapping[str, Any]
    vmids: tuple[int, ...]
    elsewhere: tuple[int, ...] = ()
    """Requested guests on other nodes."""

    @property
    def compress(self) -> str:
        return str(self.options.get("compress", "0"))


def run(job: Job) -> Work:
    """The work of the task: all guests in order; a failure does not stop the others."""

    async def work(context: TaskContext) -> None:
        log = BackupLog(context)
        storage = _backup_storage(job)
        await _wait_for_lock(job, context, log)
        log.info(f"starting new backup job: {job.command}")
        if job.elsewhere:
            log.info(f"skip external VMs: {', '.join(str(vmid) for vmid in job.elsewhere)}")
        try:
            failed = await _back_up_all(job, context, log, storage)
        except (asyncio.CancelledError, TaskError) as error:
            text = str(error) if isinstance(error, TaskError) else _INTERRUPTED
            log.error(f"Backup job failed - {text}")
            raise TaskError(text) from error
        log.info(f"Backup job finished {'with errors' if failed else 'successfully'}")
        if failed:
            raise TaskError("job errors")

    return work


def _backup_storage(job: Job) -> Storage:
    """The backup storage, or the list of its problems."""
    storage_id = str(job.options.get("storage", "local"))
    problems = []
    try:
        volumes.usable_storage(job.world, job.node, storage_id)
    except TaskError as error:
        problems.append(f"could not activate storage '{storage_id}': {error}")
    storage = job.world.storages.get(storage_id)
    unknown = f"could not get storage information for '{storage_id}'"
    if storage is None:
        problems.append(f"{unknown}: storage '{storage_id}' does not exist")
    elif "backup" not in storage.content:
        problems.append(f"{unknown}: can't use storage '{storage_id}' for backups - wrong content type")
    if storage is None or problems:
        raise TaskError("\n".join(problems))
    return storage


async def _wait_for_lock(job: Job, context: TaskContext, log: BackupLog) -> None:
    """Wait for the node's vzdump lock: one job at a time."""
    waited, limit = 0.0, float(job.options.get("lockwait", 180)) * 60
    while _is_locked(job, context):
        if waited == 0.0:
            log.info("trying to get global lock - waiting...")
        if waited >= limit:
            log.error("can't acquire lock '/var/run/vzdump.lock' - got timeout")
            raise TaskError("can't acquire lock '/var/run/vzdump.lock' - got timeout")
        await context.sleep(_LOCK_POLL_SECONDS)
        waited += _LOCK_POLL_SECONDS
    if waited:
        log.info("got global lock")


def _is_locked(job: Job, context: TaskContext) -> bool:
    for task in job.world.tasks.active(kind="vzdump"):
        if task is context.task:
            return False
        if task.upid.node == job.node:
            return True
    return False


async def _back_up_all(job: Job, context: TaskContext, log: BackupLog, storage: Storage) -> bool:
    failed = False
    for vmid in job.vmids:
        if not _permitted(job, vmid):
            continue
        try:
            await _back_up(job, context, log, storage, vmid)
        except (TaskError, Refusal) as error:
            failed = True
            text = str(error).strip()
            log.error(f"Backup of VM {vmid} failed - {text}")
            log.info(f"Failed at {log_time(context.clock.now())}")
    return failed


def _permitted(job: Job, vmid: int) -> bool:
    """Whether the caller may back up the guest: explicitly listed ones must be permitted, others are skipped."""
    if job.user == "root@pam" or job.world.access.allowed(job.user, f"/vms/{vmid}", "VM.Backup"):
        return True
    if job.options.get("all"):
        return False
    raise TaskError(f"403 Permission check failed (/vms/{vmid}, VM.Backup)")


async def _back_up(job: Job, context: TaskContext, log: BackupLog, storage: Storage, vmid: int) -> None:
    started = context.clock.now()
    guest = job.world.guests.get(vmid)
    if guest is None or guest.node != job.node:
        raise TaskError(f"unable to find VM '{vmid}'")
    log.info(f"Starting Backup of VM {vmid} ({guest.kind})")
    log.info(f"Backup started at {log_time(started)}")
    log.info(f"status = {guest.status}")
    check_writable(job.world, vmid)
    with guest.hold_lock("backup"):
        volume = await _Dump(job, context, log, storage, guest).write()
    _finish(job, log, storage, guest, volume)
    log.info(f"Finished Backup of VM {vmid} ({_duration(context.clock.now() - started)})")
    log.info(f"Backup finished at {log_time(context.clock.now())}")


def _duration(seconds: float) -> str:
    whole = int(seconds)
    return f"{whole // 3600:02}:{whole // 60 % 60:02}:{whole % 60:02}"


class _Dump:
    """The backup of one guest."""

    def __init__(self, job: Job, context: TaskContext, log: BackupLog, storage: Storage, guest: Guest) -> None:
        self._job = job
        self._context = context
        self._log = log
        self._storage = storage
        self._guest = guest
        self._was_running = guest.running
        self._was_paused = guest.paused
        self._interrupted_at = 0.0

    async def write(self) -> Volume:
        mode = str(self._job.options.get("mode", "snapshot")) if self._was_running else "stop"
        if mode == "snapshot":
            mode = self._prepare_snapshot()
        self._log.info(f"backup mode: {mode}")
        if self._job.options.get("bwlimit"):
            self._log.info(f"bandwidth limit: {self._job.options['bwlimit']} KiB/s")
        self._log.info(f"ionice priority: {self._job.options.get('ionice', 7)}")
        if mode != "snapshot":
            self._describe()
        try:
            await self._interrupt_guest(mode)
            return await self._copy(mode)
        finally:
            self._resume_guest()

    def _prepare_snapshot(self) -> str:
        """Snapshot mode of a container needs storages with snapshots; otherwise PVE falls back to suspend mode."""
        self._describe()
        if self._guest.kind == "qemu" or all(self._has_snapshots(drive) for drive in self._drives()):
            return "snapshot"
        self._log.info("mode failure - some volumes do not support snapshots")
        self._log.info("trying 'suspend' mode instead")
        return "suspend"

    def _has_snapshots(self, drive: drives.Drive) -> bool:
        storage = self._job.world.storages.get(drive.storage)
        name = drive.volid.partition(":")[2]
        return storage is not None and volume_names.has_feature(storage, name, volume_names.format_of(name), "snapshot")

    def _drives(self) -> list[drives.Drive]:
        return [each for each in drives.disks(self._guest.config) if archives.included(self._guest.kind, each)]

    def _describe(self) -> None:
        """Log the guest and its included disks."""
        guest, log = self._guest, self._log
        if guest.kind == "lxc":
            log.info(f"CT Name: {guest.name}")
        elif "name" in guest.config:
            log.info(f"VM Name: {guest.name}")
        for drive in drives.disks(guest.config):
            included = archives.included(guest.kind, drive)
            if guest.kind == "qemu":
                _describe_disk(log, drive, included=included)
            else:
                kind = "bind mount point" if drive.is_bind_mount else "volume mount point"
                where = f"{drive.key} ('{_mount_path(drive)}')"
                reason = "not a volume" if drive.is_bind_mount else "disabled"
                excluded = f"excluding {kind} {where} from backup ({reason})"
                log.info(f"including mount point {where} in backup" if included else excluded)

    async def _interrupt_guest(self, mode: str) -> None:
        guest = self._guest
        if not self._was_running or mode == "snapshot":
            return
        self._interrupted_at = self._context.clock.now()
        if mode == "stop":
            self._log.info("stopping virtual guest")
            await self._context.sleep(SECONDS[guest.kind]["shutdown"])
            guest.stop_running()
        elif guest.kind == "lxc":
            await self._sync_suspended()
        else:
            self._log.info("suspending guest")
            await self._context.sleep(0.3)
            guest.paused = True
            guest.touch()

    async def _sync_suspended(self) -> None:
        """Copy the files of a running container twice; it is suspended only for the second pass."""
        name, _ = archives.backup_name(self._storage, "lxc", self._guest.vmid, self._interrupted_at, "0")
        path = volumes.path_of(self._storage, name).removesuffix(".tar")
        where = f"/proc/{self._guest.pid}/root/ to {path}.tmp"
        data = archives.pack(self._job.world, self._guest).data
        self._log.info(f"starting first sync {where}")
        await self._context.sleep(0.3)
        self._log.info(f"first sync finished - transferred {data / 1e6:.2f}M bytes in 0s")
        self._log.info("suspending guest")
        self._log.info(f"starting final sync {where}")
        self._log.info("final sync finished - transferred 0 bytes in 0s")
        self._log.info("resuming guest")
        self._log.info("guest is online again after <1 seconds")

    def _resume_guest(self) -> None:
        guest = self._guest
        if self._was_running and not guest.running:
            self._log.info("restarting vm")
            self._restart()
            self._log.info(f"guest is online again after {self._downtime} seconds")
        guest.paused = self._was_paused
        guest.touch()

    @property
    def _downtime(self) -> int:
        return int(self._context.clock.now() - self._interrupted_at)

    async def _copy(self, mode: str) -> Volume:
        world, guest = self._job.world, self._guest
        name, fmt = archives.backup_name(
            self._storage, guest.kind, guest.vmid, self._context.clock.now(), self._job.compress
        )
        volid = f"{self._storage.id}:{name}"
        if self._storage.volume(guest.node, volid) is not None:
            raise TaskError(f"backup '{volid}' already exists")
        if self._storage.type == "pbs":
            self._log.info(f"creating Proxmox Backup Server archive '{name.removeprefix('backup/')}'")
        elif guest.kind == "lxc" and mode == "snapshot":
            self._log.info("create storage snapshot 'vzdump'")
        path = volumes.path_of(self._storage, name)
        if self._storage.type != "pbs":
            self._log.info(f"creating vzdump archive '{path}'")
        archive = archives.pack(world, guest)
        await (self._copy_vm(archive, path) if guest.kind == "qemu" else self._copy_container(archive))
        volume = self._store(volid, fmt, archive)
        if self._storage.type != "pbs":
            self._log.info(f"archive file size: {_file_size(volume.size)}")
        if guest.kind == "lxc" and mode == "snapshot":
            self._log.info("cleanup temporary 'vzdump' snapshot")
        return volume

    async def _copy_vm(self, archive: Archive, path: str) -> None:
        total = archives.total_size(archive)
        if not archive.drives():
            self._copy_without_disks(path)
            return
        self._check_fleecing()
        if not self._guest.running:
            self._log.info("starting kvm to execute backup task")
            self._restart()
        elif self._guest.agent_answers(self._context.clock.now()):
            self._log.info("issuing guest-agent 'fs-freeze' command")
            self._log.info("issuing guest-agent 'fs-thaw' command")
        self._log.info("starting backup via QMP command")
        self._log.info(f"started backup task '{drives.new_uuid(self._job.world, self._guest.vmid, 'backup')}'")
        if self._was_running:
            again = f" after {self._downtime} seconds" if self._interrupted_at else ""
            self._log.info(f"resuming VM again{again}")
            self._guest.paused = self._was_paused
        elapsed = await self._transfer(total, archive.data)
        if total > archive.data:
            sparse = total - archive.data
            self._log.info(f"backup is sparse: {size_text(sparse, 2)} ({sparse * 100 // total}%) total zero data")
        rate = size_text(total // max(1, elapsed))
        self._log.info(f"transferred {size_text(total, 2)} in {elapsed} seconds ({rate}/s)")
        if not self._guest.running:
            self._log.info("stopping kvm after backup task")

    def _check_fleecing(self) -> None:
        """Check the fleecing storage, which holds old data during the backup."""
        options = str(self._job.options.get("fleecing", "")).split(",")
        named = [option.removeprefix("storage=") for option in options if option.startswith("storage=")]
        if named and {"1", "enabled=1"} & set(options):
            volumes.usable_storage(self._job.world, self._job.node, named[0])

    def _restart(self) -> None:
        """Start a VM again that was stopped for its backup, as soon as the backup has started."""
        if self._was_running:
            guest = self._guest
            guest.start_running(self._context.clock.now(), self._job.world.nodes[guest.node].next_pid())
            guest.paused = self._was_paused

    async def _transfer(self, total: int, data: int) -> int:
        """Transfer the data with PVE's progress lines."""
        elapsed = 0
        for step in transfer_steps(total):
            await self._context.sleep(step.seconds)
            elapsed += step.seconds
            done = total * step.percent // 100
            read, written = total // step.of_seconds, data // step.of_seconds
            self._log.info(
                f"{step.percent:>3}% ({size_text(done)} of {size_text(total)}) in {elapsed}s,"
                f" read: {size_text(read)}/s, write: {size_text(written)}/s"
            )
        return elapsed

    def _copy_without_disks(self, path: str) -> None:
        self._log.info("backup contains no disks")
        self._log.info("starting diskless backup")
        base = path.partition(".")[0]
        target = f"exec:{_COMPRESSOR.get(self._job.compress, 'cat')} > {base}.vma.dat"
        self._log.info(f"/usr/bin/vma create -v -c {base}.tmp/qemu-server.conf {target}")

    async def _copy_container(self, archive: Archive) -> None:
        seconds = max(1, sum(step.seconds for step in transfer_steps(archive.data)))
        await self._context.sleep(seconds)
        if self._storage.type == "pbs":
            self._log.info("Uploaded backup catalog (1.021 MiB)")
            self._log.info(f"Duration: {seconds:.2f}s")
            return
        self._log.info(tar_total("written", archive.data, seconds))

    def _store(self, volid: str, fmt: str, archive: Archive) -> Volume:
        compress = "zstd" if self._storage.type == "pbs" else self._job.compress
        size = archives.packed_size(archive, compress)
        now = int(self._context.clock.now())
        volume = Volume(volid, "backup", fmt, size, size, now, vmid=self._guest.vmid, archive=archive)
        volume.ctime = archives.made_at(volume)
        try:
            self._storage.add(self._guest.node, volume)
        except TaskError as error:
            raise TaskError(self._describe_full_storage()) from error
        return volume

    def _describe_full_storage(self) -> str:
        """Log the complaint of the program that could not write; returns what vzdump makes of it."""
        full = "No space left on device"
        if self._guest.kind == "qemu":
            if self._job.compress != "0":
                self._log.info(f"zstd: error 70 : Write error : cannot write block : {full} ")
            failure = "vma_queue_write: write error - Broken pipe"
            self._log.error(failure)
            self._log.info("aborting backup job")
            return failure
        self._log.info(f"tar: -: Cannot write: {full}")
        self._log.info("tar: Error is not recoverable: exiting now")
        return "command 'set -o pipefail && tar cpf -' failed: exit code 2"


def _describe_disk(log: BackupLog, drive: drives.Drive, *, included: bool) -> None:
    if included:
        log.info(f"include disk '{drive.key}' '{drive.volid}' {volumes.size_text(size_of_drive(drive.text))}")
    else:
        log.info(f"exclude disk '{drive.key}' '{drive.volid}' (backup=no)")


def _mount_path(drive: drives.Drive) -> str:
    if drive.key == "rootfs":
        return "/"
    return next((part[3:] for part in drive.text.split(",") if part.startswith("mp=")), "")


def _file_size(size: int) -> str:
    if size < MIB:
        return f"{size // 1024}KB"
    return f"{size // MIB}MB" if size < 1024 * MIB else f"{size / MIB / 1024:.2f}GB"


def _finish(job: Job, log: BackupLog, storage: Storage, guest: Guest, volume: Volume) -> None:
    """Set notes and protection, and prune older backups."""
    template = job.options.get("notes-template")
    if template:
        log.info("adding notes to backup")
        storage.annotate(volume, notes=notes(job.world, guest, str(template)))
    if job.options.get("protected"):
        log.info("marking backup as protected")
        storage.annotate(volume, protected=True)
    setting = job.options.get("prune-backups", storage.config.get("prune-backups"))
    if setting is None or not job.options.get("remove", True):
        return
    keep = retention.parse(str(setting))
    if "keep-all" in keep:
        return
    shown = ", ".join(f"{key}={value}" for key, value in keep.items())
    log.info(f"prune older backups with retention: {shown}")
    removed = 0
    for old, mark in retention.mark_backups(storage, guest.node, keep, vmid=guest.vmid, kind=guest.kind):
        if mark == "remove":
            log.info(f"removing backup '{old.volid}'")
            storage.remove(guest.node, old.volid)
            removed += 1
    log.info(f"pruned {removed} backup(s) not covered by keep-retention policy")


def notes(world: World, guest: Guest, template: str) -> str:
    """Render the notes template for a guest."""
    values = {"cluster": world.name, "guestname": guest.name, "node": guest.node, "vmid": str(guest.vmid)}
    filled = _NOTE_VARIABLE.sub(lambda match: values[match[1]], template)
    return filled.replace("\\n", "\n").replace("\\\\", "\\")
