"""Switching guests on and off."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from msgspec import Meta

from quorate.operations.guests.each import plan_each
from quorate.operations.plan import Call, Plan, guest_call
from quorate.operations.registry import GuestRefs, Risk, operation
from quorate.operations.units import shortlist
from quorate.pve.cluster import Cluster, Guest
from quorate.pve.errors import BadArgument, Conflict

GUESTS_AT_ONCE = 50
NAMES_SHOWN = 5

Action = Literal["start", "shutdown", "reboot", "reset", "suspend", "resume"]


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


@operation(risk=Risk.CHANGE)
async def guest_power(
    pve: Cluster,
    guest: GuestRefs,
    action: Action,
    timeout: Annotated[int, Meta(ge=1, le=86400, description="Seconds a shutdown or reboot may take")] | None = None,
) -> Plan:
    """Start, shut down, reboot, reset, suspend or resume guests, and follow it to the end.

    shutdown and reboot ask the guest's OS; reset is the reset button. For a hard power-off use guest_stop.
    """
    if timeout is not None and action not in ("shutdown", "reboot"):
        raise BadArgument(
            f"timeout does not go with action={action}", next_step="Leave it out; wait= bounds the following"
        )
    return await _plan(pve, guest, action, timeout=timeout)


@operation(risk=Risk.DESTROY, idempotent=True)
async def guest_stop(pve: Cluster, guest: GuestRefs) -> Plan:
    """Cut the power of guests at once. Unsaved data is lost; prefer guest_power action=shutdown."""
    return await _plan(pve, guest, "stop")


async def _plan(pve: Cluster, refs: int | str | list[int | str], action: str, **params: Any) -> Plan:
    return await plan_power(await _guests(pve, refs), action, **params)


async def plan_power(guests: list[Guest], action: str, **params: Any) -> Plan:
    """The plan that brings all of the guests to where the action leads."""

    async def one(guest: Guest) -> Call | str:
        state = await state_of(guest)
        return power_call(guest, action, state, params) or f"{guest} is already {state}"

    return await plan_each(f"{_RULES[action].verb} {shortlist(guests, NAMES_SHOWN)}", guests, one)


async def _guests(pve: Cluster, refs: int | str | list[int | str]) -> list[Guest]:
    wanted = refs if isinstance(refs, list) else [refs]
    if not wanted:
        raise BadArgument("No guest is given", next_step="Give a vmid or a name; guest_list shows both")
    if len(wanted) > GUESTS_AT_ONCE:
        raise BadArgument(f"{len(wanted)} guests are too many for one call", next_step=f"Give at most {GUESTS_AT_ONCE}")
    return await pve.guests(wanted)


async def state_of(guest: Guest) -> str:
    """running, stopped, paused, suspended (asleep by itself), hibernated (saved to disk) or one of QEMU's troubles.

    The guest's own node is asked: the cluster's view lags by seconds.
    """
    status = await guest.get("status/current")
    if status.get("lock") == "suspended":
        return "hibernated"
    detail = str(status.get("qmpstatus") or "")
    return detail if detail in ("paused", "suspended", *_BROKEN) else str(status.get("status"))


def power_call(guest: Guest, action: str, state: str, params: dict[str, Any]) -> Call | None:
    """The write that the action needs, None if there is nothing to do; a Conflict if it makes no sense now."""
    if guest.row.template:
        raise Conflict(f"{guest} is a template and has no power state", next_step="Clone it into a guest first")
    if action == "start" and state in ("paused", "suspended", "hibernated"):
        raise Conflict(f"{guest} is {state}, not stopped", next_step="Use guest_power action=resume")
    if action in ("reset",) and not guest.is_vm:
        raise Conflict(f"{guest} is a container, which has no reset button", next_step="Use guest_power action=reboot")
    rule = _RULES[action]
    if state in rule.done:
        return None
    if state not in rule.wants:
        raise Conflict(f"{guest} is {state}, so it cannot {_verb(action)}", next_step=_way_out(action, state))
    verb = "start" if action == "resume" and state == "hibernated" else action

    async def arrived() -> bool:
        return await state_of(guest) == rule.leads_to

    says = f"{rule.verb} {guest} on {guest.row.node}"
    told_apart = None if state == rule.leads_to else arrived  # a guest that was rebooted looks as it did before
    return guest_call(guest, "POST", f"status/{verb}", says, settled=told_apart, arrived=arrived, **params)


def _verb(action: str) -> str:
    return {
        "shutdown": "be shut down",
        "reboot": "be rebooted",
        "reset": "be reset",
        "suspend": "be suspended",
    }.get(action, f"be {action}d" if action.endswith("e") else f"be {action}ed")


def _way_out(action: str, state: str) -> str:
    if state == "stopped":
        return "Use guest_power action=start"
    if state == "hibernated" and action == "stop":
        return "It does not run; its memory is saved on disk. Use guest_power action=resume, then stop it"
    if state in ("paused", "suspended", "hibernated", "io-error"):
        return "Use guest_power action=resume first"
    return f"See guest_get; {action} needs another state"
