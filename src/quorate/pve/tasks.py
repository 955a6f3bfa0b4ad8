"""PVE's tasks: parse UPIDs, follow a task to its end, find the task of a lost answer."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from quorate.hints import Advice, tools
from quorate.problems import BadTaskId, NodeOffline, Problem, ServerFailed, TimedOut, Unreachable

if TYPE_CHECKING:
    from quorate.pve.client import PveClient
    from quorate.pve.connection import Clock

T = TypeVar("T")

FIRST_INTERVAL = 0.1
LONGEST_INTERVAL = 3.0
GROWTH = 0.5  # of the time that the task has been followed: a long one is polled less often
SHORT_TASK = 1.0  # seconds; the progress of a shorter task is not worth reading its log
LONGEST_SILENCE = 120.0  # do not wait for a node that is unreachable for longer
FAILED_LOOKS = 3  # consecutive errors of PVE that are tolerated, because most are transient
LEAST_LOOK = 5.0  # seconds that even the last poll may take
LOG_PAGE = 500
LOG_KEPT = 1000
OWN_TASKS_KEPT = 5000
LISTED = 500  # tasks to search for one that this server started
LISTING_PAUSES = (0.0, 1.0, 2.0)  # seconds: PVE lists a task a moment after it starts
EMPTY_LOG = "no content"  # PVE's line for an empty log

Report = Callable[[float, float | None, str], Awaitable[None]]
"""Reports progress: how far, of how much, and a line of text."""

_UPID = re.compile(
    r"^UPID:(?P<node>[a-zA-Z0-9](?:[a-zA-Z0-9\-]*[a-zA-Z0-9])?):(?P<pid>[0-9A-Fa-f]{8}):(?P<pstart>[0-9A-Fa-f]{8,9})"
    r":(?P<start>[0-9A-Fa-f]{8}):(?P<type>[^:\s/]+):(?P<id>[^:\s/]*):(?P<user>[^:\s/]+):$"
)
_PERCENT = re.compile(r"(\d{1,3}(?:\.\d+)?)\s?%")


@dataclass(frozen=True, slots=True)
class Upid:
    """The id of a task: node, start time, type, target and user."""

    text: str
    node: str
    started: int
    type: str
    id: str
    user: str
    first_line: ClassVar[int] = 0
    """The number of the first line of its log."""

    @classmethod
    def parse(cls, text: str) -> Upid:
        match = _UPID.match(text.strip())
        if match is None:
            raise BadTaskId(
                f"{text!r} is not a task id",
                why="A task id is a UPID, such as `UPID:pve1:0001ABCD:00FF00FF:6723A1B2:qmstart:100:root@pam:`",
                next_step=Advice("Find the id among the recent tasks", tools.task_list),
            )
        return cls(text.strip(), match["node"], int(match["start"], 16), match["type"], match["id"], match["user"])

    @staticmethod
    def looks_like(value: object) -> bool:
        return isinstance(value, str) and _UPID.match(value) is not None

    @property
    def path(self) -> str:
        return f"/nodes/{self.node}/tasks/{self.text}"

    @property
    def vmid(self) -> str:
        """The guest that it works on, also in `100@local` for a volume; empty if it names none."""
        number = self.id.partition("@")[0]
        return str(int(number)) if number.isascii() and number.isdigit() else ""


class OwnTasks:
    """The most recent tasks that our calls started, bounded for servers that run for months."""

    def __init__(self, most: int = OWN_TASKS_KEPT) -> None:
        self._most = most
        self._texts: dict[str, None] = {}

    def add(self, text: str) -> None:
        self._texts[text] = None
        if len(self._texts) > self._most:
            del self._texts[next(iter(self._texts))]

    def __contains__(self, text: object) -> bool:
        return text in self._texts


class TaskOutcome(StrEnum):
    RUNNING = "running"
    OK = "ok"
    WARNINGS = "warnings"
    FAILED = "failed"


@dataclass(slots=True)
class TaskState:
    """The state of a task."""

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
    """Why the last poll failed, if it did."""

    @property
    def outcome(self) -> TaskOutcome:
        if self.running:
            return TaskOutcome.RUNNING
        if self.exit == "OK":
            return TaskOutcome.OK
        return TaskOutcome.WARNINGS if (self.exit or "").startswith("WARNINGS") else TaskOutcome.FAILED


async def read_state(client: PveClient, upid: Upid) -> TaskState:
    status: dict[str, Any] = await client.get(upid.path + "/status")
    running = status.get("status") == "running"
    return TaskState(upid, running, None if running else str(status.get("exitstatus", "unexpected status")))


async def read_log(client: PveClient, upid: Upid, *, start: int = 0, limit: int = LOG_PAGE) -> tuple[list[str], int]:
    """Lines from `start` on, and the total number of lines."""
    answer = await client.request("GET", upid.path + "/log", {"start": start + upid.first_line, "limit": limit})
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
    client: PveClient,
    upid: Upid,
    *,
    clock: Clock,
    wait: float,
    report: Report | None = None,
    log: bool = False,
    new: bool = False,
) -> TaskState:
    """Poll at growing intervals until the task ends, `wait` seconds pass or the server shuts down; report progress.

    The log is read if the caller shows it (`log`), for the progress of a task that is not short, and at an end that is
    not OK. `new`: the task was just started, so the first poll comes a moment later.

    A node that stops answering is polled for a while longer, because a task outlives a bad connection. If it stays
    down, the state says so (`trouble`), and the task counts as running. An error that repeats is raised.
    """
    begun = clock.monotonic()
    state = TaskState(upid, running=True)
    heard_of, failed = begun, 0
    if new:
        await clock.sleep(min(FIRST_INTERVAL, wait))
    while True:
        try:
            left = wait - (clock.monotonic() - begun)
            shown = log or (report is not None and clock.monotonic() - begun >= SHORT_TASK)
            fresh = await _look(client, state, None if left == float("inf") else max(left, LEAST_LOOK), log=shown)
            heard_of, failed = clock.monotonic(), 0
        except (NodeOffline, ServerFailed, TimedOut, Unreachable) as problem:
            failed += isinstance(problem, ServerFailed)
            if failed == FAILED_LOOKS:
                raise
            state.trouble, fresh = problem, [f"no answer: {problem.what}"]
        state.seconds_followed = clock.monotonic() - begun
        if report and (fresh or not state.running):
            await report(100.0 if not state.running else (state.percent or 0.0), 100.0, _line(state, fresh))
        silent = clock.monotonic() - heard_of > LONGEST_SILENCE
        if not state.running or state.seconds_followed >= wait or silent or client.leaving:
            return state
        interval = min(max(FIRST_INTERVAL, state.seconds_followed * GROWTH), LONGEST_INTERVAL)
        await clock.sleep(min(interval, max(0.05, wait - state.seconds_followed)))


async def _look(client: PveClient, state: TaskState, seconds: float | None, *, log: bool) -> list[str]:
    """Update `state` within this number of seconds and return the new lines.

    Status first, then the log: the log of a task that has ended is then complete.
    """
    try:
        async with asyncio.timeout(seconds):
            latest = await read_state(client, state.upid)
            ended_well = latest.outcome is TaskOutcome.OK
            fresh = await _new_lines(client, state) if log or not (latest.running or ended_well) else []
    except TimeoutError:
        raise TimedOut(f"Node {state.upid.node} did not answer in time") from None
    state.running, state.exit, state.trouble = latest.running, latest.exit, None
    state.log = [*state.log, *fresh][-LOG_KEPT:]
    state.lines_seen += len(fresh)
    state.percent = last_percent(state.log)
    return fresh


async def _new_lines(client: PveClient, state: TaskState) -> list[str]:
    """All lines since the last poll; of very many only the last ones, the others are counted."""
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


def _line(state: TaskState, fresh: Sequence[str]) -> str:
    last = next((line for line in reversed(fresh or state.log) if line.strip()), state.exit or "")
    return f"{state.upid.type} {state.upid.id}: {last}"[:200]


def last_percent(log: Iterable[str]) -> float | None:
    """The last percentage in the log."""
    for line in reversed(list(log)):
        if match := _PERCENT.search(line):
            return min(float(match[1]), 100.0)
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
    """The task that another one started, if any. `since` is by the cluster's clock; `known` are of other calls."""
    for pause in LISTING_PAUSES:
        await clock.sleep(pause)
        for upid in await started_since(client, node, types, since):
            if upid.id in ids and upid.text not in known:
                return upid
    return None


