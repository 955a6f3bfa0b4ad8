"""Tasks: UPIDs, logs, progress and exit status."""

from __future__ import annotations

import asyncio
import bisect
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field

from pve_simulator.clock import Clock
from pve_simulator.http.refusals import Refusal

_PATTERN = re.compile(
    r"^UPID:([a-zA-Z0-9](?:[a-zA-Z0-9\-]*[a-zA-Z0-9])?):([0-9A-Fa-f]{8}):([0-9A-Fa-f]{8,9}):([0-9A-Fa-f]{8})"
    r":([^:\s/]+):([^:\s/]*):([^:\s/]+):$"
)


@dataclass(frozen=True, slots=True)
class Upid:
    """The parts of a task identifier."""

    node: str
    pid: int
    pstart: int
    starttime: int
    type: str
    id: str
    user: str

    def __str__(self) -> str:
        return (
            f"UPID:{self.node}:{self.pid:08X}:{self.pstart:08X}:{self.starttime:08X}:{self.type}:{self.id}:{self.user}:"
        )

    @property
    def owner(self) -> str:
        """The user, without the token."""
        return self.user.partition("!")[0]

    @property
    def tokenid(self) -> str | None:
        """The name of the token that started the task, if any."""
        return self.user.partition("!")[2] or None


def parse_upid(text: str) -> Upid | None:
    """Parse a UPID; None where PVE could not parse it either."""
    match = _PATTERN.match(text)
    if match is None:
        return None
    node, pid, pstart, starttime, kind, target, user = match.groups()
    return Upid(node, int(pid, 16), int(pstart, 16), int(starttime, 16), kind, target, user)


INTERRUPTED = "received interrupt"
LOST = "unexpected status"

# Timeout for the file lock of a guest's configuration, as in PVE.
_CONFIG_LOCK_TIMEOUT = 10.0


class TaskError(Exception):
    """Ends a task with this text as its exit status."""


@dataclass(slots=True)
class Task:
    """One worker task: running until `endtime` is set, then with an exit status."""

    upid: Upid
    log: list[str] = field(default_factory=list)
    warnings: int = 0
    endtime: float | None = None
    exitstatus: str | None = None
    inside: bool = False  # started by another task, so that no daemon notices its end

    @property
    def running(self) -> bool:
        return self.endtime is None

    @property
    def failed(self) -> bool:
        return self.exitstatus is not None and self.exitstatus != "OK"

    @property
    def went_wrong(self) -> bool:
        """Whether the task ended with an error; warnings do not count."""
        return self.failed and not str(self.exitstatus).startswith("WARNINGS")

    def end(self, now: float, exitstatus: str) -> None:
        """Write the closing line and the exit status, once."""
        self.endtime = now
        self.exitstatus = exitstatus = " ".join(exitstatus.split("\n")).strip()
        if exitstatus == "OK" or exitstatus.startswith("WARNINGS: "):
            self.log.append(f"TASK {exitstatus}")
        else:
            self.log.append(f"TASK ERROR: {exitstatus}")


class Lockable:
    """Something with a lock file, such as a guest: one task at a time may change it."""

    lock_file: str
    lock_file_held: bool


class TaskContext:
    """The interface of a task's work: log, warn, take time, hold a guest's lock file."""

    def __init__(self, task: Task, clock: Clock) -> None:
        self.task = task
        self.clock = clock

    def log(self, *lines: str) -> None:
        """Add lines to the task log."""
        self.task.log.extend(lines)

    def warn(self, line: str) -> None:
        """Log a warning: the task ends with WARNINGS instead of OK."""
        self.task.warnings += 1
        self.task.log.append(f"WARN: {line}")

    async def sleep(self, seconds: float) -> None:
        """Take this long on the simulator's clock."""
        await self.clock.sleep(seconds)

    def config_lock(self, target: Lockable) -> AbstractAsyncContextManager[None]:
        """Hold the lock file of a guest: `async with context.config_lock(guest): ...`."""
        return config_lock(self.clock, target, self.log)


@asynccontextmanager
async def config_lock(clock: Clock, target: Lockable, log: Callable[..., None] | None = None) -> AsyncIterator[None]:
    """Hold the lock file of a guest, after waiting until it is free; tasks log that they wait."""
    waited = 0.0
    while target.lock_file_held:
        if waited == 0.0 and log is not None:
            log("trying to acquire lock...")
        if waited >= _CONFIG_LOCK_TIMEOUT:
            raise TaskError(f"can't lock file '{target.lock_file}' - got timeout")
        await clock.sleep(0.5)
        waited += 0.5
    if waited and log is not None:
        log(" OK")
    target.lock_file_held = True
    try:
        yield
    finally:
        target.lock_file_held = False


Work = Callable[[TaskContext], Awaitable[None]]
FailureOf = Callable[[str, str], str | None]


