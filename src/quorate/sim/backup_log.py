"""How backup and restore tasks speak: prefixes, sizes, times and the steps of a long transfer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from quorate.sim.guests import GIB, MIB
from quorate.sim.tasks import TaskContext

_BYTES_PER_SECOND = 500 * MIB
# Nobody wants to watch a backup for an hour: large disks are faster here than in life.
_LONGEST_SECONDS = 12
_UNITS = (("TiB", 1024 * GIB), ("GiB", GIB), ("MiB", MIB), ("KiB", 1024))


class BackupLog:
    """The log of a vzdump task: every line says how serious it is."""

    def __init__(self, context: TaskContext) -> None:
        self._context = context

    def info(self, text: str) -> None:
        self._context.log(f"INFO: {text}")

    def error(self, text: str) -> None:
        self._context.log(f"ERROR: {text}")


@dataclass(frozen=True, slots=True)
class Step:
    """Part of a transfer: how long it takes, and how far everything is at its end."""

    seconds: int
    percent: int
    of_seconds: int


def transfer_steps(total: int) -> Iterator[Step]:
    """A transfer of so many bytes in steps of a second; nothing takes no time."""
    seconds = min(_LONGEST_SECONDS, -(-total // _BYTES_PER_SECOND))
    for second in range(1, seconds + 1):
        yield Step(1, second * 100 // seconds, seconds)


def clock_time(now: float) -> str:
    return datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%d %H:%M:%S")


def size_text(size: int, digits: int = 1) -> str:
    """A size as the backup tools write it, such as `1.5 GiB`."""
    for unit, factor in _UNITS:
        if size >= factor:
            return f"{size / factor:.{digits}f} {unit}"
    return f"{size} B"
