"""Switching guests on and off."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, Literal

from msgspec import Meta

from quorate.hints import NAMED, Advice, Sentence, tools
from quorate.operations.plan import Call, Failure, Plan, guest_call
from quorate.operations.preconditions import NOTHING_TO_BOOT, has_nothing_to_boot
from quorate.operations.registry import GuestRefs, Risk, operation
from quorate.problems import BadArgument, Conflict, Problem, catch_problem
from quorate.pve.cluster import Cluster, Guest
from quorate.pve.tasks import gather_bounded
from quorate.units import shortlist

READS_AT_ONCE = 16
REASONS_SHOWN = 5

Planner = Callable[[Guest], Awaitable[Call | str]]


async def plan_each(summary: str, guests: list[Guest], planner: Planner) -> Plan:
    """A call for each guest; those that need none are unchanged, those that cannot are failures."""

    results = await gather_bounded(READS_AT_ONCE, [partial(_try_to_plan, planner, guest) for guest in guests])
    problems = [result for result in results if isinstance(result, Problem)]
    if len(problems) == 1 == len(results):
        raise problems[0]
    if problems and len(problems) == len(results):
        why = " ".join(str(problem) for problem in problems[:REASONS_SHOWN])
        raise Conflict("None of the guests can do this now", why=why)
    return Plan(
        summary,
        tuple(result for result in results if isinstance(result, Call)),
        tuple(result for result in results if isinstance(result, str)),
        tuple(
            Failure.about(str(guest), str(result))
            for guest, result in zip(guests, results, strict=True)
            if isinstance(result, Problem)
        ),
        independent=True,
    )


async def _try_to_plan(planner: Planner, guest: Guest) -> Call | Problem | str:
    return await catch_problem(planner(guest))


GUESTS_AT_ONCE = 50
NAMES_SHOWN = 5

Action = Literal["start", "shutdown", "reboot", "suspend", "resume"]


@dataclass(frozen=True, slots=True)
class _Rule:
    """When an action makes sense, and what to say when it does not."""

    verb: str
    leads_to: str
    wants: tuple[str, ...]
    """States in which the call is made."""
    done: tuple[str, ...] = ()
    """States in which there is nothing left to do."""


_BROKEN = ("io-error", "internal-error", "guest-panicked")
"""States of QEMU in which the guest hangs."""

_RULES: dict[str, _Rule] = {
    "start": _Rule("Start", "running", wants=("stopped",), done=("running",)),
    "shutdown": _Rule("Shut down", "stopped", wants=("running",), done=("stopped",)),
    "reboot": _Rule("Reboot", "running", wants=("running",)),
    "reset": _Rule("Reset", "running", wants=("running", "paused", *_BROKEN)),
    "suspend": _Rule("Suspend", "paused", wants=("running",), done=("paused",)),
    "resume": _Rule("Resume", "running", wants=("paused", "suspended", "hibernated", "io-error"), done=("running",)),
    "stop": _Rule("Stop", "stopped", wants=("running", "paused", "suspended", *_BROKEN), done=("stopped",)),
}
_LEAVE = {
    "stopped": ("qmstart", "vzstart", "qmreboot", "vzreboot"),
    "running": ("qmstop", "vzstop", "qmshutdown", "vzshutdown"),
}
"""Tasks that take a guest out of a state."""


@operation(
    toolset="guests",
    risk=Risk.CHANGE,
    search_words=("start boot restart reboot shutdown suspend pause resume wake vm container down bring up"),
    example="guest=test-vm action=start",
    elsewhere={
        "stop": tools.guest_stop,
        "poweroff": tools.guest_stop,
        "kill": tools.guest_stop,
        "reset": tools.guest_stop(reset=True),
    },
)
async def guest_power(
    pve: Cluster,
    guest: GuestRefs,
    action: Action,
    timeout: Annotated[int, Meta(ge=1, le=86400, description="Seconds a shutdown or reboot may take")] | None = None,
) -> Plan:
    """Start, shut down, reboot, suspend or resume guests. shutdown and reboot ask the guest's OS. Hard power-off and
    reset: guest_stop."""
    if timeout is not None and action not in ("shutdown", "reboot"):
        raise BadArgument(
            Sentence("{timeout} cannot be combined with {action}", timeout=NAMED, action=action),
            next_step=Advice("Leave it out").then(Advice("{wait} bounds the following", wait=""), "; "),
        )
    guests = await _guests(pve, guest)
    plan = await plan_power(guests, action, timeout=timeout)
    return replace(plan, warnings=await _boot_warnings(guests)) if action == "start" and plan.calls else plan


async def _boot_warnings(guests: list[Guest]) -> tuple[str, ...]:
    """Warnings for VMs that have nothing to boot from. Only VMs without a disk size are read: others have a disk."""
    doubtful = [guest for guest in guests if guest.is_vm and not guest.row.maxdisk]
    configs = await gather_bounded(READS_AT_ONCE, [partial(guest.get, "config") for guest in doubtful])
    pairs = zip(doubtful, configs, strict=True)
    return tuple(f"{guest}: {NOTHING_TO_BOOT}" for guest, config in pairs if has_nothing_to_boot(config))


@operation(
    toolset="guests",
    risk=Risk.DESTROY,
    search_words=(
        "kill hard power off cut pull plug force stop reset button hit press frozen hung hangs crashed not shut down"
    ),
    example="guest=k3s-agent",
)
async def guest_stop(
    pve: Cluster,
    guest: GuestRefs,
    reset: Annotated[bool, Meta(description="Press a VM's reset button instead: it starts again")] = False,
) -> Plan:
    """Cut the power of guests at once. Unsaved data is lost; prefer guest_power action=shutdown or reboot."""
    return await plan_power(await _guests(pve, guest), "reset" if reset else "stop")


async def plan_power(guests: list[Guest], action: str, **params: Any) -> Plan:
    """The plan for all of the guests."""
    summary = f"{_RULES[action].verb} {shortlist(guests, NAMES_SHOWN)}"
    return await plan_each(summary, guests, partial(_power_call_or_state, action, params))


async def _power_call_or_state(action: str, params: dict[str, Any], guest: Guest) -> Call | str:
    state = await state_of(guest)
    call = power_call(guest, action, state, params)
    if call is None:
        await _refuse_transition(guest, action, state)
    return call or f"{guest} is already {state}"


async def _refuse_transition(guest: Guest, action: str, state: str) -> None:
    """Refuse if a running task is about to take the guest out of the requested state."""
    leaving = _LEAVE.get(_RULES[action].leads_to, ())
    for task in await guest.running_tasks() or ():
        if task.get("type") in leaving:
            raise Conflict(
                f"{guest} is {state}, but {task['type']} is in progress",
                next_step=Advice("Wait for it, then call again", tools.task_wait(task=task["upid"])),
            )


async def _guests(pve: Cluster, refs: int | str | list[int | str]) -> list[Guest]:
    chosen = refs if isinstance(refs, list) else [refs]
    if not chosen:
        raise BadArgument("No guest was specified", next_step=Advice("Give a vmid or a name", tools.guest_list))
    if len(chosen) > GUESTS_AT_ONCE:
        raise BadArgument(f"{len(chosen)} guests are too many for one call", next_step=f"Give at most {GUESTS_AT_ONCE}")
    return await pve.guests(chosen)


async def state_of(guest: Guest) -> str:
    """running, stopped, paused, suspended (by the guest), hibernated (saved to disk) or one of QEMU's error states.

    It comes from the guest's node: the cluster's view lags by seconds.
    """
    status = await guest.get("status/current")
    if status.get("lock") == "suspended":
        return "hibernated"
    detail = str(status.get("qmpstatus") or "")
    return detail if detail in ("paused", "suspended", *_BROKEN) else str(status.get("status"))


def power_call(guest: Guest, action: str, state: str, params: dict[str, Any]) -> Call | None:
    """The call for the action; None if there is nothing to do. Raises if the state does not allow it."""
    if guest.row.template:
        raise Conflict(f"{guest} is a template, which has no power state", next_step="Clone it into a guest first")
    if action == "start" and state in ("paused", "suspended", "hibernated"):
        raise Conflict(
            f"{guest} is {state}, not stopped",
            next_step=Advice("Resume it", tools.guest_power(guest=guest.vmid, action="resume")),
        )
    if action == "reset" and not guest.is_vm:
        raise Conflict(
            f"{guest} is a container, which has no reset button",
            next_step=Advice("Reboot it", tools.guest_power(guest=guest.vmid, action="reboot")),
        )
    rule = _RULES[action]
    if state in rule.done:
        return None
    if state not in rule.wants:
        raise Conflict(
            f"{guest} is {state}, so it cannot {_verb(action)}", next_step=_next_action(guest, action, state)
        )
    verb = "start" if action == "resume" and state == "hibernated" else action
    summary = f"{rule.verb} {guest} on {guest.row.node}"
    return guest_call(
        guest, "POST", f"status/{verb}", summary, arrived=partial(_is_in_state, guest, rule.leads_to), **params
    )


async def _is_in_state(guest: Guest, state: str) -> bool:
    return await state_of(guest) == state


def _verb(action: str) -> str:
    return {
        "shutdown": "be shut down",
        "reboot": "be rebooted",
        "reset": "be reset",
        "suspend": "be suspended",
    }.get(action, f"be {action}d" if action.endswith("e") else f"be {action}ed")


def _next_action(guest: Guest, action: str, state: str) -> Advice:
    resume = tools.guest_power(guest=guest.vmid, action="resume")
    if state == "stopped":
        return Advice("Start it", tools.guest_power(guest=guest.vmid, action="start"))
    if state == "hibernated" and action == "stop":
        return Advice("It does not run; its memory is saved on disk. Resume it, then stop it", resume)
    if state in ("paused", "suspended", "hibernated", "io-error"):
        return Advice("Resume it first", resume)
    return Advice(f"{action} needs another state", tools.guest_get(guest=guest.vmid))