class Tasks:
    """All tasks of the cluster, in the order they were started."""

    def __init__(self, clock: Clock, booted_at: float) -> None:
        self._clock = clock
        self._booted_at = booted_at
        self._next_pid = 1200
        self._by_upid: dict[str, Task] = {}
        self._by_node: dict[str, list[Task]] = {}
        self._workers: dict[str, asyncio.Task[None]] = {}
        self._background: set[asyncio.Task[None]] = set()
        self.failure_of: FailureOf = lambda _type, _id: None
        self.clock_offset_of: Callable[[str], float] = lambda _node: 0.0
        """Seconds that a node's clock is ahead."""

    def start(self, node: str, kind: str, target: str, user: str, work: Work, *, inside: bool = False) -> str:
        """Start `work` as a task of `node` on behalf of `user`; returns its UPID at once."""
        task = self._register(node, kind, target, user, self._time_on(node))
        task.inside = inside
        upid = str(task.upid)
        forced = self.failure_of(kind, target)
        runner = self._run(task, failing(forced) if forced is not None else work)
        self._workers[upid] = asyncio.get_running_loop().create_task(runner, name=upid)
        return upid

    async def wait_for(self, upid: str) -> None:
        """Wait for the end of a task, however it ends."""
        if worker := self._workers.get(upid):
            await asyncio.wait([worker])

    def add_finished(
        self, node: str, kind: str, target: str, user: str, *, started: float, lasted: float, exitstatus: str = "OK"
    ) -> Task:
        """Add a finished task to the history of a new world."""
        task = self._register(node, kind, target, user, started)
        task.end(started + lasted, exitstatus)
        return task

    def find(self, upid: str) -> Task | None:
        """The task with this UPID, if there is one."""
        return self._by_upid.get(upid)

    def is_archived(self, task: Task) -> bool:
        """Whether a finished task is listed as such: one started by another task waits for the node's next task."""
        return not task.inside or self._by_node[task.upid.node][-1] is not task

    def newest_first(self, node: str) -> Iterator[Task]:
        """The tasks of one node, latest start first."""
        return reversed(self._by_node.get(node, []))

    def active(self, *, kind: str | None = None, target: str | None = None) -> list[Task]:
        """The running tasks, optionally of one type or target."""
        running = (self._by_upid[upid] for upid in self._workers)
        return [
            task
            for task in running
            if task.running and kind in (None, task.upid.type) and target in (None, task.upid.id)
        ]

    async def cancel(self, upid: str) -> None:
        """Interrupt a running task; a finished one is unchanged."""
        worker = self._workers.pop(upid, None)
        if worker is None:
            return
        worker.cancel()
        await asyncio.wait([worker])
        task = self._by_upid[upid]
        if task.running:  # it had not started, so its work did not see the interrupt
            task.end(self._time_on(task.upid.node), INTERRUPTED)

    def lose(self, node: str) -> None:
        """End the tasks of a node that has lost its power: nobody writes how they ended."""
        for upid in [upid for upid in self._workers if self._by_upid[upid].upid.node == node]:
            self._by_upid[upid].end(self._time_on(node), LOST)
            self._workers.pop(upid).cancel()

    def in_background(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Run work without a UPID, such as a booting node; it ends with the cluster."""
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    async def close(self) -> None:
        """Cancel everything that still runs, when the cluster ends."""
        workers = [*self._background, *self._workers.values()]
        for worker in workers:
            worker.cancel()
        if workers:
            await asyncio.wait(workers)

    def _time_on(self, node: str) -> float:
        return self._clock.now() + self.clock_offset_of(node)

    def _register(self, node: str, kind: str, target: str, user: str, started: float) -> Task:
        self._next_pid = self._next_pid + 7 if self._next_pid < 4_000_000 else 1200
        pstart = max(0, int((started - self._booted_at) * 100))
        task = Task(Upid(node, self._next_pid, pstart, int(started), kind, target, user))
        self._by_upid[str(task.upid)] = task
        bisect.insort(self._by_node.setdefault(node, []), task, key=lambda each: each.upid.starttime)
        return task

    async def _run(self, task: Task, work: Work) -> None:
        exitstatus = LOST  # remains if the work crashes, as in PVE
        try:
            await work(TaskContext(task, self._clock))
            exitstatus = f"WARNINGS: {task.warnings}" if task.warnings else "OK"
        except TaskError as error:
            exitstatus = str(error)
        except Refusal as refusal:  # code that endpoints share with tasks
            exitstatus = refusal.as_task_error()
        except asyncio.CancelledError:
            exitstatus = INTERRUPTED
        finally:
            self._workers.pop(str(task.upid), None)
            if task.running:
                task.end(self._time_on(task.upid.node), exitstatus)


def failing(text: str) -> Work:
    """A task that only ends, with this error."""

    async def work(context: TaskContext) -> None:
        await context.sleep(0.5)
        raise TaskError(text)

    return work
