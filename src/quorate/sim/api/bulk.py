"""Power and migration of many guests at once: all of a node, or any of the cluster."""

from __future__ import annotations

from quorate.sim.bulk import GuestTasks, StartOne, in_start_order, start_option, work_through
from quorate.sim.config_files import split_list
from quorate.sim.guests import Guest
from quorate.sim.refusals import bad_parameters, failure, forbidden
from quorate.sim.routing import Call, route
from quorate.sim.tasks import TaskContext, TaskError, Work

_CLUSTER = "/cluster/bulk-action/guest"
_DEFAULT_WORKERS = 4
_DEFAULT_TIMEOUT = 180


@route("GET /cluster/bulk-action")
def index(_call: Call) -> list[dict[str, str]]:
    return [{"name": "guest"}]


@route(f"GET {_CLUSTER}")
def guest_index(_call: Call) -> list[dict[str, str]]:
    return [{"name": name} for name in ("start", "shutdown", "migrate", "suspend")]


@route("POST /nodes/{node}/startall")
def start_all(call: Call) -> str:
    """Those that start with the node; with `force` also the others."""
    _require_on_guests(call, "VM.PowerMgmt", root_first=True)
    chosen = [
        guest
        for guest in _guests_of_node(call)
        if call.params.get("force") or (guest.config.get("onboot") and call.world.managed_by_ha(guest) is None)
    ]
    return call.start_task("startall", "", _on_node(call, chosen, _start_one(call), "Starting"))


@route("POST /nodes/{node}/stopall")
def stop_all(call: Call) -> str:
    _require_on_guests(call, "VM.PowerMgmt", root_first=True)
    work = _on_node(call, _guests_of_node(call), _shut_down_one(call, "Stopping"), "Stopping", backwards=True)
    return call.start_task("stopall", "", work)


@route("POST /nodes/{node}/suspendall")
def suspend_all(call: Call) -> str:
    for privilege in ("VM.PowerMgmt", "VM.Config.Disk"):
        _require_on_guests(call, privilege, root_first=True)
    work = _on_node(call, _guests_of_node(call), _suspend_one(call, to_disk=True), "Suspending", backwards=True)
    return call.start_task("suspendall", "", work)


@route("POST /nodes/{node}/migrateall")
def migrate_all(call: Call) -> str:
    _require_on_guests(call, "VM.Migrate", root_first=True)
    target = call.params["target"]
    if target == call.node:
        raise bad_parameters({"target": "target is local node."})
    _check_node(call, target)
    work = _on_node(call, _guests_of_node(call), _migrate_one(call, online=True), "Migrating")
    return call.start_task("migrateall", "", work)


def _on_node(call: Call, guests: list[Guest], start_one: StartOne, word: str, *, backwards: bool = False) -> Work:
    """The nodes' own actions tell what went wrong but end well all the same."""

    async def work(context: TaskContext) -> None:
        groups = in_start_order(guests, backwards=backwards)
        await work_through(context, call.world, groups, start_one, word, workers=_workers(call))

    return work


@route(f"POST {_CLUSTER}/start")
def start_guests(call: Call) -> str:
    _require_on_guests(call, "VM.PowerMgmt")
    return _in_cluster(call, "bulk-start", "Starting", "start:", _start_one(call, warn=True))


@route(f"POST {_CLUSTER}/shutdown")
def shut_down_guests(call: Call) -> str:
    _require_on_guests(call, "VM.PowerMgmt")
    one = _shut_down_one(call, "Shutting down", warn=True)
    return _in_cluster(call, "bulk-shutdown", "Shutting down", "shutdown", one, backwards=True)


@route(f"POST {_CLUSTER}/suspend")
def suspend_guests(call: Call) -> str:
    _require_on_guests(call, "VM.PowerMgmt")
    to_disk = bool(call.params.get("to-disk"))
    if to_disk:
        _require_on_guests(call, "VM.Config.Disk")
        if "statestorage" in call.params:
            call.require(f"/storage/{call.params['statestorage']}", "Datastore.AllocateSpace")
    one = _suspend_one(call, to_disk=to_disk)
    return _in_cluster(call, "bulk-suspend", "Suspending", "suspend", one, backwards=True)


@route(f"POST {_CLUSTER}/migrate")
def migrate_guests(call: Call) -> str:
    _require_on_guests(call, "VM.Migrate")
    one = _migrate_one(call, online=bool(call.params.get("online")))
    where = f" to {call.params['target']}"
    return _in_cluster(call, "bulk-migrate", "Migrating", "migrate", one, suffix=where)


