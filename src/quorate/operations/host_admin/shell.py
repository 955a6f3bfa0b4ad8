"""A terminal for a person: the tool returns a link and never sees what is typed there."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from quorate.hints import HOST_REGISTER, Advice
from quorate.homelab.homelab import Homelab
from quorate.homelab.machines import Machine
from quorate.homelab.shells import INVITED_SECONDS
from quorate.inside.ssh_transport import SshTransport
from quorate.operations.hosts.parameters import HostRefs
from quorate.operations.hosts.several import plan_each
from quorate.operations.machine import machine_action
from quorate.operations.plan import ActionResult, Plan, StepContext
from quorate.operations.registry import Risk, operation
from quorate.problems import NotConfigured
from quorate.ssh.launcher import command_line
from quorate.state.passphrase import Passphrase

LOGIN_SHELL = ("/bin/sh", "-l")
"""Where no login chooses one, and what rules for commands see."""


@operation(
    risk=Risk.CHANGE,
    idempotent=False,
    search_words="interactive shell terminal console web ssh session browser link for the person",
    example="host=pve1",
)
async def host_shell_open(
    homelab: Homelab,
    host: HostRefs,
    command: Annotated[list[str], Meta(description="Run this instead of a shell, such as ['htop']")] | None = None,
) -> Plan:
    """Create a link to a terminal on each host. Give it to the person, who opens it in a browser. It works once, within
    five minutes. You cannot use it."""
    homelab.shells.require_page()
    if homelab.shells.needs_passphrase():
        await Passphrase(homelab.store).ensure_set()
    given = tuple(command or ())
    if objection := homelab.command_rules.objection(given or LOGIN_SHELL):
        raise objection

    async def prepare(found: Machine) -> Plan:
        return _invitation(homelab, found, given)

    return await plan_each(
        homelab, host, "Invite the person to terminals on", prepare, ("link", "terminal", "valid_seconds")
    )


def _invitation(homelab: Homelab, found: Machine, given: tuple[str, ...]) -> Plan:
    if not isinstance(found.transport, SshTransport):
        raise NotConfigured(
            f"{found} is reached by {found.transport.description}, which has no terminal",
            next_step=Advice("Register it by the address of its SSH server", HOST_REGISTER),
        )
    opens = not homelab.command_rules.allows(given or LOGIN_SHELL)
    target = found.transport.target
    argv = given or (LOGIN_SHELL if target.enter else ())
    cluster = (found.where or homelab).name

    async def perform(_: StepContext) -> ActionResult:
        link, terminal = homelab.shells.invite(str(found), cluster, target, argv)
        facts = {"link": link, "terminal": terminal, "valid_seconds": INVITED_SECONDS}
        return ActionResult(facts, next_step="Give the link to the person; it works once")

    line = f"terminal: {command_line(argv) if argv else 'login shell'}"
    return Plan(
        f"Invite the person to a terminal on {found}",
        (machine_action(found, f"Make a link to a terminal on {found}", line, perform, opens=opens),),
        facts={"way": found.transport.description},
    )
