"""The work of the power tasks. The endpoints do the synchronous checks."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Self

from pve_simulator.guests.guest import MIB, Guest, Kind
from pve_simulator.guests.start_requirements import require_parts, warn_about_nesting, write_cloudinit
from pve_simulator.guests.status import SAVED_STATE, running_hardware
from pve_simulator.http.routing import Call
from pve_simulator.nodes.tasks import Task, TaskContext, TaskError, Work
from pve_simulator.storage import volumes
from pve_simulator.storage.storages import Storage, Volume
from pve_simulator.world import World, missing_config

# Plausible, but short enough to watch.
SECONDS = {"qemu": {"start": 1.5, "stop": 0.7, "shutdown": 3.0}, "lxc": {"start": 1.0, "stop": 0.5, "shutdown": 2.0}}
_UNSEEN_PART = {"qemu": 1.0, "lxc": 0.2}
"""How much of its start task a guest is not running yet; the task of a container waits until it has booted."""
AGENT_TIMEOUT = 3.0
DEFAULT_SHUTDOWN_TIMEOUT = 60
SECONDS_TO_NOTICE_AN_END = 0.5


Step = Callable[[TaskContext, Guest], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class GuestAddress:
    """The node and vmid where a task looks for its guest."""

    world: World
    node: str
    kind: Kind
    vmid: int

    @classmethod
    def of(cls, call: Call) -> Self:
        """The guest of a path."""
        return cls(call.world, call.node, call.kind, call.vmid)

    @classmethod
    def of_guest(cls, world: World, guest: Guest) -> Self:
        return cls(world, guest.node, guest.kind, guest.vmid)

    def load(self) -> Guest:
        """The guest, or the error of a task that reads its configuration."""
        guest = self.world.find_guest(self.node, self.kind, self.vmid)
        if guest is None:
            raise TaskError(missing_config(self.node, self.kind, self.vmid))
        return guest

    def running(self) -> Guest:
        """The guest, or the error of a task that looks for its process."""
        guest = self.world.find_guest(self.node, self.kind, self.vmid)
        if guest is None:
            raise TaskError(f"unable to find configuration file for VM {self.vmid} on node '{self.node}'")
        return guest


def _with_lock_file(
    address: GuestAddress, step: Step, *tolerated: str, skiplock: bool = True, process: bool = False
) -> Work:
    """Run a step with the guest's lock file held; `process` finds the guest by its process."""

    async def work(context: TaskContext) -> None:
        guest = address.running() if process else address.load()
        async with context.config_lock(guest):
            if not skiplock:
                guest.check_lock(*tolerated)
            await step(context, guest)

    return work


def start(address: GuestAddress, *, skiplock: bool = False) -> Work:
    """Start, resume from disk, or resume after a pause during backup."""

    async def step(context: TaskContext, guest: Guest) -> None:
        _check_startable(guest, skiplock=skiplock)
        if guest.running:  # during a backup: the process exists, paused
            _resume_in_place(guest)
        else:
            await _boot(context, address.world, guest)

    return _with_lock_file(address, step)


def _check_startable(guest: Guest, *, skiplock: bool) -> None:
    if guest.template:
        raise TaskError(f"you can't start a {'vm' if guest.kind == 'qemu' else 'CT'} if it's a template")
    if guest.running and guest.kind == "qemu" and guest.lock == "backup":
        return
    if not skiplock:
        guest.check_lock(*(("suspended",) if guest.kind == "qemu" else ("mounted",)))
    if guest.running:
        raise TaskError(f"{guest.word} {guest.vmid} already running")


