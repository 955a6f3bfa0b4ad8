"""A terminal for the person: the tool gives a link, and sees nothing of what is typed there."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from quorate.homelab.home import Homelab
from quorate.homelab.machines import machine
from quorate.homelab.shells import INVITED_SECONDS
from quorate.inside.over_ssh import SshWay
from quorate.operations.hosts.parameters import HostRef, machine_action
from quorate.operations.plan import Performed, Plan
from quorate.operations.registry import Risk, operation
from quorate.problems import NotConfigured
from quorate.pve.tasks import Report
from quorate.ssh.launching import command_line
from quorate.state.passphrase import Passphrase

LOGIN_SHELL = ("/bin/sh", "-l")
"""Where no login chooses one, and what rules for commands see."""


@operation(risk=Risk.CHANGE, idempotent=False)
async def host_shell_open(
    home: Homelab,
    host: HostRef,
    command: Annotated[list[str], Meta(description="Run this instead of a shell, such as ['htop']")] | None = None,
) -> Plan:
    """Make a link to a terminal on a host, for the person to open in a browser; give it to them. It works once, within
    five minutes. You cannot use it."""
    home.shells.require_page()
    if home.shells.needs_passphrase():
        await Passphrase(home.store).ensure_set()
    found = await machine(home, host)
    if not isinstance(found.way, SshWay):
        raise NotConfigured(
            f"{found} is reached by {found.way.description}, which has no terminal",
            next_step="Register it with host_register, by the address of its SSH server",
        )
    given = tuple(command or ())
    if objection := home.command_rules.objection(given or LOGIN_SHELL):
        raise objection
    place = found.way.place
    argv = given or (LOGIN_SHELL if place.enter else ())
    cluster = (found.where or home).name

    async def perform(wait: float, report: Report | None) -> Performed:
        del wait, report
        link, terminal = home.shells.invite(str(found), cluster, place, argv)
        facts = {"link": link, "terminal": terminal, "valid_seconds": INVITED_SECONDS}
        return Performed(facts, next_step="Give the link to the person; it works once")

    line = f"terminal: {command_line(argv) if argv else 'login shell'}"
    return Plan(
        f"Invite the person to a terminal on {found}",
        (machine_action(found, f"Make a link to a terminal on {found}", line, perform),),
        facts={"way": found.way.description},
    )
