"""What a change would do, before it does anything: its API calls in order, each with a sentence."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from quorate.homelab.host import Host
from quorate.operations.registry import Risk
from quorate.pve.cluster import Cluster, Guest
from quorate.pve.tasks import Report


@dataclass(frozen=True, slots=True)
class Target:
    """What a call acts on, so that the gate and the audit can name it."""

    kind: str
    id: str
    name: str = ""
    node: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.id}" + (f" {self.name}" if self.name else "")


@dataclass(frozen=True, slots=True)
class Call:
    """One write to the API."""

    says: str
    method: str
    path: str
    params: Mapping[str, Any] = field(default_factory=dict)
    target: Target | None = None
    upload: Path | bytes | None = None
    """A local file, or its content, that is sent along; the call is then a multipart form with `params` before it."""
    task_id: str | None = None
    """The id its task will carry where that is no vmid, so that the task can be found if PVE's answer is lost."""
    settled: Callable[[], Awaitable[bool]] | None = None
    """Whether the effect is there, asked after a lost answer. None where before and after look the same."""
    arrived: Callable[[], Awaitable[bool]] | None = None
    """What is waited for after tasks that only hand the work on (to the HA manager, to a reboot); else `settled`."""
    task_unnamed: bool = False
    """PVE does this in a task but may answer without naming it: the task is looked for and followed all the same."""


@dataclass(frozen=True, slots=True)
class Performed:
    """What became of an action."""

    facts: Mapping[str, Any] = field(default_factory=dict)
    running: bool = False
    """It goes on by itself; `next_step` says how to follow it."""
    next_step: str | None = None


@dataclass(frozen=True, slots=True)
class Action:
    """One change that is no single write to the API: a command inside a guest, a file, something on a host."""

    says: str
    line: str
    """How it stands in a dry run and in the audit, in the way of a command line; secrets are taken out later."""
    perform: Callable[[float, Report | None], Awaitable[Performed]]
    """Does it. Gets the seconds that the caller waits, and where progress goes. Raises a Problem if it fails."""
    target: Target | None = None
    needs: tuple[Call, ...] = ()
    """Calls of the API it will make: checked beforehand against the facts and our rights, as all are."""
    where: Cluster | None = None
    """The cluster that target and needs belong to, if the plan itself is not about one: that cluster's rules hold."""
    becomes: Host | None = field(default=None, compare=False)
    """What is kept of the host afterwards, where the action sets that: rules may rest on its address and labels."""


@dataclass(frozen=True, slots=True)
class Plan:
    summary: str
    calls: tuple[Call | Action, ...] = ()
    unchanged: tuple[str, ...] = ()
    """What needs no call, and why: "vm 100 web01 is already running"."""
    failures: tuple[str, ...] = ()
    """Targets that cannot be acted on, and why. The others are, but the call as a whole has not succeeded."""
    independent: bool = False
    """The calls do not build on each other: run them side by side, and go on when one fails."""
    next_step: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What the caller should know beside the calls, such as defaults that were chosen; shown in a dry run, too."""
    warnings: tuple[str, ...] = ()
    after: Callable[[], Awaitable[Mapping[str, Any]]] | None = None
    """Reads facts for the answer once everything is done."""
    from_answers: Callable[[list[Any]], Mapping[str, Any]] | None = None
    """Facts from what PVE answered to each call, shown once and recorded nowhere: how a new secret is handed over."""
    otherwise: Callable[[], Awaitable[Plan]] | None = None
    """Another plan, if PVE refuses the contested call at once for a conflict (an id that was taken meanwhile)."""
    contested: int = 0
    """Which of the calls that is. What was done before it stays done, and the other plan does not repeat it."""
    risk: Risk | None = None
    """Where the plan does something graver than its operation usually does, and no call of the API shows it."""

    @property
    def api_calls(self) -> list[Call]:
        """Every write to the API that it is known to make."""
        return [one for step in self.calls for one in ((step,) if isinstance(step, Call) else step.needs)]

    def parts(self) -> list[tuple[Cluster | None, Plan]]:
        """The plan by the clusters that its steps belong to; None stands for the one that it is made for."""
        found: dict[str, tuple[Cluster | None, list[Call | Action]]] = {}
        for step in self.calls:
            where = step.where if isinstance(step, Action) else None
            found.setdefault(where.name if where else "", (where, []))[1].append(step)
        if set(found) <= {""}:
            return [(None, self)]
        return [(where, replace(self, calls=tuple(steps))) for where, steps in found.values()]

    @property
    def claimed_vmids(self) -> set[Any]:
        """Ids of guests that it would make, chosen but not taken yet."""
        return {call.params.get(key) for call in self.api_calls for key in ("vmid", "newid")}


def guest_call(
    guest: Guest,
    method: str,
    sub: str,
    says: str,
    *,
    settled: Callable[[], Awaitable[bool]] | None = None,
    arrived: Callable[[], Awaitable[bool]] | None = None,
    task_unnamed: bool = False,
    **params: Any,
) -> Call:
    given = {name: value for name, value in params.items() if value is not None}
    target = Target(guest.row.kind, str(guest.vmid), guest.row.name, guest.row.node)
    path = guest.path(sub)
    return Call(says, method, path, given, target, settled=settled, arrived=arrived, task_unnamed=task_unnamed)