async def _boot(context: TaskContext, world: World, guest: Guest) -> None:
    suspended = guest.lock == "suspended"
    write_cloudinit(world, guest, context.log)
    if suspended:
        context.log("Resuming suspended VM")
    require_parts(world, guest, context.log)
    if guest.kind == "lxc":
        warn_about_nesting(context, guest)
    seconds = SECONDS[guest.kind]["start"]
    unseen = seconds * _UNSEEN_PART[guest.kind]
    await context.sleep(unseen)
    guest.start_running(world.clock.now(), world.nodes[guest.node].next_pid())
    await context.sleep(seconds - unseen)
    if suspended:
        _drop_saved_state(world, guest)
        context.log("Resumed VM, removing state")


def _drop_saved_state(world: World, guest: Guest) -> None:
    volid = str(guest.config.get("vmstate", ""))
    for key in ("lock", *SAVED_STATE):
        guest.config.pop(key, None)
    storage = world.storages.get(volid.partition(":")[0])
    if storage is not None:
        storage.remove(guest.node, volid)
    guest.touch()


def stop(address: GuestAddress, *, skiplock: bool = False) -> Work:
    """Stop at once; nothing to do for a stopped VM."""

    async def step(context: TaskContext, guest: Guest) -> None:
        if guest.running:
            if not skiplock:
                guest.check_lock()
            await context.sleep(SECONDS[guest.kind]["stop"])
            guest.stop_running()

    return _with_lock_file(address, step, process=address.kind == "qemu")


def shutdown(address: GuestAddress, *, timeout: int | None, force_stop: bool, skiplock: bool = False) -> Work:
    """Ask the guest to shut down, and give up or kill it after the timeout."""

    async def step(context: TaskContext, guest: Guest) -> None:
        if guest.running:
            if not skiplock:
                guest.check_lock()
            await _ask_to_shut_down(context, guest, timeout=timeout, force_stop=force_stop)

    return _with_lock_file(address, step, process=address.kind == "qemu")


async def _ask_to_shut_down(context: TaskContext, guest: Guest, *, timeout: int | None, force_stop: bool) -> None:
    limit = float(guest.startup("down") or DEFAULT_SHUTDOWN_TIMEOUT if timeout is None else timeout)
    needed = SECONDS[guest.kind]["shutdown"]
    if guest.kind == "qemu" and guest.agent_enabled() and not guest.agent_answers(context.clock.now()):
        await context.sleep(min(AGENT_TIMEOUT, limit))
        context.log(f"QEMU Guest Agent is not running - VM {guest.vmid} qga command 'guest-ping' failed - got timeout")
        limit = max(0.0, limit - AGENT_TIMEOUT)
    if guest.system.obeys_shutdown and needed <= limit:
        await context.sleep(needed)
    else:
        await context.sleep(limit)
        _give_up(context, guest, int(limit), force_stop=force_stop)
    guest.stop_running()


def _give_up(context: TaskContext, guest: Guest, limit: int, *, force_stop: bool) -> None:
    if guest.kind == "lxc":
        if not force_stop:
            raise TaskError(f"command 'lxc-stop -n {guest.vmid} --nokill --timeout {limit}' failed: exit code 1")
    elif force_stop:
        context.log("VM quit/powerdown failed - terminating now with SIGTERM")
    else:
        raise TaskError("VM quit/powerdown failed - got timeout")


def reboot(address: GuestAddress, *, timeout: int | None) -> Work:
    """Shut down and start again, which also applies pending changes.

    The task of a VM ends with its process; PVE's qmeventd starts the VM again a moment later.
    """

    async def work(context: TaskContext) -> None:
        guest = address.load()
        async with context.config_lock(guest):
            if guest.running:
                guest.check_lock()
                await _ask_to_shut_down(context, guest, timeout=timeout, force_stop=False)
            if guest.kind == "lxc":
                await _boot(context, address.world, guest)
        if guest.kind == "qemu":
            unseen = TaskContext(Task(context.task.upid), context.clock)
            address.world.tasks.in_background(_boot_again(unseen, address.world, guest))

    return work