def _in_cluster(
    call: Call, kind: str, word: str, failed: str, start_one: StartOne, *, backwards: bool = False, suffix: str = ""
) -> str:
    """A task on the node that was asked; it fails if any guest does."""
    chosen = _wanted(call)

    async def work(context: TaskContext) -> None:
        named = ", ".join(str(vmid) for vmid in chosen)
        context.log(f"{word} guests{suffix}: {named}" if chosen else f"{word} all guests{suffix}")
        guests = [guest for guest in call.world.guests.values() if not chosen or guest.vmid in chosen]
        groups = in_start_order(guests, backwards=backwards)
        lost = await work_through(context, call.world, groups, start_one, word, workers=_workers(call))
        if lost:
            raise TaskError(f"Some guests failed to {failed} {', '.join(str(vmid) for vmid in lost)}")

    return call.world.tasks.start(call.local_node.name, kind, "", call.authid, work)


def _start_one(call: Call, *, warn: bool = False) -> StartOne:
    tasks = GuestTasks(call.world, call.authid)

    def start_one(context: TaskContext, guest: Guest) -> str | None:
        if guest.running and not guest.paused:
            if warn:
                context.warn(f"Skipping {guest.word} {guest.vmid}, already running.")
            return None
        context.log(f"Starting {guest.word} {guest.vmid}")
        return tasks.start(guest)

    return start_one


def _shut_down_one(call: Call, word: str, *, warn: bool = False) -> StartOne:
    tasks = GuestTasks(call.world, call.authid)
    force_stop = bool(call.params.get("force-stop", True))

    def shut_down_one(context: TaskContext, guest: Guest) -> str | None:
        if not guest.running:
            if warn:
                context.warn(f"Skipping {guest.word} {guest.vmid}, not running.")
            return None
        if guest.paused and not force_stop:
            context.warn(f"Skipping {guest.word} {guest.vmid}, resume paused VM before shutdown.")
            return None
        timeout = start_option(guest, "down") or call.params.get("timeout", _DEFAULT_TIMEOUT)
        context.log(f"{word} {guest.word} {guest.vmid} (timeout = {timeout} seconds)")
        return tasks.shut_down(guest, timeout, force_stop=force_stop)

    return shut_down_one


def _suspend_one(call: Call, *, to_disk: bool) -> StartOne:
    tasks = GuestTasks(call.world, call.authid)

    def suspend_one(context: TaskContext, guest: Guest) -> str | None:
        if guest.kind == "lxc":
            context.warn(f"skipping {guest.vmid}, only VMs can be suspended")
            return None
        if not guest.running:
            context.warn(f"Skipping VM {guest.vmid}, not running.")
            return None
        context.log(f"Suspending VM {guest.vmid}")
        return tasks.suspend(guest, to_disk=to_disk, storage=call.params.get("statestorage"))

    return suspend_one


def _migrate_one(call: Call, *, online: bool) -> StartOne:
    tasks = GuestTasks(call.world, call.authid)
    target = call.params["target"]

    def migrate_one(context: TaskContext, guest: Guest) -> str | None:
        if guest.node == target:
            context.warn(f"{guest.word} {guest.vmid} already on {target}, skipping.")
            return None
        if target not in call.world.nodes:
            raise TaskError(f"no such cluster node '{target}'")
        context.log(f"Migrating {guest.word} {guest.vmid}")
        local = bool(call.params.get("with-local-disks"))
        return tasks.migrate(guest, target, online=online and guest.running, with_local_disks=local)

    return migrate_one


def _wanted(call: Call) -> list[int]:
    vms = call.params.get("vms")
    return [int(vmid) for vmid in (vms if isinstance(vms, list) else split_list(vms))]


def _guests_of_node(call: Call) -> list[Guest]:
    wanted = _wanted(call)
    return [guest for guest in call.world.guests_on(call.node) if not wanted or guest.vmid in wanted]


def _workers(call: Call) -> int:
    return int(call.params.get("max-workers") or call.params.get("maxworkers") or _DEFAULT_WORKERS)


def _check_node(call: Call, target: str) -> None:
    if target not in call.world.nodes:
        raise failure(f"no such cluster node '{target}'")


def _require_on_guests(call: Call, privilege: str, *, root_first: bool = False) -> None:
    """The right on everything, or on each of the named guests."""
    if root_first and call.allowed("/", privilege):
        return
    wanted = _wanted(call)
    for vmid in wanted:
        call.require(f"/vms/{vmid}", privilege)
    if not wanted and not call.allowed("/", privilege):
        raise forbidden(f"/, {privilege}")
