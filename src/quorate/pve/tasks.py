"""PVE's tasks: reading UPIDs, following one to its end, finding the one that a lost answer would have named."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Container, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from quorate.pve.errors import BadArgument, NodeOffline, Problem, ServerFailed, TimedOut, Unreachable

if TYPE_CHECKING:
    from quorate.pve.client import PveClient
    from quorate.pve.clock import Clock

FIRST_INTERVAL = 0.2
LONGEST_INTERVAL = 3.0
GROWTH = 1.5
LONGEST_SILENCE = 120.0  # a node that stays away for longer is not waited for
FAILED_LOOKS = 3  # errors of PVE in a row that are put up with; they are mostly over at the next look
LEAST_LOOK = 5.0  # seconds that even the last look may take
LOG_PAGE = 500
LOG_KEPT = 1000
OWN_TASKS_KEPT = 5000
EMPTY_LOG = "no content"  # PVE's line for a log that has none yet

Report = Callable[[float, float | None, str], Awaitable[None]]
"""Progress for whoever waits: how far, of how much, and a line of text."""

_UPID = re.compile(
    r"^UPID:(?P<node>[a-zA-Z0-9](?:[a-zA-Z0-9\-]*[a-zA-Z0-9])?):(?P<pid>[0-9A-Fa-f]{8}):(?P<pstart>[0-9A-Fa-f]{8,9})"
    r":(?P<start>[0-9A-Fa-f]{8}):(?P<type>[^:\s/]+):(?P<id>[^:\s/]*):(?P<user>[^:\s/]+):$"
)
_PERCENT = re.compile(r"(\d{1,3}(?:\.\d+)?)\s?%")


@dataclass(frozen=True, slots=True)
class Upid:
    """The name of a task: where it runs, since when, what it does to what, for whom."""

    text: str
    node: str
    started: int
    type: str
    id: str
    user: str

    @classmethod
    def parse(cls, text: str) -> Upid:
        found = _UPID.match(text.strip())
        if found is None:
            raise BadArgument(
                f"{text!r} is not a task id",
                why="A task id is a UPID, such as UPID:pve1:0001ABCD:00FF00FF:6723A1B2:qmstart:100:root@pam:",
                next_step="task_list shows the ids of recent tasks",
            )
        return cls(text.strip(), found["node"], int(found["start"], 16), found["type"], found["id"], found["user"])

    @staticmethod
    def looks_like(value: object) -> bool:
        return isinstance(value, str) and _UPID.match(value) is not None

    @property
    def path(self) -> str:
        return f"/nodes/{self.node}/tasks/{self.text}"


class OwnTasks:
    """The newest tasks that our calls have started; a server that runs for months must not remember all of them."""

    def __init__(self, most: int = OWN_TASKS_KEPT) -> None:
        self._most = most
        self._texts: dict[str, None] = {}

    def add(self, text: str) -> None:
        self._texts[text] = None
        if len(self._texts) > self._most:
            del self._texts[next(iter(self._texts))]

    def __contains__(self, text: object) -> bool:
        return text in self._texts


@dataclass(slots=True)
class TaskState:
    """How a task stands."""

    upid: Upid
    running: bool
    exit: str | None = None
    ended: int | None = None
    percent: float | None = None
    log: list[str] = field(default_factory=list)
    """The last lines."""
    lines_seen: int = 0
    seconds_followed: float = 0.0
    trouble: Problem | None = None
    """Why the last look failed, if it did."""

    @property
    def outcome(self) -> str:
        """running, ok, warnings or failed."""
        if self.running:
            return "running"
        if self.exit == "OK":
            return "ok"
        return "warnings" if (self.exit or "").startswith("WARNINGS") else "failed"


async def read_state(client: PveClient, upid: Upid) -> TaskState:
    status: dict[str, Any] = await client.get(upid.path + "/status")
    running = status.get("status") == "running"
    return TaskState(upid, running, None if running else str(status.get("exitstatus", "unexpected status")))


async def read_log(client: PveClient, upid: Upid, *, start: int = 0, limit: int = LOG_PAGE) -> tuple[list[str], int]:
    """Lines from `start` on, and how many there are in all."""
    answer = await client.request("GET", upid.path + "/log", {"start": start, "limit": limit})
    lines = [str(line.get("t", "")) for line in answer.data or []]
    if lines == [EMPTY_LOG]:
        return [], 0
    return lines, answer.total if answer.total is not None else start + len(lines)


async def read_log_tail(client: PveClient, upid: Upid, lines: int) -> tuple[list[str], int]:
    """The last `lines` lines: one request for a short log, two for a long one."""
    page, total = await read_log(client, upid)
    if total > len(page):
        page, total = await read_log(client, upid, start=max(0, total - lines), limit=lines)
    return page[-lines:] if lines else [], total


async def follow(
    client: PveClient, upid: Upid, *, clock: Clock, wait: float, report: Report | None = None
) -> TaskState:
    """Ask until the task has ended, `wait` seconds are over or the server ends, at growing intervals; pass progress on.

    A node that stops answering meanwhile is asked on for a while: a task outlives a bad connection. If it stays away,
    the state says so (`trouble`), and the task counts as running: nobody knows better. An answer that is an error is
    raised if it comes again and again.
    """
    begun = clock.monotonic()
    interval = FIRST_INTERVAL
    state = TaskState(upid, running=True)
    heard_of, failed = begun, 0
    while True:
        try:
            left = wait - (clock.monotonic() - begun)
            fresh = await _look(client, state, None if left == float("inf") else max(left, LEAST_LOOK))
            heard_of, failed = clock.monotonic(), 0
        except (NodeOffline, ServerFailed, TimedOut, Unreachable) as problem:
            failed += isinstance(problem, ServerFailed)
            if failed == FAILED_LOOKS:
                raise
            state.trouble, fresh = problem, [f"no answer: {problem.what}"]
        state.seconds_followed = clock.monotonic() - begun
        if report and (fresh or not state.running):
            await report(100.0 if not state.running else (state.percent or 0.0), 100.0, _line(upid, fresh or state.log))
        silent = clock.monotonic() - heard_of > LONGEST_SILENCE
        if not state.running or state.seconds_followed >= wait or silent or client.leaving:
            return state
        await clock.sleep(min(interval, max(0.05, wait - state.seconds_followed)))
        interval = min(interval * GROWTH, LONGEST_INTERVAL)


async def _look(client: PveClient, state: TaskState, seconds: float | None) -> list[str]:
    """Bring `state` up to date within so many seconds and return the new lines.

    Status first, then the log: the log of a task that has ended is then complete.
    """
    try:
        async with asyncio.timeout(seconds):
            now = await read_state(client, state.upid)
            fresh = await _new_lines(client, state)
    except TimeoutError:
        raise TimedOut(f"Node {state.upid.node} did not answer in time") from None
    state.running, state.exit, state.trouble = now.running, now.exit, None
    state.log = [*state.log, *fresh][-LOG_KEPT:]
    state.lines_seen += len(fresh)
    state.percent = last_percent(state.log)
    return fresh


async def _new_lines(client: PveClient, state: TaskState) -> list[str]:
    """All lines since the last look; of very many only the last, the others counted."""
    lines, total = await read_log(client, state.upid, start=state.lines_seen)
    while state.lines_seen + len(lines) < total:
        if total - state.lines_seen - len(lines) > LOG_KEPT:
            state.lines_seen = total - LOG_KEPT
            lines = []
        more, total = await read_log(client, state.upid, start=state.lines_seen + len(lines))
        if not more:
            break
        lines += more
    return lines


def _line(upid: Upid, lines: Iterable[str]) -> str:
    last = next((line for line in reversed(list(lines)) if line.strip()), "")
    return f"{upid.type} {upid.id}: {last}"[:200]


def last_percent(log: Iterable[str]) -> float | None:
    """The newest percentage that the log mentions."""
    for line in reversed(list(log)):
        if found := _PERCENT.search(line):
            return min(float(found[1]), 100.0)
    return None


async def find_started(
    client: PveClient,
    node: str,
    *,
    types: Container[str],
    ids: Container[str],
    since: float,
    clock: Clock,
    known: Container[str],
) -> Upid | None:
    """The task that a write with a lost answer has started, if it did.

    `since` is our time just before sending; `known` are tasks that belong to other calls of ours.
    """
    earliest = int(since + client.clock_skew) - 1
    for pause in (0.0, 1.0, 2.0):  # PVE lists a task a moment after it has begun
        await clock.sleep(pause)
        listed = await client.get(f"/nodes/{node}/tasks", source="all", since=earliest, limit=100)
        for row in listed or []:
            upid = Upid.parse(row["upid"])
            ours = upid.user == client.identity and upid.text not in known
            if ours and upid.type in types and upid.id in ids and upid.started >= earliest:
                return upid
    return None


async def gather_bounded(limit: int, work: Iterable[Callable[[], Awaitable[Any]]]) -> list[Any]:
    """Run all of `work`, at most `limit` at a time, results in order."""
    gate = asyncio.Semaphore(limit)

    async def one(job: Callable[[], Awaitable[Any]]) -> Any:
        async with gate:
            return await job()

    return await asyncio.gather(*(one(job) for job in work))
