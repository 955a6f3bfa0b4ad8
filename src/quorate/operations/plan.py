"""What a change would do, before it does anything: its API calls in order, each with a sentence."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from pve_schema.formats import split_list
from pve_schema.schema import Facts
from quorate.hints import Advice, Wording
from quorate.homelab.host import Host
from quorate.operations.backend import Backend
from quorate.operations.registry import Risk
from quorate.pve.cluster import Cluster, Guest
from quorate.pve.stored_objects import CONTROL, Location, StoredObject, locate, predict, read_stored, sets
from quorate.pve.tasks import Report
from quorate.pve.values import is_on, same
from quorate.pve.wire import address, encode, pairs, read
from quorate.server_files import ServerFile

T = TypeVar("T")
_CREATES_A_GUEST = re.compile(r"/nodes/[^/]+/(?:qemu|lxc)(?:/[^/]+/clone)?")


@dataclass(frozen=True, slots=True)
class Target:
    """What a call acts on, so that the gate and the audit can name it."""

    kind: str
    id: str
    name: str = ""
    node: str = ""

    @classmethod
    def of_guest(cls, guest: Guest) -> Target:
        return cls(guest.row.kind, str(guest.vmid), guest.row.name, guest.row.node)

    def __str__(self) -> str:
        return f"{self.kind} {self.id}" + (f" {self.name}" if self.name else "")


@dataclass(frozen=True, slots=True)
class Call:
    """One write to the API. Operations give parameters as Python values; `in_wire_form` converts them to text."""

    summary: str
    method: str
    path: str
    params: Mapping[str, Any] = field(default_factory=dict)
    target: Target | None = None
    upload: ServerFile | bytes | None = None
    """A local file, or its content, that is sent along; the call is then a multipart form with `params` before it."""
    task_id: str | None = None
    """The id of its task where that is not a vmid, so that the task can be found if PVE's answer is lost."""
    settled: Callable[[], Awaitable[bool]] | None = None
    """Whether the change has taken effect, asked after a lost answer: only where neither a task nor the object that it
    writes to shows that. It must be false as long as nothing was done."""
    arrived: Callable[[], Awaitable[bool]] | None = None
    """What is waited for after tasks that only pass the work on: to the HA manager, to a reboot."""
    digest: Callable[[], Awaitable[str]] | None = field(default=None, compare=False)
    """Reads the digest to send, where an earlier step changes it; a Problem if anyone else changed anything."""
    task_unnamed: bool = False
    """PVE does this in a task but may answer without naming it: the task is still found and followed."""


@dataclass(frozen=True, slots=True)
class ActionResult:
    """The result of an action."""

    facts: Mapping[str, Any] = field(default_factory=dict)
    running: bool = False
    """It continues in the background; `next_step` says how to follow it."""
    begun: bool = False
    """It only started something that continues independently: a run."""
    next_step: str | Advice | None = None
    fault: str = ""
    """How a command that ran has failed, such as "command failed (exit 127)"."""


@dataclass(frozen=True, slots=True)
class StepContext:
    """What an action gets while it runs."""

    wait: float
    """Seconds that the caller waits."""
    report: Report | None
    """Where progress goes."""
    carry_out: Callable[[Cluster, Plan, float, Report | None], Awaitable[Mapping[str, Any]]]
    """Runs the plan of a cluster as part of this step. Its calls were checked before, as `needs` of the action."""
    permit: Callable[[], Awaitable[None]]
    """Raises if changes are frozen: for an action of several parts, before each of them."""
    origin: Mapping[str, Any] = field(default_factory=dict)
    """Who calls, with which scope, approval and risk, for what outlives the call; see `Caller.as_origin`."""

    @property
    def by(self) -> str:
        """Who calls, in a few words."""
        return str(self.origin.get("subject") or self.origin.get("client") or "unknown")


Perform = Callable[[StepContext], Awaitable[ActionResult]]


