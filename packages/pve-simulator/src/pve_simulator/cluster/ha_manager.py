"""The HA manager: every few seconds it compares requested and actual states and starts the tasks to reach them.

It starts guests that should run, recovers those of dead nodes elsewhere (if all of their disks are shared), and
migrates on request. The tasks belong to root@pam, as in PVE.
"""

from __future__ import annotations

from dataclasses import dataclass

from pve_simulator.access.directory import ROOT
from pve_simulator.cluster.ha_rules import HaRules
from pve_simulator.guests import migration, power
from pve_simulator.guests.guest import Guest
from pve_simulator.guests.local_volumes import local_volumes
from pve_simulator.guests.migration import Migration
from pve_simulator.guests.power import GuestAddress
from pve_simulator.nodes.tasks import TaskContext, TaskError, Work
from pve_simulator.world import HaResource, World

TICK_SECONDS = 5.0
FENCE_SECONDS = 60.0

_TASKS = {
    "qemu": {"start": "qmstart", "stop": "qmstop", "shutdown": "qmshutdown", "migrate": "qmigrate"},
    "lxc": {"start": "vzstart", "stop": "vzstop", "shutdown": "vzshutdown", "migrate": "vzmigrate"},
}
_SETTLED = {"started": ("started", "started"), "stopped": ("stopped", "stopped"), "disabled": ("stopped", "disabled")}


@dataclass(slots=True)
class Move:
    """A request to move a resource to another node."""

    mode: str  # migrate or relocate
    target: str


@dataclass(slots=True)
class PendingTask:
    """A task that the manager started for a resource."""

    task: str
    upid: str
    target: str = ""


