"""Whether a registered host can be used: step by step, so that what fails is named."""

from __future__ import annotations

import contextlib
from typing import Any

from quorate.homelab.home import Homelab
from quorate.homelab.host import Host
from quorate.homelab.machines import Machine, registered
from quorate.inside.way import Command
from quorate.problems import NotFound, Problem

SECONDS = 20.0
WORDS = 200
STAGES = {"host_key": "host key", "authentication": "login", "configuration": "settings", "refused": "rules"}
"""Where it ended, by the kind of problem; anything else is the connection."""
BEFORE = {"refused": "rules", "unreachable": "connection", "timeout": "connection"}
"""The same before anything was sent to the host; anything else is the settings, such as a secret that is gone."""


async def verification(home: Homelab, host: Host) -> dict[str, Any]:
    """Log in, try to become root, and keep what came of it."""
    under_way = False
    try:
        machine = await registered(home, host)
        under_way = True
        who = await machine.way.run(Command(("id", "-un")), seconds=SECONDS)
        found = {"verified": True, "logged_in_as": _words(who.stdout), **await _root(machine)}
        verdict = "ok"
    except Problem as problem:
        at = STAGES.get(problem.kind, "connection") if under_way else BEFORE.get(problem.kind, "settings")
        found = {"verified": False, "failed_at": at, "why": str(problem)}
        verdict = problem.what
    await _keep(home, host.name, verdict)
    return found


async def _root(machine: Machine) -> dict[str, Any]:
    """Root is not needed to use a host, so its lack is a fact and no failure."""
    try:
        root = await machine.way.run(machine.as_root(Command(("true",))), seconds=SECONDS)
    except Problem as problem:
        return {"root": "no", "why_not_root": str(problem)}
    if root.exit_code == 0:
        return {"root": "yes"}
    said = _words(root.stderr) or f"sudo ended with exit code {root.exit_code}"
    hint = "give sudo_password by reference, or allow it without one in sudoers"
    return {"root": "no", "why_not_root": f"{said} ({hint})" if "password" in said else said}


async def _keep(home: Homelab, name: str, verdict: str) -> None:
    """Of one that is still registered: it may have been removed while we tried."""
    with contextlib.suppress(NotFound):
        await home.hosts.change(name, verified=home.clock.time(), verdict=verdict)


def _words(output: bytes) -> str:
    return output.decode("utf-8", "replace").strip()[:WORDS]