@dataclass(frozen=True, slots=True)
class Action:
    """One change that is not a single write to the API: a command inside a guest, a file, something on a host."""

    summary: str
    line: str
    """How a dry run and the audit trail show it, like a command line; secrets are removed later."""
    perform: Perform
    """Does it, or raises a Problem."""
    target: Target | None = None
    needs: tuple[Call, ...] = ()
    """Calls of the API it will make: checked beforehand against the facts and privileges, like all calls."""
    where: Cluster | None = None
    """The cluster that target and needs belong to, if the plan itself is not about one: that cluster's rules apply."""
    risk: Risk | None = None
    """Its risk, where neither the operation nor `needs` shows it: on a node, anything is DESTROY."""
    risk_because: str = ""
    """Why it has that risk, unless that is because the step runs on a node."""
    on_a_node: Callable[[], Awaitable[bool]] | None = field(default=None, compare=False)
    """Asks the machine itself whether it is a node, where its address does not show it."""
    opens: bool = False
    """The caller chooses what runs or is written there, so rules that deny `destroy` there deny this, too.

    Not where the operator's patterns name exactly this command."""
    becomes: Host | None = field(default=None, compare=False)
    """The record of the host afterwards, where the action sets it: rules may use its address and labels."""
    input: str = ""
    """What it gives the machine: standard input, variables, a file. The trail has only their length; the person who
    approves a DESTROY reads them, because they may run."""
    later: bool = False
    """`needs` are examples of what a run will do, each in a change of its own: they are judged now, not recorded."""
    loses: tuple[str, ...] = ()
    """What it destroys, one line for each thing."""
    concerns: tuple[Target, ...] = ()
    """What else it acts on, for rules and limits: the guests whose backups go with a namespace."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A target that cannot be acted on."""

    target: str
    why: str
    named: bool = False
    """Whether `why` begins with the target's name."""

    @classmethod
    def about(cls, target: str, why: str) -> Failure:
        """With the target's name in front, unless the reason begins with it."""
        return cls(target, why, named=why.startswith(target))

    def __str__(self) -> str:
        return self.why if self.named else f"{self.target}: {self.why}"


@dataclass(frozen=True, slots=True)
class Plan:
    summary: str
    calls: tuple[Call | Action, ...] = ()
    unchanged: tuple[str, ...] = ()
    """What needs no call, and why: "vm 100 web01 is already running"."""
    failures: tuple[Failure, ...] = ()
    """The other targets are acted on, but the call as a whole has not succeeded."""
    independent: bool = False
    """The calls do not depend on each other: run them in parallel, and continue when one fails."""
    sequences: tuple[int, ...] = ()
    """In an independent plan, how many calls each target has; those run in order. By default one each."""
    first: int = 0
    """How many calls come before the others, in order and even if those are independent: snapshots."""
    columns: tuple[str, ...] = ()
    """Facts of the steps that become columns of a table: one row per target, failures first."""
    next_step: str | Advice | None = None
    if_it_fails: Advice | None = None
    """The next step if some of its steps are done and others are not."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What the caller should know in addition to the calls, such as chosen defaults; also shown in a dry run."""
    warnings: tuple[str | Wording, ...] = ()
    after: Callable[[], Awaitable[Mapping[str, Any]]] | None = None
    """Reads facts for the answer once everything is done."""
    from_answers: Callable[[list[Any]], Mapping[str, Any]] | None = None
    """Facts from what PVE answered to each call, shown once and recorded nowhere: how a new secret is passed on."""
    otherwise: Callable[[], Awaitable[Plan]] | None = None
    """Another plan, if PVE refuses the contested call at once for a conflict (an id that was taken in the meantime)."""
    contested: int = 0
    """The number of that call. What was done before it stays done, and the other plan does not repeat it."""
    risk: Risk | None = None
    """Where the plan has a higher risk than its operation, and no call of the API shows it."""
    about: tuple[Target, ...] = ()
    """What a person would call its targets, where the targets of the calls do not show it: guests of a run."""
    destroys_only_its_own: bool = False
    """True if all that it can destroy is what it creates itself, as a restore drill its copies."""
    chosen_names: tuple[str, ...] = ()
    """Names that the plan chose, from the time or at random. The same call chooses others a second later, and an
    approval or plan token is valid for those, too."""

    def lanes(self, steps: Sequence[T]) -> list[Sequence[T]]:
        """The steps of an independent plan after the first ones, by target: each lane runs in order."""
        rest = steps[self.first :]
        ends = list(itertools.accumulate(self.sequences or (1,) * len(rest)))
        return [rest[begin:end] for begin, end in zip((0, *ends), ends, strict=False)]

    @property
    def api_calls(self) -> list[Call]:
        """Every write to the API that it is known to make."""
        return [call for step in self.calls for call in ((step,) if isinstance(step, Call) else step.needs)]

    def parts(self) -> list[tuple[Cluster | None, Plan]]:
        """The plan by the clusters that its steps belong to; None for the one that it is made for."""
        parts: dict[str, tuple[Cluster | None, list[Call | Action]]] = {}
        for step in self.calls:
            where = step.where if isinstance(step, Action) else None
            parts.setdefault(where.name if where else "", (where, []))[1].append(step)
        if set(parts) <= {""}:
            return [(None, self)]
        return [(where, replace(self, calls=tuple(steps))) for where, steps in parts.values()]

    @property
    def digest(self) -> str:
        """A fingerprint of everything that would be sent, secrets included; names that it chose are left out."""
        calls = [
            call
            for step in self.calls
            for call in ((step,) if isinstance(step, Call) else () if step.later else step.needs)
        ]
        sent = [[call.method, call.path, pairs(encode(call.params))] for call in calls]
        performed = [
            [step.where.name if step.where else "", str(step.target or ""), step.line]
            for step in self.calls
            if isinstance(step, Action)
        ]
        return hashlib.sha256(self.without_chosen_names(json.dumps([sent, performed])).encode()).hexdigest()

    def without_chosen_names(self, text: str) -> str:
        """The text as it is for every other choice of names; the arguments of a call have names of the caller's own."""
        for number, name in enumerate(self.chosen_names, 1):
            text = text.replace(name, f"<chosen name {number}>")
        return text

    @property
    def claimed_vmids(self) -> set[int]:
        """The vmids of guests that it would create: chosen, but not used yet. A caller's value may have any type.

        Other calls have such a parameter, too, and a restore with `force` replaces a guest that exists.
        """
        creating = (call for call in self.api_calls if call.method == "POST" and _CREATES_A_GUEST.fullmatch(call.path))
        vmids = (
            str(call.params.get(key, ""))
            for call in creating
            if not is_on(call.params.get("force"))
            for key in ("vmid", "newid")
        )
        return {int(vmid) for vmid in vmids if vmid.isascii() and vmid.isdigit()}


