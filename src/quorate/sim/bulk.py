"""One task that works on many guests: in start order, a few at a time, each guest with a task of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from quorate.sim import ha_manager, migration, power
from quorate.sim.guests import Guest
from quorate.sim.ha_manager import HaManager
from quorate.sim.migration import Migration
from quorate.sim.power import GuestAddress
from quorate.sim.snapshots import state_storage
from quorate.sim.tasks import Task, TaskContext, Work
from quorate.sim.volumes import usable_storage
from quorate.sim.world import World

LAST = 2**31  # where guests without a start order come

StartOne = Callable[[TaskContext, Guest], str | None]
"""Begins the work on one guest and returns its UPID; None if there is nothing to do."""


@dataclass(frozen=True, slots=True)
class GuestTasks:
    """Starts the tasks of single guests on behalf of one user; a guest under HA is left to the HA manager."""

    world: World
    user: str

    def start(self, guest: Guest) -> str:
        if self.world.managed_by_ha(guest) is not None:
            return self._begin(guest, "hastart", ha_manager.pass_on(self._address(guest), "started"))
        if guest.paused:
            return self._begin(guest, "qmresume", power.resume(self._address(guest)))
        return self._begin(guest, _named(guest, "start"), power.start(self._address(guest)))

    def shut_down(self, guest: Guest, timeout: int, *, force_stop: bool) -> str:
        if self.world.managed_by_ha(guest) is not None:
            return self._begin(guest, "hastop", ha_manager.pass_on(self._address(guest), "stopped"))
        work = power.shutdown(self._address(guest), timeout=timeout, force_stop=force_stop)
        if guest.paused:
            work = power.stop(self._address(guest))
        return self._begin(guest, _named(guest, "shutdown"), work)

    def suspend(self, guest: Guest, *, to_disk: bool, storage: str | None = None) -> str:
        if not to_disk:
            return self._begin(guest, "qmpause", power.pause(self._address(guest)))
        place = usable_storage(self.world, guest.node, storage or state_storage(self.world, guest))
        return self._begin(guest, "qmsuspend", power.suspend_to_disk(self._address(guest), place))

    def migrate(self, guest: Guest, target: str, *, online: bool, with_local_disks: bool) -> str:
        if self.world.managed_by_ha(guest) is not None:
            return self._begin(guest, "hamigrate", self._request_move(guest, target))
        wanted = Migration(self._address(guest), target, with_local_disks=with_local_disks)
        wanted.online = wanted.restart = online
        kind = "qmigrate" if guest.kind == "qemu" else "vzmigrate"
        return self._begin(guest, kind, migration.run(wanted))

    def _request_move(self, guest: Guest, target: str) -> Work:
        async def work(context: TaskContext) -> None:
            context.log(f"Requesting HA migration for {guest.word} {guest.vmid} to node {target}")
            self.world.part(HaManager).request_move(guest.sid, "migrate", target)

        return work

    def _address(self, guest: Guest) -> GuestAddress:
        return GuestAddress(self.world, guest.node, guest.kind, guest.vmid)

    def _begin(self, guest: Guest, kind: str, work: Work) -> str:
        return self.world.tasks.start(guest.node, kind, str(guest.vmid), self.user, work)


def _named(guest: Guest, action: str) -> str:
    return f"{'qm' if guest.kind == 'qemu' else 'vz'}{action}"


def start_option(guest: Guest, name: str) -> int | None:
    """A number of the option `startup`, such as `order` or `up`; the bare first value is the order."""
    for part in str(guest.config.get("startup", "")).split(","):
        key, separator, value = part.partition("=")
        key, value = (key, value) if separator else ("order", key)
        if key == name and value.isdecimal():
            return int(value)
    return None


def in_start_order(guests: Iterable[Guest], *, backwards: bool = False) -> list[list[Guest]]:
    """The guests in groups that go together, templates left out."""

    def order(guest: Guest) -> int:
        given = start_option(guest, "order")
        return LAST if given is None else given

    ordered = sorted((guest for guest in guests if not guest.template), key=lambda each: (order(each), each.vmid))
    groups = [list(group) for _, group in groupby(ordered, order)]
    return groups[::-1] if backwards else groups


async def work_through(
    context: TaskContext,
    world: World,
    groups: Sequence[Sequence[Guest]],
    start_one: StartOne,
    failed_text: str,
    *,
    workers: int,
) -> list[int]:
    """Start the tasks of all guests, never more than `workers` at once; the numbers of those that failed."""
    failed: list[int] = []
    for group in groups:
        running: dict[str, Guest] = {}
        for guest in group:
            while len(running) >= workers:
                await context.sleep(1.0)
                failed += _collect(context, world, running, failed_text)
            upid = start_one(context, guest)
            if upid is not None:
                running[upid] = guest
        while running:
            await context.sleep(1.0)
            failed += _collect(context, world, running, failed_text)
    return failed


def _collect(context: TaskContext, world: World, running: dict[str, Guest], failed_text: str) -> list[int]:
    """Forget the tasks that have ended, with a warning for each that went wrong."""
    failed = []
    for upid, guest in list(running.items()):
        task = world.tasks.find(upid)
        if task is None or not task.running:
            del running[upid]
            if task is None or _went_wrong(task):
                reason = "could not query task status" if task is None else task.exitstatus
                context.warn(f"{failed_text} {guest.word} {guest.vmid} failed: {reason}")
                failed.append(guest.vmid)
    return failed


def _went_wrong(task: Task) -> bool:
    return task.failed and not str(task.exitstatus).startswith("WARNINGS")
