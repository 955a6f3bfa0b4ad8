"""Machines as operations act on them: their labels, and what a step on one is judged by."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from quorate.homelab.machines import Machine, is_node
from quorate.homelab.services.installations import machine_ref
from quorate.inside.transport_selection import select_transport
from quorate.operations.commands import CommandTarget
from quorate.operations.inside.parameters import needs_of
from quorate.operations.plan import Action, Call, Perform, Target
from quorate.operations.registry import Risk
from quorate.pve.cluster import Cluster


async def guest_machine(pve: Cluster, ref: int | str, way: str | None = None) -> Machine:
    """A guest of the operation's cluster, with a transport into it."""
    found = await pve.guest(ref)
    transport = await select_transport(pve, found, prefer=way)
    return Machine(found.row.kind, str(found.row.name or found.vmid), transport, None, found)


def machine_label(machine: Machine) -> str:
    """As answers name it: `host nas`, `node pve1`, `vm 102 docker01`."""
    return machine.guest.label if machine.guest is not None else str(machine)


def command_target(machine: Machine) -> CommandTarget:
    cluster = machine.where.name if machine.where else None
    return CommandTarget(machine.transport, machine_target(machine), machine_ref(machine), "host", cluster)


def machine_target(machine: Machine) -> Target:
    """Rules and approvals see a guest as a guest, whichever transport a command uses."""
    if machine.guest is not None:
        return Target.of_guest(machine.guest)
    return Target(machine.kind, machine.name, node=machine.name if machine.kind == "node" else "")


def machine_needs(machine: Machine, *, writes: bool = False) -> tuple[Call, ...]:
    return needs_of(machine.guest, machine.transport, writes=writes) if machine.guest is not None else ()


def machine_risk(machine: Machine) -> Risk | None:
    """Root on a node may do anything to every guest of its cluster, past all privilege checks of Proxmox VE."""
    return Risk.DESTROY if machine.kind == "node" or machine.may_be_node else None


def machine_action(
    machine: Machine,
    summary: str,
    line: str,
    perform: Perform,
    *,
    writes: bool = False,
    opens: bool = False,
    input: str = "",
) -> Action:
    """A step on a machine, judged by the rules of the cluster that it belongs to, if any."""
    risk = machine_risk(machine)
    return replace(
        machine_read(machine, summary, line, perform),
        needs=machine_needs(machine, writes=writes),
        risk=risk,
        on_a_node=partial(is_node, machine) if machine.kind == "host" and risk is None else None,
        opens=opens,
        input=input,
    )


def machine_read(machine: Machine, summary: str, line: str, perform: Perform) -> Action:
    """A step that changes nothing on the machine, which may therefore be a node."""
    return Action(summary, line, perform, machine_target(machine), machine_needs(machine), machine.where)
