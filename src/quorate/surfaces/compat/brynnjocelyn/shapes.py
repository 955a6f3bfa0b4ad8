"""Parameters that many of brynnjocelyn's tools share, and what its changes answer with."""

from __future__ import annotations

from typing import Any

from quorate.surfaces.compat.declaring import may, need
from quorate.surfaces.compat.placed import number
from quorate.surfaces.compat.running import Done, Run

LONGEST_WAIT = 45.0  # some clients give up soon after

NODE = need("node", "string", "Node name")
VM = need("vmid", "number", "VM id")
CONTAINER = need("vmid", "number", "Container id")
TIMEOUT = may("timeout", "number", about="Seconds the guest may take")
PATIENCE = may("timeout", "number", about="Seconds to wait for the end; the task goes on after that")


def patience(run: Run) -> float | None:
    seconds = number("timeout")(run)
    return None if seconds is None else min(max(0.0, seconds), LONGEST_WAIT)


async def task(_: Run, done: Done) -> dict[str, Any]:
    """The task's id, and what became of it so far; of a new guest also its id and place."""
    if done.was_dry_run:
        return dict(done.facts)
    known = {key: done.facts[key] for key in ("vmid", "node", "backups", "volume") if key in done.facts}
    return {
        **({} if done.task is None else {"upid": done.task}),
        "result": done.facts["result"],
        **known,
        **done.remarks,
    }
