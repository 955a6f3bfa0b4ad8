"""The work behind the power actions, inside their tasks. What is refused at once is up to the endpoints."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from datetime import UTC, datetime

from quorate.sim.guests import Guest, Kind
from quorate.sim.starting import require_parts
from quorate.sim.storages import Storage, StorageFull, Volume
from quorate.sim.tasks import Task, TaskContext, TaskError, Work
from quorate.sim.world import World, missing_config

# Believable, but short enough to watch.
SECONDS = {"qemu": {"start": 1.5, "stop": 0.7, "shutdown": 3.0}, "lxc": {"start": 1.0, "stop": 0.5, "shutdown": 2.0}}
AGENT_TIMEOUT = 3.0
DEFAULT_SHUTDOWN_TIMEOUT = 60
SECONDS_TO_NOTICE_AN_END = 0.5


@dataclass(frozen=True, slots=True)
class GuestAddress:
    """Where a task has to look for its guest; only there may it be missing."""

    world: World
    node: str
    kind: Kind
    vmid: int

    def load(self) -> Guest:
        """The guest as a task that reads its configuration finds it."""
        guest = self.world.find_guest(self.node, self.kind, self.vmid)
        if guest is None:
            raise TaskError(missing_config(self.node, self.kind, self.vmid))
        return guest

    def running(self) -> Guest:
        """The guest as a task that looks for its process finds it."""
        guest = self.world.find_guest(self.node, self.kind, self.vmid)
        if guest is None:
            raise TaskError(f"unable to find configuration file for VM {self.vmid} on node '{self.node}'")
        return guest


def start(address: GuestAddress, *, skiplock: bool = False) -> Work:
    """Start, or wake from disk, or go on after a pause under backup."""

    async def work(context: TaskContext) -> None:
        guest = address.load()
        async with context.config_lock(guest):
            _check_startable(guest, skiplock=skiplock)
            if guest.running:  # under backup: the process is there and waits
                _resume_in_place(guest)
            else:
                await _boot(context, address.world, guest)

    return work


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
    if suspended:
        context.log("Resuming suspended VM")
    require_parts(world, guest, context.log)
    await context.sleep(SECONDS[guest.kind]["start"])
    guest.start_running(world.clock.now(), world.nodes[guest.node].next_pid())
    if suspended:
        _drop_saved_state(world, guest)
        context.log("Resumed VM, removing state")


def _drop_saved_state(world: World, guest: Guest) -> None:
    for key in ("lock", "runningmachine", "runningcpu"):
        guest.config.pop(key, None)
    volid = str(guest.config.pop("vmstate", ""))
    storage = world.storages.get(volid.partition(":")[0])
    if storage is not None:
        storage.remove(guest.node, volid)
    guest.touch()


def stop(address: GuestAddress, *, skiplock: bool = False) -> Work:
    """Pull the plug; nothing to do for a VM that is off."""

    async def work(context: TaskContext) -> None:
        guest = address.running() if address.kind == "qemu" else address.load()
        async with context.config_lock(guest):
            if guest.running:
                await _kill(context, guest, skiplock=skiplock)

    return work


async def _kill(context: TaskContext, guest: Guest, *, skiplock: bool) -> None:
    if not skiplock:
        guest.check_lock()
    await context.sleep(SECONDS[guest.kind]["stop"])
    guest.stop_running()


def shutdown(address: GuestAddress, *, timeout: int | None, force_stop: bool, skiplock: bool = False) -> Work:
    """Ask the guest to shut itself down, and give up or kill it after the timeout."""

    async def work(context: TaskContext) -> None:
        guest = address.running() if address.kind == "qemu" else address.load()
        async with context.config_lock(guest):
            if guest.running:
                if not skiplock:
                    guest.check_lock()
                await _ask_to_shut_down(context, guest, timeout=timeout, force_stop=force_stop)

    return work


async def _ask_to_shut_down(context: TaskContext, guest: Guest, *, timeout: int | None, force_stop: bool) -> None:
    limit = float(_shutdown_timeout(guest) if timeout is None else timeout)
    needed = SECONDS[guest.kind]["shutdown"]
    if guest.kind == "qemu" and guest.agent_enabled() and not guest.agent_answers(context.clock.now()):
        await context.sleep(min(AGENT_TIMEOUT, limit))
        context.log(f"QEMU Guest Agent is not running - VM {guest.vmid} qga command 'guest-ping' failed - got timeout")
        limit = max(0.0, limit - AGENT_TIMEOUT)
    if guest.system.obeys_shutdown and needed <= limit:
        await context.sleep(needed)
    else:
        await context.sleep(limit)
        _give_up(context, guest, force_stop=force_stop)
    guest.stop_running()


def _give_up(context: TaskContext, guest: Guest, *, force_stop: bool) -> None:
    if guest.kind == "lxc":
        if not force_stop:
            raise TaskError(f"command 'lxc-stop -n {guest.vmid} --nokill --timeout 60' failed: exit code 1")
    elif force_stop:
        context.log("VM quit/powerdown failed - terminating now with SIGTERM")
    else:
        raise TaskError("VM quit/powerdown failed - got timeout")


def _shutdown_timeout(guest: Guest) -> int:
    """`down=` of the start-up order, else PVE's minute."""
    for part in str(guest.config.get("startup", "")).split(","):
        key, _, value = part.partition("=")
        if key == "down" and value.isdecimal():
            return int(value)
    return DEFAULT_SHUTDOWN_TIMEOUT


