"""What the operations on hosts have in common: their parameters, and what a change acts on."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from quorate.homelab.machines import Login, Machine
from quorate.operations.inside.parameters import needs_of, target_of
from quorate.operations.plan import Action, Call, Target
from quorate.secret import Secret

HostRef = Annotated[str, Meta(description="Registered host, node, guest (CLUSTER/web01), or user@address:port")]
HostName = Annotated[str, Meta(description="Name of a registered host")]
User = Annotated[str, Meta(description="Login, instead of the registered one")]
Key = Annotated[str, Meta(description="Path of a private key on the server")]
Password = Annotated[str, Meta(description="For this call only; kept nowhere")]
Port = Annotated[int, Meta(ge=1, le=65535)]
Reference = Annotated[str, Meta(description="env:NAME, file:PATH, keyring:NAME or vault:NAME; never the secret")]


def given_login(
    user: str | None = None, key: str | None = None, password: str | None = None, port: int | None = None
) -> Login:
    return Login(user, key, Secret(password) if password else None, port)


def machine_label(machine: Machine) -> str:
    """As answers name it: `host nas`, `node pve1`, `vm 102 docker01`."""
    return machine.guest.label if machine.guest is not None else str(machine)


def machine_target(machine: Machine) -> Target:
    """A guest is a guest to rules and approvals, whichever way a command reaches it."""
    if machine.guest is not None:
        return target_of(machine.guest)
    return Target(machine.kind, machine.name, node=machine.name if machine.kind == "node" else "")


def machine_needs(machine: Machine, *, writes: bool = False) -> tuple[Call, ...]:
    return needs_of(machine.guest, machine.way, writes=writes) if machine.guest is not None else ()


def machine_action(machine: Machine, says: str, line: str, perform: Any, *, writes: bool = False) -> Action:
    """A step on a machine, judged by the rules of the cluster that it belongs to, if any."""
    return Action(says, line, perform, machine_target(machine), machine_needs(machine, writes=writes), machine.where)
