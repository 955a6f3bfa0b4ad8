"""The HA manager: a cluster-wide manager decides, and a local manager on each node carries it out.

Both act every ten seconds, and each reads only what the other has written. So a request is accepted long before
anything happens: the manager takes it up in its next turn, the guest's node acts in the turn after that, and the
result is seen one turn later. A guest that has been moved against a rule is moved back in the same way. The tasks
belong to root@pam, as in PVE.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from pve_simulator.access.directory import ROOT
from pve_simulator.cluster.ha_rules import HaRules
from pve_simulator.guests import migration, power
from pve_simulator.guests.guest import Guest, task_type
from pve_simulator.guests.local_volumes import local_volumes
from pve_simulator.guests.migration import Migration
from pve_simulator.guests.power import GuestAddress
from pve_simulator.nodes.tasks import TaskContext, TaskError, Work
from pve_simulator.world import HaResource, World

TURN_SECONDS = 10.0
FENCE_SECONDS = 60.0
SILENT_SECONDS = 30.0
IDLE_SECONDS = 900.0

_MOVING = ("migrate", "relocate")
_LOST = ("fence", "recovery")


@dataclass(slots=True)
class Move:
    """A request to move a resource to another node."""

    mode: str  # migrate or relocate
    target: str


@dataclass(slots=True)
class Service:
    """What the managers know about a resource, in addition to its state."""

    confirmed: bool = False
    """Its node has reported that it runs."""
    target: str = ""
    """Where it moves."""
    result: bool | None = None
    """Whether its node has reached the state; None as long as it has not reported."""
    busy: bool = False
    failures: int = 0
    """Consecutive failed starts on this node."""
    came_from: str = ""
    """The node that it left because of its maintenance, to which it returns afterwards."""
    failed_on: list[str] = field(default_factory=list)
    """Nodes on which it could not be started, once for each attempt."""


@dataclass(frozen=True, slots=True)
class RemovedService:
    """A resource that is gone from the configuration but that the manager has not dropped yet."""

    sid: str
    crm_state: str | None
    node: str | None


class HaManager:
    """Manages the HA resources of a world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.rules = HaRules(nodes_have_affinity=world.version_at_least(9, 2))
        self.resource_mode: str | None = None  # set while HA is disarmed
        self.active = any(each.crm_state is not None for each in world.ha.values())  # whether the manager is active
        self.decided_at = world.clock.now()
        self.decided_by = ""
        self.acted_at = dict.fromkeys(world.nodes, self.decided_at)
        self.busy_at: dict[str, float] = {}
        self.in_maintenance: set[str] = set()
        self.removed: dict[str, RemovedService] = {}
        self._services: dict[str, Service] = {}
        self._moves: dict[str, Move] = {}
        self._maintenance_requests: dict[str, bool] = {}
        self._given_up: set[tuple[str, str]] = set()  # automatic moves that failed once
        self._hard_stops: set[str] = set()  # to be stopped instead of shut down
        self._offline_since: dict[str, float] = {}
        self._awake = False
        world.on_guest_removed.append(self._forget_guest)

    @property
    def master(self) -> str:
        """The node whose manager decides: another one takes over only from one that is offline."""
        return self.decided_by or self._world.first_online().name

    def is_silent(self, since: float) -> bool:
        """Whether a manager that reported then counts as dead."""
        return self.resource_mode is None and self._world.clock.now() - since > SILENT_SECONDS

    def is_busy(self, node: str) -> bool:
        """Whether a node's manager holds its lock: it does for a while after its last resource is gone."""
        return self._world.clock.now() - self.busy_at.get(node, float("-inf")) < IDLE_SECONDS or any(
            resource.state != "ignored" and self._is_on(resource.sid, node) for resource in self._world.ha.values()
        )

    def wake(self) -> None:
        """Manage the resources until there are none."""
        if not self._awake and (self._world.ha or self.removed):
            self._awake = True
            self._world.tasks.in_background(self._work())

    def request_state(self, resource: HaResource, state: str, *, stop_now: bool = False) -> None:
        """Set the requested state; the manager does the rest."""
        resource.state = state
        resource.options["state"] = state
        if state == "ignored":
            self._enter(resource, "ignored")
        elif resource.crm_state == "ignored":
            resource.crm_state = None
        self._show(resource)
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
        """The resources that move along, and what blocks which node.

        Rules about nodes block nothing: the resource is moved, and then moved back.
        """
        together, apart = self.rules.partners(sid)
        dependent = [each for each in together if self._is_managed(each)]
        blocking: dict[str, list[dict[str, str]]] = {}
        for node in self._online_nodes():
            if there := [each for each in apart if self._is_on(each, node)]:
                blocking[node] = [{"sid": each, "cause": "resource-affinity"} for each in there]
        return dependent, blocking

    def guest_of(self, sid: str) -> Guest | None:
        guest = self._world.guests.get(int(sid.partition(":")[2]))
        return guest if guest is not None and guest.sid == sid else None

    def request_maintenance(self, node: str, *, enable: bool) -> None:
        """Keep a node free of resources that run, or take it back; the manager does it in its next turn."""
        self._maintenance_requests[node] = enable
        self.wake()

    def remove(self, resource: HaResource) -> None:
        """Take a resource out of the configuration. What its node is doing with it, it finishes."""
        guest = self.guest_of(resource.sid)
        if resource.crm_state is not None and guest is not None:
            self.removed[resource.sid] = RemovedService(resource.sid, resource.crm_state, guest.node)
        self._world.ha.pop(resource.sid, None)
        self._forget(resource.sid)
        self.wake()

    def _forget(self, sid: str) -> None:
        self._moves.pop(sid, None)
        self._services.pop(sid, None)
        guest = self.guest_of(sid)
        if guest is not None:
            guest.touch()

    def _forget_guest(self, vmid: int) -> None:
        for sid in (f"vm:{vmid}", f"ct:{vmid}"):
            self.rules.drop_resource(sid)
            self._forget(sid)

    # -- turns -----------------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        """Let the nodes act and the manager decide, each once in ten seconds and at different moments."""
        try:
            while self._world.ha or self.removed:
                turns: list[Callable[[], None]] = [partial(self._act, node) for node in sorted(self._world.nodes)]
                turns.append(self._decide)
                for turn in turns:
                    await self._world.clock.sleep(TURN_SECONDS / len(turns))
                    if self._world.quorate and self.resource_mode is None:
                        turn()
        finally:
            self._awake = False
            self.active = False

    def _decide(self) -> None:
        """The turn of the manager: read what the nodes report, and set what they are to do next."""
        self.active = bool(self._world.ha)
        self.decided_at = self._world.clock.now()
        if not self.decided_by or not self._world.nodes[self.decided_by].online:
            self.decided_by = self._world.first_online().name
        self.removed.clear()
        self._watch_nodes()
        for node, enable in self._maintenance_requests.items():
            (self.in_maintenance.add if enable else self.in_maintenance.discard)(node)
        self._maintenance_requests.clear()
        for resource in list(self._world.ha.values()):
            guest = self.guest_of(resource.sid)
            if guest is None or resource.state == "ignored":
                continue
            if not self._world.nodes[guest.node].online:
                self._recover(resource, guest)
                continue
            while True:
                before = resource.crm_state
                self._step(resource, guest)
                if resource.crm_state == before:
                    break  # otherwise, what has been reached may lead to the next state at once
            self._show(resource)

    def _watch_nodes(self) -> None:
        now = self._world.clock.now()
        for node in self._world.nodes.values():
            if node.online:
                self._offline_since.pop(node.name, None)
            else:
                self._offline_since.setdefault(node.name, now)

    def _act(self, node: str) -> None:
        """The turn of a node: start what is needed to reach the states that the manager has set."""
        if not self._world.nodes[node].online:
            return
        self.acted_at[node] = self._world.clock.now()
        for resource in list(self._world.ha.values()):
            guest = self.guest_of(resource.sid)
            if guest is not None and guest.node == node and resource.state != "ignored":
                self.busy_at[node] = self.acted_at[node]
                self._serve(resource, guest)

    # -- what the manager decides ----------------------------------------------------------------------------------

    def _step(self, resource: HaResource, guest: Guest) -> None:
        service, wants_to_run = self._service(resource), _requested_state(resource) == "started"
        state = resource.crm_state
        if state is None or state in _LOST:
            self._enter(resource, "started" if wants_to_run else "request_stop")
        elif state in _MOVING:
            if service.result is not None and not service.busy:
                if not service.result:
                    self._given_up.add((resource.sid, service.target))
                self._enter(resource, "started" if wants_to_run else "request_stop")
        elif state == "request_stop":
            if service.result:
                self._enter(resource, "stopped")
        elif state == "error":
            if resource.state == "disabled":
                self._enter(resource, "stopped")
        elif state == "started" and not wants_to_run:
            self._enter(resource, "request_stop")
        elif not self._begin_requested_move(resource, guest):
            if state == "stopped" and wants_to_run:
                self._enter(resource, "started")
            elif state == "started":
                self._keep_running(resource, guest, service)

    def _begin_requested_move(self, resource: HaResource, guest: Guest) -> bool:
        """Take up a request. One for the guest's own node, or for one that is offline or unknown, is dropped."""
        move = self._moves.pop(resource.sid, None)
        node = self._world.nodes.get(move.target) if move else None
        if move is None or node is None or not node.online or move.target == guest.node:
            return False
        self._enter(resource, move.mode, target=move.target)
        return True

    def _keep_running(self, resource: HaResource, guest: Guest, service: Service) -> None:
        if service.result is False:
            service.failed_on.append(guest.node)
            target = None
            if len(service.failed_on) <= resource.max_relocate:
                target = self._select_node(resource, without=service.failed_on)
            if target is None:
                service.failed_on.clear()
                self._enter(resource, "error")
            else:
                self._enter(resource, "migrate", target=target)
            return
        if service.result:
            service.confirmed = True
            service.failed_on.clear()
        if guest.node in self.in_maintenance:
            service.came_from = service.came_from or guest.node
        elif service.came_from == guest.node:
            service.came_from = ""
        target = self._select_node(resource, guest.node, returns_to=service.came_from)
        if target not in (None, guest.node) and (resource.sid, target) not in self._given_up:
            self._enter(resource, "migrate", target=str(target))

    def _select_node(
        self, resource: HaResource, current: str = "", without: Sequence[str] = (), returns_to: str = ""
    ) -> str | None:
        """The node for a resource: where it is, if that is among the best by the rules about nodes and the groups."""
        _, apart = self.rules.partners(resource.sid)
        nodes = [node for node in self._usable_nodes() if node not in without]
        best = [node for node in nodes if self._is_preferred_node(resource, node)]
        if returns_to in best:
            return returns_to
        if current in best:
            return current
        return next((node for node in best if not any(self._is_on(sid, node) for sid in apart)), None)

    def _is_preferred_node(self, resource: HaResource, node: str) -> bool:
        """Whether the node is among the best that the rules allow for the resource."""
        preference = self.rules.node_priorities(resource.sid, resource.group)
        if preference is None:
            return True
        priorities, strict = preference
        online = {name: value for name, value in priorities.items() if name in self._usable_nodes()}
        if not online:
            return not strict
        return online.get(node) == max(online.values()) if resource.failback else node in online or not strict

    def _recover(self, resource: HaResource, guest: Guest) -> None:
        """Fence the guest of a dead node after a while, then recover it on a live one."""
        since = self._offline_since.get(guest.node, self._world.clock.now())
        if self._world.clock.now() - since < FENCE_SECONDS:
            self._enter(resource, "fence")
            return
        target = self._select_node(resource)
        if target is None or any(not volume.is_cloudinit for volume in local_volumes(self._world, guest)):
            self._enter(resource, "recovery")
            return
        guest.stop_running()
        guest.config.pop("lock", None)
        guest.node = target
        self._enter(resource, "started")

    def _enter(self, resource: HaResource, state: str, target: str = "") -> None:
        """Set the state; what the node has reported about the previous one counts no longer."""
        service = self._service(resource)
        if state != resource.crm_state:
            resource.crm_state = state
            service.result, service.target, service.failures, service.confirmed = None, target, 0, False
        self._show(resource)

    def _show(self, resource: HaResource) -> None:
        shown = self._shown_state(resource)
        if shown != resource.shown_state:
            resource.shown_state = shown
            guest = self.guest_of(resource.sid)
            if guest is not None:
                guest.touch()

    def _shown_state(self, resource: HaResource) -> str:
        """The state as PVE shows it, which reveals a little about what comes next."""
        requested, state = _requested_state(resource), resource.crm_state
        if resource.state == "ignored":
            return "ignored"
        if state is None:
            return "queued"
        if state == "started" and requested != "started":
            return "stopping"
        if state == "started" and not self._service(resource).confirmed:
            return "starting"
        if state == "request_stop":
            return "stopping"
        if state == "stopped":
            return {"started": "starting", "disabled": "disabled"}.get(requested, "stopped")
        if state == "error" and requested == "disabled":
            return "clearing error flag"
        return state

    # -- what a node does ------------------------------------------------------------------------------------------

    def _serve(self, resource: HaResource, guest: Guest) -> None:
        service, state = self._service(resource), resource.crm_state
        reached = {"started": guest.running, "request_stop": not guest.running}.get(str(state))
        if service.busy or (reached is None and (state not in _MOVING or service.result is not None)):
            return
        if reached:
            service.result, service.failures = True, 0
            return
        if service.result is False or guest.lock is not None or self._world.tasks.active(target=str(guest.vmid)):
            return  # the manager has to decide first, or another task holds it
        service.busy = True
        self._world.tasks.in_background(self._bring_about(resource, guest, service, str(state)))

    async def _bring_about(self, resource: HaResource, guest: Guest, service: Service, state: str) -> None:
        """Start the tasks and note the result. A start that fails is tried again in later turns."""
        try:
            if state == "started":
                done = await self._run(guest, "start", power.start(self._address(guest)))
                service.failures = 0 if done else service.failures + 1
                done_for_good = done or service.failures > resource.max_restart
                service.result = done if done_for_good else None
            elif state == "request_stop":
                service.result = await self._stop(resource.sid, guest) or None
            else:
                service.result = await self._move(resource.sid, guest, service.target, state)
        finally:
            service.busy = False

    async def _move(self, sid: str, guest: Guest, target: str, mode: str) -> bool:
        """Containers, and whatever is relocated, are stopped first; the other node starts them in a later turn."""
        if guest.running and (mode == "relocate" or guest.kind == "lxc") and not await self._stop(sid, guest):
            return False
        request = Migration(self._address(guest), target, with_local_disks=True, online=guest.running)
        return await self._run(guest, "migrate", migration.run(request))

    async def _stop(self, sid: str, guest: Guest) -> bool:
        if guest.paused or sid in self._hard_stops:
            self._hard_stops.discard(sid)
            return await self._run(guest, "stop", power.stop(self._address(guest)))
        shutdown = power.shutdown(self._address(guest), timeout=None, force_stop=True)
        return await self._run(guest, "shutdown", shutdown)

    async def _run(self, guest: Guest, name: str, work: Work) -> bool:
        """Run a task to its end; returns whether it succeeded."""
        upid = self._world.tasks.start(guest.node, task_type(guest.kind, name), str(guest.vmid), ROOT, work)
        await self._world.tasks.wait_for(upid)
        task = self._world.tasks.find(upid)
        return task is not None and not task.went_wrong

    # ----------------------------------------------------------------------------------------------------------------

    def _service(self, resource: HaResource) -> Service:
        if resource.sid not in self._services:  # in a new world, everything has been reported
            self._services[resource.sid] = Service(confirmed=resource.crm_state == "started")
        return self._services[resource.sid]

    def _online_nodes(self) -> list[str]:
        return [node.name for node in self._world.nodes.values() if node.online]

    def _usable_nodes(self) -> list[str]:
        return [node for node in self._online_nodes() if node not in self.in_maintenance]

    def _is_managed(self, sid: str) -> bool:
        resource = self._world.ha.get(sid)
        return resource is not None and resource.state != "ignored"

    def _is_on(self, sid: str, node: str) -> bool:
        guest = self.guest_of(sid)
        return guest is not None and guest.node == node and self._is_managed(sid)

    def _address(self, guest: Guest) -> GuestAddress:
        return GuestAddress.of_guest(self._world, guest)


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
