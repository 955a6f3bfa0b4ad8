"""Waiting until a guest is reachable."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from quorate.hints import GUEST_CLONE, GUEST_POWER, GUEST_WAIT, Advice
from quorate.inside.interfaces import read_interfaces, usable_addresses
from quorate.inside.transport import Command
from quorate.inside.transport_selection import select_transport
from quorate.operations.registry import GuestRef, Risk, operation
from quorate.operations.units import duration
from quorate.problems import BadArgument, Conflict, NodeOffline, NotConfigured, ServerFailed, TimedOut, Unreachable
from quorate.pve.cluster import Cluster, Guest
from quorate.pve.tasks import Report

LONGEST_WAIT = 50.0
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 5.0
# Problems that waiting can solve: the agent does not run yet, the address is unknown. All others are raised at once.
_PASSING = (Conflict, NodeOffline, NotConfigured, ServerFailed, TimedOut, Unreachable)

Until = Literal["agent", "ssh", "address"]


@operation(
    risk=Risk.LOOK_INSIDE,
    search_words="wait until guest booted is up ready reachable ssh agent alive answers port open",
    example="guest=docker01",
)
async def guest_wait(
    pve: Cluster,
    guest: GuestRef,
    report: Report,
    until: Annotated[Until, Meta(description="Default: agent for a VM, address for a container")] | None = None,
    wait: Annotated[float, Meta(ge=0, le=LONGEST_WAIT, description="Maximum seconds to wait")] = 45,
) -> dict[str, Any]:
    """Wait until a guest's agent or SSH answers, or until it has an address."""
    found = await pve.guest(guest)
    until = until or ("agent" if found.is_vm else "address")
    await _refuse_hopeless(found, until)
    begun, pause, why = pve.clock.monotonic(), _FIRST_PAUSE, ""
    while True:
        try:
            facts = await _probe(pve, found, until)
        except _PASSING as problem:
            facts, why = None, str(problem)
        spent = pve.clock.monotonic() - begun
        if facts is not None:
            return {"guest": found.label, "until": until, "reached": True, "waited": duration(spent), **facts}
        if spent >= wait:
            return _not_yet(found, until, spent, why)
        if report is not None:  # there may be no client to notify
            await report(spent, wait, f"waiting for {_default_goal(until)} of {found}")
        await pve.clock.sleep(min(pause, wait - spent))
        pause = min(pause * 1.5, _LONGEST_PAUSE)


async def _probe(pve: Cluster, guest: Guest, until: Until) -> dict[str, Any] | None:
    """The facts that show that the guest is reachable; None if it is not yet."""
    if until == "agent":
        answer = await guest.get("agent/get-host-name")
        return {"hostname": str((answer.get("result") or {}).get("host-name", ""))}
    if until == "ssh":
        into = await select_transport(pve, guest, prefer="ssh")
        await into.run(Command(("true",)), seconds=10.0)
        return {"way": into.description}
    addresses = usable_addresses(await read_interfaces(guest), await guest.get("config"))
    return {"addresses": addresses} if addresses else None


async def _refuse_hopeless(guest: Guest, until: Until) -> None:
    """Refuse what waiting cannot achieve."""
    if until == "agent" and not guest.is_vm:
        raise BadArgument(f"{guest} is a container and has no agent", next_step="Wait for its address or for ssh")
    status = await guest.get("status/current")
    if guest.row.template:
        raise BadArgument(
            f"{guest} is a template and never runs", next_step=Advice("Clone it", GUEST_CLONE(guest=guest.vmid))
        )
    if status.get("status") != "running":
        raise Conflict(
            f"{guest} is not running", next_step=Advice("Start it first", GUEST_POWER(guest=guest.vmid, action="start"))
        )
    needs_agent = until == "agent" or (until == "address" and guest.is_vm)
    if needs_agent and "agent" not in await guest.get("config"):
        raise Conflict(
            f"{guest} has no agent configured, so PVE cannot ask it",
            next_step=f"`qm set {guest.vmid} --agent 1` on {guest.row.node}, qemu-guest-agent inside, then a restart",
        )


def _default_goal(until: Until) -> str:
    return {"agent": "the agent", "ssh": "SSH", "address": "an address"}[until]


def _not_yet(guest: Guest, until: Until, spent: float, why: str) -> dict[str, Any]:
    agent = guest.is_vm and until != "ssh"
    hint = "; if it never comes, check that qemu-guest-agent is installed and runs inside" if agent else ""
    return {
        "guest": guest.label,
        "until": until,
        "reached": False,
        "waited": duration(spent),
        "why": why,
        "next": Advice(f"Call again to keep waiting{hint}", GUEST_WAIT(guest=guest.vmid)),
    }
