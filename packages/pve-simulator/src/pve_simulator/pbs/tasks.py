"""Tasks of a Proxmox Backup Server: their ids, logs and ends."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from pve_simulator.clock import Clock

ABORTED = "task aborted"
_PLAIN = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.")


class TaskFailure(Exception):
    """The error that a task ends with."""


@dataclass(slots=True)
class Task:
    upid: str
    type: str
    id: str
    auth_id: str
    start: float
    pid: int
    pstart: int
    clock: Clock
    end: float | None = None
    status: str = ""
    lines: list[str] = field(default_factory=list)
    warnings: int = 0

    def log(self, text: str) -> None:
        when = datetime.fromtimestamp(int(self.clock.now()), UTC)
        self.lines.append(f"{when.isoformat()}: {text}")

    def warn(self, text: str) -> None:
        self.warnings += 1
        self.log(text)

    @property
    def store(self) -> str:
        """The datastore by which the task list finds it: that of a few types only."""
        if self.type == "syncjob":
            return self.id.split(":")[2]
        is_found = self.type.startswith("verif") or self.type in ("backup", "garbage_collection", "prune", "prunejob")
        return self.id.partition(":")[0] if is_found else ""


class Tasks:
    """All tasks since the server started, oldest first."""

    def __init__(self, clock: Clock, node: str = "pbs") -> None:
        self._clock = clock
        self._node = node
        self._numbers = itertools.count(1)
        self.all: list[Task] = []
        self._work: dict[str, asyncio.Task[None]] = {}

    def find(self, upid: str) -> Task | None:
        return next((task for task in self.all if task.upid == upid), None)

    def find_running(self, upid: str) -> Task | None:
        """PBS knows a running task by its process and number alone, whatever else the id says."""
        process = upid.split(":")[2:5]
        return next((task for task in self.all if task.end is None and task.upid.split(":")[2:5] == process), None)

    def start(
        self, kind: str, worker_id: str, auth_id: str, work: Callable[[Task], Awaitable[None] | None], seconds: float
    ) -> Task:
        """Begin a task whose work takes effect after these seconds."""
        task = self._create(kind, worker_id, auth_id)
        self._work[task.upid] = asyncio.get_running_loop().create_task(self._run(task, work, seconds))
        return task

    def record(
        self,
        kind: str,
        worker_id: str,
        auth_id: str,
        *,
        lines: tuple[str, ...] = (),
        status: str = "OK",
        at: float | None = None,
    ) -> Task:
        """A task of the past."""
        task = self._create(kind, worker_id, auth_id, at)
        for line in lines:
            task.log(line)
        _finish(task, status, at)
        return task

    def _create(self, kind: str, worker_id: str, auth_id: str, at: float | None = None) -> Task:
        number, now = next(self._numbers), self._clock.now() if at is None else at
        pid, pstart = 4000 + number, 100_000 + number
        process = f"{pid:08X}:{pstart:08X}:{number:08X}:{int(now):08X}"
        upid = f"UPID:{self._node}:{process}:{kind}:{escape(worker_id)}:{auth_id}:"
        task = Task(upid, kind, worker_id, auth_id, now, pid, pstart, self._clock)
        self.all.append(task)
        return task

    async def _run(self, task: Task, work: Callable[[Task], Awaitable[None] | None], seconds: float) -> None:
        try:
            await self._clock.sleep(seconds)
            outcome = work(task)
            if outcome is not None:
                await outcome
        except TaskFailure as error:
            _finish(task, str(error))
        except asyncio.CancelledError:
            _finish(task, ABORTED)
        else:
            _finish(task, f"WARNINGS: {task.warnings}" if task.warnings else "OK")
        self._work.pop(task.upid, None)

    def stop(self, task: Task) -> None:
        running = self._work.get(task.upid)
        if running is not None:
            running.cancel()

    async def close(self) -> None:
        running = list(self._work.values())
        for work in running:
            work.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Something that runs until the server stops."""
        self._work[f"background {next(self._numbers)}"] = asyncio.get_running_loop().create_task(work)


def _finish(task: Task, status: str, at: float | None = None) -> None:
    is_warning = status.startswith("WARNINGS")
    task.log("TASK OK" if status == "OK" else f"TASK {status}" if is_warning else f"TASK ERROR: {status}")
    task.end, task.status = task.clock.now() if at is None else at, status


def escape(text: str) -> str:
    """The id within a UPID, as systemd escapes: `/` becomes `-`, most others `\\xHH`."""
    out = []
    for position, char in enumerate(text):
        if char == "/":
            out.append("-")
        elif char in _PLAIN and not (char == "." and position == 0):
            out.append(char)
        else:
            out.append("".join(f"\\x{byte:02x}" for byte in char.encode()))
    return "".join(out)


def unescape(text: str) -> str:
    out, rest = [], text
    while rest:
        if rest.startswith("\\x"):
            out.append(chr(int(rest[2:4], 16)))
            rest = rest[4:]
        else:
            out.append("/" if rest[0] == "-" else rest[0])
            rest = rest[1:]
    return "".join(out)
