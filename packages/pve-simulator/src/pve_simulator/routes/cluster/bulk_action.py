"""Power and migration of many guests at once, in start order and a few at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby

from pve_simulator.cluster import ha_manager
from pve_simulator.cluster.ha_manager import HaManager
from pve_simulator.guests import migration, power
from pve_simulator.guests.guest import Guest, task_type
from pve_simulator.guests.migration import Migration
from pve_simulator.guests.power import GuestAddress
from pve_simulator.http.parameters import split_list
from pve_simulator.http.refusals import bad_parameters, failure, forbidden
from pve_simulator.http.routing import Call, route
from pve_simulator.nodes.tasks import TaskContext, TaskError, Work
from pve_simulator.routes.guest.snapshot import state_storage
from pve_simulator.storage.volumes import usable_storage
from pve_simulator.world import World

LAST = 2**31  # the order of guests without a start order

StartTask = Callable[[TaskContext, Guest], str | None]
"""Starts the task of one guest and returns its UPID; None if there is nothing to do."""


def in_start_order(guests: Iterable[Guest], *, backwards: bool = False) -> list[list[Guest]]:
    """The guests grouped by start order, without templates; `backwards` also reverses each group."""

    def order(guest: Guest) -> int:
        number = guest.startup("order")
        return LAST if number is None else number

    chosen = (guest for guest in guests if not guest.template)
    ordered = sorted(chosen, key=lambda each: (order(each), each.vmid), reverse=backwards)
    return [list(group) for _, group in groupby(ordered, order)]


async def work_through(
    context: TaskContext,
    world: World,
    groups: Sequence[Sequence[Guest]],
    start_task: StartTask,
    failed_text: str,
    *,
    workers: int,
) -> list[int]:
    """Run the tasks of all guests, at most `workers` at once; returns the vmids that failed."""
    failed: list[int] = []
    for group in groups:
        running: dict[str, Guest] = {}
        for guest in group:
            while len(running) >= workers:
                await context.sleep(1.0)
                failed += _collect(context, world, running, failed_text)
            upid = start_task(context, guest)
            if upid is not None:
                running[upid] = guest
        while running:
            await context.sleep(1.0)
            failed += _collect(context, world, running, failed_text)
    return failed


def _collect(context: TaskContext, world: World, running: dict[str, Guest], failed_text: str) -> list[int]:
    """Drop the tasks that have ended, with a warning for each failure."""
    failed = []
    for upid, guest in list(running.items()):
        task = world.tasks.find(upid)
        if task is None or not task.running:
            del running[upid]
            if task is None or task.went_wrong:
                reason = "could not query task status" if task is None else task.exitstatus
                context.warn(f"{failed_text} {guest.word} {guest.vmid} failed: {reason}")
                failed.append(guest.vmid)
    return failed


_CLUSTER = "/cluster/bulk-action/guest"
_DEFAULT_WORKERS = 4
_DEFAULT_TIMEOUT = 180


@route("POST /nodes/{node}/startall")
def start_all(call: Call) -> str:
    """Start the guests with onboot; with `force` also the others."""
    _require_on_guests(call, "VM.PowerMgmt", root_first=True)
    chosen = [
        guest
        for guest in _guests_of_node(call)
        if call.params.get("force") or (guest.config.get("onboot") and call.world.managed_by_ha(guest) is None)
    ]
    return call.start_task("startall", "", _on_node(call, chosen, _Actions(call).start, "Starting"))


@route("POST /nodes/{node}/stopall")
def stop_all(call: Call) -> str:
    _require_on_guests(call, "VM.PowerMgmt", root_first=True)
    work = _on_node(call, _guests_of_node(call), _Actions(call).shut_down, "Stopping", backwards=True)
    return call.start_task("stopall", "", work)


@route("POST /nodes/{node}/suspendall")
def suspend_all(call: Call) -> str:
    for privilege in ("VM.PowerMgmt", "VM.Config.Disk"):
        _require_on_guests(call, privilege, root_first=True)
    work = _on_node(call, _guests_of_node(call), _Actions(call).suspend, "Suspending", backwards=True)
    return call.start_task("suspendall", "", work)


@route("POST /nodes/{node}/migrateall")
def migrate_all(call: Call) -> str:
    _require_on_guests(call, "VM.Migrate", root_first=True)
    target = call.params["target"]
    if target == call.node:
        raise bad_parameters({"target": "target is local node."})
    if target not in call.world.nodes:
        raise failure(f"no such cluster node '{target}'")
    work = _on_node(call, _guests_of_node(call), _Actions(call).migrate, "Migrating")
    return call.start_task("migrateall", "", work)


def _on_node(call: Call, guests: list[Guest], start_task: StartTask, word: str, *, backwards: bool = False) -> Work:
    """A node's bulk actions log failures but still end with OK."""

    async def work(context: TaskContext) -> None:
        groups = in_start_order(guests, backwards=backwards)
        await work_through(context, call.world, groups, start_task, word, workers=_workers(call))

    return work


