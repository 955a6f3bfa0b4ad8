"""Whether a registered host can be used, step by step, so that the failing step is known."""

from __future__ import annotations

import contextlib
from typing import Any

from quorate.hints import NAMED, Sentence
from quorate.homelab.homelab import Homelab
from quorate.homelab.host import Host
from quorate.homelab.machines import Machine, resolve_host
from quorate.homelab.selection import knock
from quorate.inside.transport import Command
from quorate.problems import NotFound, Problem

SECONDS = 20.0
WORDS = 200
STAGES = {"host_key": "host key", "authentication": "login", "configuration": "settings", "refused": "rules"}
"""The step that failed, by the problem's code; anything else is the connection."""
BEFORE = {"refused": "rules", "unreachable": "connection", "timeout": "connection"}
"""The same before anything was sent to the host; anything else is the settings, such as a missing secret."""


async def verify_host(homelab: Homelab, host: Host, *, knock_first: bool = False) -> dict[str, Any]:
    """Log in, try to become root, and store the result. `knock_first`: try no login where nothing answers."""
    under_way = False
    try:
        machine = await resolve_host(homelab, host)
        under_way = True
        if knock_first:
            await knock(machine.target)
        who = await machine.transport.run(Command(("id", "-un")), seconds=SECONDS)
        found = {"verified": True, "logged_in_as": _words(who.stdout), **await _root(machine)}
        verdict = "ok"
    except Problem as problem:
        at = STAGES.get(problem.code, "connection") if under_way else BEFORE.get(problem.code, "settings")
        found = {"verified": False, "failed_at": at, "why": str(problem)}
        verdict = problem.what
    await _keep(homelab, host.name, verdict)
    return found


async def _root(machine: Machine) -> dict[str, Any]:
    """Root is not needed to use a host, so lacking it is not a failure."""
    try:
        root = await machine.transport.run(machine.as_root(Command(("true",))), seconds=SECONDS)
    except Problem as problem:
        return {"root": "no", "why_not_root": str(problem)}
    if root.exit_code == 0:
        return {"root": "yes"}
    said = _words(root.stderr) or f"sudo ended with exit code {root.exit_code}"
    hint = " (set {sudo_password} by reference, or allow sudo without a password)" if "password" in said else ""
    return {"root": "no", "why_not_root": Sentence(f"{said}{hint}", sudo_password=NAMED)}


async def _keep(homelab: Homelab, name: str, verdict: str) -> None:
    """The host may have been removed during the attempt."""
    with contextlib.suppress(NotFound):
        await homelab.hosts.change(name, verified=homelab.clock.time(), verdict=verdict)


def _words(output: bytes) -> str:
    return output.decode("utf-8", "replace").strip()[:WORDS]
