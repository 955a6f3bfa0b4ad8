"""Power steps, and starting guests again that an aborted run had stopped."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from quorate.operations.runs.kind import Next, Step, StepResult, Work
from quorate.operations.runs.moves import rows_of
from quorate.pve.lookup import Resource
from quorate.state.runs import Run

START_TRIES = 3
FAILED_STARTS = "failed_starts"
"""In the memory of an aborted run: how often each guest could not be started."""


def power_step(row: Resource, action: Literal["shutdown", "start"]) -> Step:
    summary = f"{'Shut down' if action == 'shutdown' else 'Start'} {row.kind} {row.vmid} {row.name}"
    return Step(f"{action}-{row.vmid}", "guest_power", {"guest": row.vmid, "action": action}, summary)


async def start_again(work: Work, vmids: Iterable[int]) -> Next | None:
    """Steps that start what an aborted run had stopped; None if there is nothing more that it could do."""
    rows = await rows_of(work.pve, vmids)
    failed = work.memory.get(FAILED_STARTS, {})
    steps = tuple(
        power_step(row, "start")
        for row in rows.values()
        if row.status == "stopped" and not row.lock and failed.get(str(row.vmid), 0) < START_TRIES
    )
    return Next(steps) if steps else None


def count_failed_start(run: Run, vmid: int, result: StepResult) -> None:
    if run.aborting and result.was_sent and not result.is_done:
        failed = run.memory.setdefault(FAILED_STARTS, {})
        failed[str(vmid)] = int(failed.get(str(vmid), 0)) + 1


async def find_stopped(work: Work, vmids: Iterable[int]) -> list[Resource]:
    return [row for row in (await rows_of(work.pve, vmids)).values() if row.status == "stopped"]