class HaManager:
    """Manages the HA resources of a world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.rules = HaRules(nodes_have_affinity=world.version_at_least(9, 2))
        self.resource_mode: str | None = None  # set while HA is disarmed
        self.active = any(each.crm_state is not None for each in world.ha.values())  # whether the manager is active
        self._moves: dict[str, Move] = {}
        self._pending: dict[str, PendingTask] = {}
        self._failures: dict[str, int] = {}
        self._given_up: set[tuple[str, str]] = set()  # automatic moves that failed once
        self._hard_stops: set[str] = set()  # to be stopped instead of shut down
        self._offline_since: dict[str, float] = {}
        self._awake = False
        world.on_guest_removed.append(self._forget_guest)

    @property
    def master(self) -> str:
        return self._world.first_online().name

    def wake(self) -> None:
        """Manage the resources until there are none."""
        if not self._awake and self._world.ha:
            self._awake = True
            self._world.tasks.in_background(self._work())

    def request_state(self, resource: HaResource, state: str, *, stop_now: bool = False) -> None:
        """Set the requested state; the manager does the rest."""
        resource.state = state
        resource.given["state"] = state
        if state == "ignored":
            self._settle(resource, "ignored", "ignored")
        self._failures.pop(resource.sid, None)
        if stop_now:
            self._hard_stops.add(resource.sid)
        else:
            self._hard_stops.discard(resource.sid)
        self.wake()

    def request_move(self, sid: str, mode: str, target: str) -> list[dict[str, str]]:
        """Queue a move with the resources that must follow; returns what blocks it."""
        dependent, blocking = self.motion_of(sid)
        if blocking.get(target):
            return blocking[target]
        for each in (sid, *dependent):
            self._moves[each] = Move(mode, target)
        self.wake()
        return []

    def motion_of(self, sid: str) -> tuple[list[str], dict[str, list[dict[str, str]]]]:
        """The resources that move along, and what blocks which node."""
        resource = self._world.ha[sid]
        together, apart = self.rules.partners(sid)
        dependent = [each for each in together if self._is_managed(each)]
        blocking: dict[str, list[dict[str, str]]] = {}
        for node in self._online_nodes():
            found = [] if self._is_preferred_node(resource, node) else [{"sid": sid, "cause": "node-affinity"}]
            for each in apart:
                guest = self.guest_of(each)
                if guest is not None and guest.node == node and self._is_managed(each):
                    found.append({"sid": each, "cause": "resource-affinity"})
            if found:
                blocking[node] = found
        return dependent, blocking

    def guest_of(self, sid: str) -> Guest | None:
        guest = self._world.guests.get(int(sid.partition(":")[2]))
        return guest if guest is not None and guest.sid == sid else None

    def forget(self, sid: str) -> None:
        """Stop managing a resource."""
        for kept in (self._moves, self._pending, self._failures):
            kept.pop(sid, None)
        guest = self.guest_of(sid)
        if guest is not None:
            guest.touch()

    def _forget_guest(self, vmid: int) -> None:
        for sid in (f"vm:{vmid}", f"ct:{vmid}"):
            self.rules.drop_resource(sid)
            self.forget(sid)

    async def _work(self) -> None:
        try:
            while self._world.ha:
                await self._world.clock.sleep(TICK_SECONDS)
                self._tick()
        finally:
            self._awake = False
            self.active = False

    def _tick(self) -> None:
        if not self._world.quorate or self.resource_mode is not None:
            return
        self.active = bool(self._world.ha)
        self._watch_nodes()
        for resource in list(self._world.ha.values()):
            guest = self.guest_of(resource.sid)
            if guest is not None and resource.state != "ignored":
                self._manage(resource, guest)

    def _watch_nodes(self) -> None:
        now = self._world.clock.now()
        for node in self._world.nodes.values():
            if node.online:
                self._offline_since.pop(node.name, None)
            else:
                self._offline_since.setdefault(node.name, now)

    def _manage(self, resource: HaResource, guest: Guest) -> None:
        if not self._world.nodes[guest.node].online:
            self._recover(resource, guest)
            return
        if not self._task_done(resource):
            return
        if resource.crm_state == "error" and resource.state != "disabled":
            return
        if guest.lock is not None or self._world.tasks.active(target=str(guest.vmid)):
            return  # another task holds it
        if self._move(resource, guest) or self._power(resource, guest):
            return
        self._settle(resource, *_SETTLED[_requested_state(resource)])

    def _task_done(self, resource: HaResource) -> bool:
        """Whether the last task of this resource has ended; records a failure."""
        pending = self._pending.get(resource.sid)
        if pending is None:
            return True
        task = self._world.tasks.find(pending.upid)
        if task is not None and task.running:
            return False
        del self._pending[resource.sid]
        failed = task is None or (task.failed and not str(task.exitstatus).startswith("WARNINGS"))
        if not failed:
            self._failures.pop(resource.sid, None)
        elif pending.task == "start":
            self._failures[resource.sid] = self._failures.get(resource.sid, 0) + 1
            if self._failures[resource.sid] > resource.max_restart:
                self._settle(resource, "error", "error")
        elif pending.task == "migrate":
            self._given_up.add((resource.sid, pending.target))
        return True

    def _move(self, resource: HaResource, guest: Guest) -> bool:
        move = self._moves.pop(resource.sid, None) or self._failback(resource, guest)
        if move is None or move.target == guest.node:
            return False
        target = self._world.nodes.get(move.target)
        if target is None or not target.online:
            return False
        wanted = Migration(self._address(guest), move.target, with_local_disks=True)
        wanted.online = guest.kind == "qemu" and guest.running
        wanted.restart = guest.kind == "lxc" and guest.running
        if move.mode == "relocate" and guest.running:
            self._stop(resource, guest, "relocate", "relocate")
            self._moves[resource.sid] = move
            return True
        self._start(resource, guest, "migrate", migration.run(wanted), move.target)
        self._settle(resource, move.mode, move.mode)
        return True

    def _failback(self, resource: HaResource, guest: Guest) -> Move | None:
        """Move back to a preferred node, if the resource has failback enabled."""
        if (
            not resource.failback
            or _requested_state(resource) != "started"
            or self._is_preferred_node(resource, guest.node)
        ):
            return None
        for node in self._online_nodes():
            if self._is_preferred_node(resource, node) and (resource.sid, node) not in self._given_up:
                return Move("migrate", node)
        return None

    def _is_preferred_node(self, resource: HaResource, node: str) -> bool:
        """Whether the node is among the best that the rules allow for the resource."""
        wanted = self.rules.node_priorities(resource.sid, resource.group)
        if wanted is None:
            return True
        priorities, strict = wanted
        online = {name: value for name, value in priorities.items() if name in self._online_nodes()}
        if not online:
            return not strict
        return online.get(node) == max(online.values()) if resource.failback else node in online or not strict

    def _power(self, resource: HaResource, guest: Guest) -> bool:
        requested = _requested_state(resource)
        if requested == "started" and not guest.running:
            self._start(resource, guest, "start", power.start(self._address(guest)))
            self._settle(resource, "started", "starting")
            return True
        if requested != "started" and guest.running:
            self._stop(resource, guest, "request_stop", "stopping")
            return True
        return False

    def _stop(self, resource: HaResource, guest: Guest, crm_state: str, shown: str) -> None:
        if guest.paused or resource.sid in self._hard_stops:
            self._hard_stops.discard(resource.sid)
            task, work = "stop", power.stop(self._address(guest))
        else:
            task, work = "shutdown", power.shutdown(self._address(guest), timeout=None, force_stop=True)
        self._start(resource, guest, task, work)
        self._settle(resource, crm_state, shown)

    def _start(self, resource: HaResource, guest: Guest, task: str, work: Work, target: str = "") -> None:
        upid = self._world.tasks.start(guest.node, _TASKS[guest.kind][task], str(guest.vmid), ROOT, work)
        self._pending[resource.sid] = PendingTask(task, upid, target)

    def _recover(self, resource: HaResource, guest: Guest) -> None:
        """Fence the guest of a dead node after a while, then recover it on a live one."""
        self._pending.pop(resource.sid, None)
        since = self._offline_since.get(guest.node, self._world.clock.now())
        if self._world.clock.now() - since < FENCE_SECONDS:
            self._settle(resource, "fence", "fence")
            return
        target = self._select_recovery_node(resource)
        if target is None or any(not volume.is_cloudinit for volume in local_volumes(self._world, guest)):
            self._settle(resource, "recovery", "recovery")
            return
        guest.stop_running()
        guest.config.pop("lock", None)
        guest.node = target
        self._settle(resource, "started", "starting")

    def _select_recovery_node(self, resource: HaResource) -> str | None:
        nodes = self._online_nodes()
        return next((node for node in nodes if self._is_preferred_node(resource, node)), None)

    def _settle(self, resource: HaResource, crm_state: str, shown: str) -> None:
        if (resource.crm_state, resource.shown_state) != (crm_state, shown):
            resource.crm_state, resource.shown_state = crm_state, shown
            guest = self.guest_of(resource.sid)
            if guest is not None:
                guest.touch()

    def _online_nodes(self) -> list[str]:
        return [node.name for node in self._world.nodes.values() if node.online]

    def _is_managed(self, sid: str) -> bool:
        resource = self._world.ha.get(sid)
        return resource is not None and resource.state != "ignored"

    def _address(self, guest: Guest) -> GuestAddress:
        return GuestAddress(self._world, guest.node, guest.kind, guest.vmid)


def _requested_state(resource: HaResource) -> str:
    return "started" if resource.state == "enabled" else resource.state


def notify_manager(address: GuestAddress, state: str, *, stop_now: bool = False) -> Work:
    """The task that notifies the manager; it ends long before the guest changes."""

    async def work(context: TaskContext) -> None:
        guest = address.load()
        context.log(f"Requesting HA {'start' if state == 'started' else 'stop'} for {guest.word} {guest.vmid}")
        await context.sleep(0.3)
        resource = address.world.ha.get(guest.sid)
        if resource is None:
            raise TaskError(f"command 'ha-manager set {guest.sid} --state {state}' failed: exit code 255")
        address.world.part(HaManager).request_state(resource, state, stop_now=stop_now)

    return work