async def _boot_again(context: TaskContext, world: World, guest: Guest) -> None:
    await context.sleep(SECONDS_TO_NOTICE_AN_END)
    with contextlib.suppress(TaskError):  # a failed start shows only in the node's journal
        async with context.config_lock(guest):
            if not guest.running and world.guests.get(guest.vmid) is guest:
                await _boot(context, world, guest)


def reset(address: GuestAddress, *, skiplock: bool = False) -> Work:
    """Reset; the process stays the same."""

    async def step(context: TaskContext, guest: Guest) -> None:
        await context.sleep(0.2)
        guest.touch()

    return _with_lock_file(address, step, skiplock=skiplock, process=True)


def pause(address: GuestAddress, *, skiplock: bool = False) -> Work:
    """Halt the CPUs; the VM stays in memory and counts as running."""

    async def step(context: TaskContext, guest: Guest) -> None:
        await context.sleep(0.3)
        guest.paused = True
        guest.touch()

    return _with_lock_file(address, step, "backup", skiplock=skiplock, process=True)


def resume(address: GuestAddress, *, skiplock: bool = False) -> Work:
    """Resume after a pause or from disk."""

    async def step(context: TaskContext, guest: Guest) -> None:
        if guest.lock == "suspended":
            await _boot(context, address.world, guest)
            return
        await context.sleep(0.2)
        _resume_in_place(guest)

    return _with_lock_file(address, step, "backup", "suspended", skiplock=skiplock)


def _resume_in_place(guest: Guest) -> None:
    guest.paused = False
    guest.touch()


def suspend_to_disk(address: GuestAddress, storage: Storage, *, skiplock: bool = False) -> Work:
    """Write the memory to a volume and stop; the lock `suspended` stays until it resumes."""

    async def step(context: TaskContext, guest: Guest) -> None:
        name = f"suspend-{datetime.fromtimestamp(context.clock.now(), UTC):%Y-%m-%d}"
        volume = state_volume(context, address.world, guest, name, storage.id)
        with guest.hold_lock("suspending"), volumes.free_on_failure(address.world, guest.node, [volume]):
            await context.sleep(2.0)
        context.log("State saved, quitting")
        guest.stop_running()
        guest.config |= {"lock": "suspended", "vmstate": volume.volid, **running_hardware(guest)}
        guest.touch()

    return _with_lock_file(address, step, skiplock=skiplock)


def state_volume(context: TaskContext, world: World, guest: Guest, name: str, storage_id: str) -> Volume:
    """The size of a state volume: twice the memory, plus some for devices."""
    size, used = guest.memory * 2 + 500 * MIB, guest.memory // 2
    volume = volumes.allocate(
        world,
        guest.node,
        storage_id,
        guest.vmid,
        "qemu",
        size,
        fmt="raw",
        name=f"vm-{guest.vmid}-state-{name}",
        used=used,
    )
    context.log(*volumes.allocation_log(world.storages[storage_id], volume))
    return volume


def checkpoint_container(address: GuestAddress) -> Work:
    """Suspending containers needs CRIU, which fails on a standard PVE host."""

    async def step(context: TaskContext, guest: Guest) -> None:
        await context.sleep(0.3)
        raise _checkpoint_error(guest.vmid, "-s -D")

    return _with_lock_file(address, step, skiplock=False)


def restore_container(address: GuestAddress) -> Work:
    """Resuming a container does not check that it exists."""

    async def work(context: TaskContext) -> None:
        await context.sleep(0.3)
        source_line = "../src/lxc/tools/lxc_checkpoint.c: lxc_checkpoint_main: 299"
        context.log(f"lxc-checkpoint: {address.vmid}: {source_line} {address.vmid} is not defined")
        raise _checkpoint_error(address.vmid, "-r --foreground -D")

    return work


def _checkpoint_error(vmid: int, options: str) -> TaskError:
    return TaskError(f"command 'lxc-checkpoint -n {vmid} {options} /var/lib/vz/dump' failed: exit code 1")