def reboot(address: GuestAddress, *, timeout: int | None) -> Work:
    """Shut down and start again, which also applies the pending changes.

    The task of a VM ends with its process; a service that watches for that end starts the VM again a moment later.
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
    with contextlib.suppress(TaskError):  # what is missing to start it shows only in the node's journal
        async with context.config_lock(guest):
            if not guest.running and world.guests.get(guest.vmid) is guest:
                await _boot(context, world, guest)


def reset(address: GuestAddress, *, skiplock: bool = False) -> Work:
    """The reset button: the same process goes on."""

    async def work(context: TaskContext) -> None:
        guest = address.running()
        async with context.config_lock(guest):
            if not skiplock:
                guest.check_lock()
            await context.sleep(0.2)
            guest.touch()

    return work


def pause(address: GuestAddress, *, skiplock: bool = False) -> Work:
    """Halt the CPUs; the VM stays in memory and counts as running."""

    async def work(context: TaskContext) -> None:
        guest = address.running()
        async with context.config_lock(guest):
            if not skiplock:
                guest.check_lock("backup")
            await context.sleep(0.3)
            guest.paused = True
            guest.touch()

    return work


def resume(address: GuestAddress, *, skiplock: bool = False) -> Work:
    """Go on after a pause, or wake from disk."""

    async def work(context: TaskContext) -> None:
        guest = address.load()
        async with context.config_lock(guest):
            if guest.lock == "suspended":
                await _boot(context, address.world, guest)
                return
            if not skiplock:
                guest.check_lock("backup")
            await context.sleep(0.2)
            _resume_in_place(guest)

    return work


def _resume_in_place(guest: Guest) -> None:
    guest.paused = False
    guest.touch()


def suspend_to_disk(address: GuestAddress, storage: Storage, *, skiplock: bool = False) -> Work:
    """Write the memory to a volume and switch off; the lock `suspended` keeps others away until it wakes."""

    async def work(context: TaskContext) -> None:
        guest = address.load()
        async with context.config_lock(guest):
            if not skiplock:
                guest.check_lock()
            now = context.clock.now()
            volume = _state_volume(guest, storage, now)
            _allocate(storage, guest.node, volume)
            try:
                with guest.locked("suspending"):
                    await _save_memory(context, volume)
            except BaseException:
                storage.remove(guest.node, volume.volid)
                raise
            guest.stop_running()
            guest.config |= {"lock": "suspended", "vmstate": volume.volid, "runningmachine": "pc-i440fx-10.1+pve0"}
            guest.touch()

    return work


def _allocate(storage: Storage, node: str, volume: Volume) -> None:
    try:
        storage.add(node, volume)
    except StorageFull as error:
        raise TaskError(str(error)) from error


def _state_volume(guest: Guest, storage: Storage, now: float) -> Volume:
    day = datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%d")
    name = f"vm-{guest.vmid}-state-suspend-{day}"
    named = storage.disk_name(guest.vmid, 0, "qemu").replace(f"vm-{guest.vmid}-disk-0", name)
    size = guest.memory * 2 + 500 * 1024**2
    return Volume(named, "images", "raw", size, guest.memory // 2, int(now), vmid=guest.vmid)


async def _save_memory(context: TaskContext, volume: Volume) -> None:
    context.log("State is being saved, the VM will be stopped afterwards")
    total = volume.used / 1024**3
    for step in range(1, 5):
        await context.sleep(0.5)
        context.log(f"{total * step / 4:.2f} GiB in {step}s")
    context.log(f"completed saving the VM state in 4s, saved {total:.2f} GiB")


def checkpoint_container(address: GuestAddress, option: str) -> Work:
    """Suspending containers needs CRIU, which fails on a standard PVE host."""

    async def work(context: TaskContext) -> None:
        guest = address.load()
        async with context.config_lock(guest):
            guest.check_lock()
            await context.sleep(0.3)
            directory = f"/var/lib/vz/dump/ckpt-{guest.vmid}"
            raise TaskError(f"command 'lxc-checkpoint {option} -n {guest.vmid} -D {directory}' failed: exit code 1")

    return work