@dataclass(frozen=True, slots=True)
class Edit:
    """What gives an object its settings: a call that creates or changes it, or none."""

    summary: str
    call: Call | None
    changed: tuple[str, ...] = ()
    """The settings of an existing object that differ."""

    def plan(self, unchanged: str, **details: Any) -> Plan:
        """The plan of this edit alone; `details` are further fields of a plan that changes something."""
        if self.call is None:
            return Plan(self.summary, unchanged=(unchanged,))
        return Plan(self.summary, (self.call,), **details)


async def find_stored(pve: Cluster, collection: str, **key: str) -> Mapping[str, Any] | None:
    """The object that a POST of this key to the collection would create, as it is; None if there is none."""
    facts = await pve.facts()
    request = read(facts, "POST", collection, key)
    location = locate(facts, request) if request else None
    content = (await read_stored(pve, location)).content if location else None
    return content if isinstance(content, Mapping) else None


async def create_or_change(
    pve: Cluster,
    stored: Mapping[str, Any] | None,
    create: Call,
    change: Call,
    *,
    defaults: Mapping[str, Any] | None = None,
    whole: bool = False,
) -> Edit:
    """Create what is missing; of what exists, change what differs.

    `defaults` are values that PVE uses without showing them. With `whole`, a change sends all settings, for requests
    in which PVE drops or requires what does not change.
    """
    if stored is None:
        return Edit(create.summary, create)
    request = read(await pve.facts(), change.method, change.path, change.params)
    assert request is not None, change.path
    current = {**(defaults or {}), **stored}
    predicted = predict(request, StoredObject(Location(change.path), current)) or {}
    schema_of = request.match.endpoint.schema_of
    changed = tuple(
        name
        for name in dict.fromkeys((*sets(request), *split_list(request.text("delete"))))
        if not same(current.get(name), predicted.get(name), schema_of(name))
    )
    if not changed:
        return Edit(change.summary, None)
    if whole:
        return Edit(change.summary, change, changed)
    params = {name: value for name, value in change.params.items() if name in changed or name in CONTROL}
    if gone := [name for name in changed if name not in predicted]:
        params["delete"] = ",".join(gone)
    else:
        params.pop("delete", None)
    return Edit(change.summary, replace(change, params=params), changed)


def unset_empty(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a change in which an empty value unsets its option."""
    empty = [name for name, value in settings.items() if value == ""]
    kept = {name: value for name, value in settings.items() if value != ""}
    return {**kept, "delete": ",".join(empty)} if empty else kept


def guest_call(
    guest: Guest,
    method: str,
    sub: str,
    summary: str,
    *,
    settled: Callable[[], Awaitable[bool]] | None = None,
    arrived: Callable[[], Awaitable[bool]] | None = None,
    task_unnamed: bool = False,
    **params: Any,
) -> Call:
    filled = {name: value for name, value in params.items() if value is not None}
    target = Target.of_guest(guest)
    path = guest.path(sub)
    return Call(summary, method, path, filled, target, settled=settled, arrived=arrived, task_unnamed=task_unnamed)


async def in_wire_form(backend: Backend, plan: Plan) -> Plan:
    """The plan with its calls as they will be sent: what is judged, shown, approved and recorded from here on."""
    return replace(plan, calls=tuple([await _step_in_wire_form(backend, step) for step in plan.calls]))


async def _step_in_wire_form(backend: Backend, step: Call | Action) -> Call | Action:
    if isinstance(step, Call):
        return await _call_in_wire_form(backend.api, await backend.api.facts(), step)
    if not step.needs:
        return step
    where = (step.where or backend).api
    facts = await where.facts()
    return replace(step, needs=tuple([await _call_in_wire_form(where, facts, call) for call in step.needs]))


async def _call_in_wire_form(cluster: Cluster, facts: Facts, call: Call) -> Call:
    path = await address(cluster, call.path)
    match = facts.find(call.method, path)
    return replace(call, path=path, params=encode(call.params, match.endpoint if match else None))
