"""Whether a registered host can be used: step by step, so that what fails is named."""

from __future__ import annotations

from typing import Any

import msgspec

from quorate.homelab.home import Homelab
from quorate.homelab.host import Host
from quorate.homelab.machines import Machine, registered
from quorate.inside.way import Command
from quorate.problems import Problem

SECONDS = 20.0
WORDS = 200
STAGES = {"host_key": "host key", "authentication": "login", "configuration": "settings", "refused": "rules"}
"""Where it ended, by the kind of problem; anything else is the connection."""


async def verification(home: Homelab, host: Host) -> dict[str, Any]:
    """Log in, try to become root, and keep what came of it."""
    try:
        machine = await registered(home, host)
        who = await machine.way.run(Command(("id", "-un")), seconds=SECONDS)
        found = {"verified": True, "logged_in_as": _words(who.stdout), **await _root(machine)}
        verdict = "ok"
    except Problem as problem:
        found = {"verified": False, "failed_at": STAGES.get(problem.kind, "connection"), "why": str(problem)}
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
    """With the host as it is kept now: it may have been changed while we tried."""
    if now := await home.hosts.find(name):
        await home.hosts.replace(msgspec.structs.replace(now, verified=home.clock.time(), verdict=verdict))


def _words(output: bytes) -> str:
    return output.decode("utf-8", "replace").strip()[:WORDS]
