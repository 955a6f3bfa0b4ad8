"""How long it takes to copy a disk, and what the tools print meanwhile."""

from __future__ import annotations

from quorate.sim.guests import GIB, MIB
from quorate.sim.tasks import TaskContext

_KIB = 1024
_BYTES_PER_SECOND = 2 * GIB
_LONGEST = 30.0
_STEPS = 10


async def show_copy(context: TaskContext, size: int, prefix: str = "", ending: str = "") -> None:
    """Take the time of copying so many bytes, with a line for every tenth."""
    seconds = min(_LONGEST, max(1.0, size / _BYTES_PER_SECOND))
    for step in range(_STEPS + 1):
        done = size * step // _STEPS
        line = f"{prefix}transferred {amount(done)} of {amount(size)} ({100 * step / _STEPS:.2f}%)"
        if prefix:
            line += f" in {int(seconds * step / _STEPS)}s"
        context.log(line + (ending if step == _STEPS else ""))
        if step < _STEPS:
            await context.sleep(seconds / _STEPS)


def amount(size: int) -> str:
    """Bytes for people, as PVE's log lines have them."""
    for unit, letters in ((GIB, "GiB"), (MIB, "MiB"), (_KIB, "KiB")):
        if size >= unit:
            return f"{size / unit:.1f} {letters}"
    return f"{size:.1f} B"