async def started_since(client: PveClient, node: str, types: Container[str], since: float) -> list[Upid]:
    """Our tasks of these types on a node, newest first; `since` is by the cluster's clock."""
    earliest = max(0, int(since) - 1)
    listed = await client.get(f"/nodes/{node}/tasks", source="all", since=earliest, limit=LISTED)
    upids = [Upid.parse(row["upid"]) for row in listed or []]
    return [upid for upid in upids if upid.user == client.identity and upid.type in types and upid.started >= earliest]


async def for_each(limit: int, items: Iterable[T], work: Callable[[T], Awaitable[None]]) -> None:
    """Call `work` for every item, `limit` at a time. An item is taken from `items` only when its turn comes."""
    queue = iter(items)

    async def take_turns() -> None:
        for item in queue:
            await work(item)

    async with asyncio.TaskGroup() as workers:
        for _ in range(limit):
            workers.create_task(take_turns())


async def gather_bounded(limit: int, work: Iterable[Callable[[], Awaitable[Any]]]) -> list[Any]:
    """Run all of `work`, at most `limit` at a time, results in order. After a failure nothing of it continues."""
    gate = asyncio.Semaphore(limit)

    async def run(job: Callable[[], Awaitable[Any]]) -> Any:
        async with gate:
            return await job()

    tasks = [asyncio.ensure_future(run(job)) for job in work]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:  # gather leaves the others running: they would send writes after their change is closed
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