@route(f"POST {_CLUSTER}/start")
def start_guests(call: Call) -> str:
    _require_on_guests(call, "VM.PowerMgmt")
    return _in_cluster(call, "bulk-start", "Starting", "start:", _Actions(call).start)


@route(f"POST {_CLUSTER}/shutdown")
def shut_down_guests(call: Call) -> str:
    _require_on_guests(call, "VM.PowerMgmt")
    return _in_cluster(call, "bulk-shutdown", "Shutting down", "shutdown", _Actions(call).shut_down, backwards=True)


@route(f"POST {_CLUSTER}/suspend")
def suspend_guests(call: Call) -> str:
    _require_on_guests(call, "VM.PowerMgmt")
    if call.params.get("to-disk"):
        _require_on_guests(call, "VM.Config.Disk")
        if "statestorage" in call.params:
            call.require(f"/storage/{call.params['statestorage']}", "Datastore.AllocateSpace")
    return _in_cluster(call, "bulk-suspend", "Suspending", "suspend", _Actions(call).suspend, backwards=True)


@route(f"POST {_CLUSTER}/migrate")
def migrate_guests(call: Call) -> str:
    _require_on_guests(call, "VM.Migrate")
    where = f" to {call.params['target']}"
    return _in_cluster(call, "bulk-migrate", "Migrating", "migrate", _Actions(call).migrate, suffix=where)


def _in_cluster(
    call: Call, kind: str, word: str, failed: str, start_task: StartTask, *, backwards: bool = False, suffix: str = ""
) -> str:
    """A task on the answering node; it fails if any guest does."""
    chosen = _chosen_vmids(call)

    async def work(context: TaskContext) -> None:
        named = ", ".join(str(vmid) for vmid in chosen)
        context.log(f"{word} guests{suffix}: {named}" if chosen else f"{word} all guests{suffix}")
        guests = [guest for guest in call.world.guests.values() if not chosen or guest.vmid in chosen]
        groups = in_start_order(guests)
        groups = groups[::-1] if backwards else groups
        lost = await work_through(context, call.world, groups, start_task, word, workers=_workers(call))
        if lost:
            raise TaskError(f"Some guests failed to {failed} {', '.join(str(vmid) for vmid in lost)}")

    return call.start_local_task(kind, "", work)


class _Actions:
    """Actions on single guests, each in its own task; guests under HA are left to the HA manager."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._in_cluster = call.endpoint.template.startswith(_CLUSTER)

    def start(self, context: TaskContext, guest: Guest) -> str | None:
        if guest.running and not guest.paused:
            return self._skip(context, guest, "already running")
        context.log(f"Starting {guest.word} {guest.vmid}")
        if self._managed(guest):
            return self._begin(guest, "hastart", ha_manager.notify_manager(self._address(guest), "started"))
        if guest.paused:
            return self._begin(guest, "qmresume", power.resume(self._address(guest)))
        return self._begin(guest, task_type(guest.kind, "start"), power.start(self._address(guest)))

    def shut_down(self, context: TaskContext, guest: Guest) -> str | None:
        params = self._call.params
        force_stop = bool(params.get("force-stop", True))
        if not guest.running:
            return self._skip(context, guest, "not running")
        if guest.paused and not force_stop:
            context.warn(f"Skipping {guest.word} {guest.vmid}, resume paused VM before shutdown.")
            return None
        timeout = guest.startup("down") or params.get("timeout", _DEFAULT_TIMEOUT)
        word, limit = ("Shutting down", "Timeout") if self._in_cluster else ("Stopping", "timeout")
        context.log(f"{word} {guest.word} {guest.vmid} ({limit} = {timeout} seconds)")
        if self._managed(guest):
            return self._begin(guest, "hastop", ha_manager.notify_manager(self._address(guest), "stopped"))
        work = power.shutdown(self._address(guest), timeout=timeout, force_stop=force_stop)
        if guest.paused:
            work = power.stop(self._address(guest))
        return self._begin(guest, task_type(guest.kind, "shutdown"), work)

    def suspend(self, context: TaskContext, guest: Guest) -> str | None:
        if guest.kind == "lxc":
            context.warn(f"skipping {guest.vmid}, only VMs can be suspended")
            return None
        if not guest.running:
            if not self._in_cluster:
                context.log(f"VM {guest.vmid} not running, skipping suspension")
            return self._skip(context, guest, "not running")
        context.log(f"Suspending VM {guest.vmid}")
        if self._in_cluster and not self._call.params.get("to-disk"):
            return self._begin(guest, "qmpause", power.pause(self._address(guest)))
        world = self._call.world
        storage = self._call.params.get("statestorage") or state_storage(world, guest)
        work = power.suspend_to_disk(self._address(guest), usable_storage(world, guest.node, storage))
        return self._begin(guest, "qmsuspend", work)

    def migrate(self, context: TaskContext, guest: Guest) -> str | None:
        world, params, target = self._call.world, self._call.params, self._call.params["target"]
        if guest.node == target:
            context.warn(f"{guest.word} {guest.vmid} already on {target}, skipping.")
            return None
        if target not in world.nodes:
            raise TaskError(f"no such cluster node '{target}'")
        context.log(f"Migrating {guest.word} {guest.vmid}")
        if self._managed(guest):
            return self._begin(guest, "hamigrate", self._request_move(guest, target))
        local = bool(params.get("with-local-disks"))
        request = Migration(self._address(guest), target, with_local_disks=local)
        request.online = request.restart = guest.running and (not self._in_cluster or bool(params.get("online")))
        return self._begin(guest, task_type(guest.kind, "migrate"), migration.run(request))

    def _skip(self, context: TaskContext, guest: Guest, why: str) -> str | None:
        """Only cluster-wide actions report guests without work."""
        if self._in_cluster:
            context.warn(f"Skipping {guest.word} {guest.vmid}, {why}.")
        return None

    def _request_move(self, guest: Guest, target: str) -> Work:
        async def work(context: TaskContext) -> None:
            context.log(f"Requesting HA migration for {guest.word} {guest.vmid} to node {target}")
            self._call.world.part(HaManager).request_move(guest.sid, "migrate", target)

        return work

    def _managed(self, guest: Guest) -> bool:
        return self._call.world.managed_by_ha(guest) is not None

    def _address(self, guest: Guest) -> GuestAddress:
        return GuestAddress.of_guest(self._call.world, guest)

    def _begin(self, guest: Guest, kind: str, work: Work) -> str:
        return self._call.world.tasks.start(guest.node, kind, str(guest.vmid), self._call.authid, work)


def _chosen_vmids(call: Call) -> list[int]:
    vms = call.params.get("vms")
    return [int(vmid) for vmid in (vms if isinstance(vms, list) else split_list(vms))]


def _guests_of_node(call: Call) -> list[Guest]:
    chosen = _chosen_vmids(call)
    return [guest for guest in call.world.guests_on(call.node) if not chosen or guest.vmid in chosen]


def _workers(call: Call) -> int:
    return int(call.params.get("max-workers") or call.params.get("maxworkers") or _DEFAULT_WORKERS)


def _require_on_guests(call: Call, privilege: str, *, root_first: bool = False) -> None:
    """Require the privilege on /vms, or on each of the given guests."""
    if root_first and call.allowed("/", privilege):
        return
    chosen = _chosen_vmids(call)
    for vmid in chosen:
        call.require(f"/vms/{vmid}", privilege)
    if not chosen and not call.allowed("/", privilege):
        raise forbidden(f"/, {privilege}")
