"""Killing a server at a chosen moment of a change: a fork of this process makes the change and is ended by SIGKILL.

The simulated cluster stays in this process, so it continues as a real one would. A moment is a suspension of any task
of the server, or one of the steps of a write to the trail or to the store: before it, half-way, and after it.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import warnings
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pve_simulator.clock import MANUAL_EPOCH, RealClock
from pve_simulator.simulator import SimulatedCluster
from quorate.app import App, build, simulated_cluster
from quorate.config import Access, Approval, Settings
from quorate.pipeline.caller import Exchange
from quorate.problems import Problem
from quorate.state import trail_storage
from quorate.state.postgres import PostgresDatabase
from quorate.state.sqlite import SqliteDatabase
from quorate.state.trail import fold

EVERY_MOMENT = os.environ.get("EVERY_MOMENT") == "1"
"""Kill at every await and every write of every kind of change: hours, see `python -m tests.journal`."""
SPEED = 100.0
FOREVER = 1e6


def chosen(moments: list[str], most: int, kind: str) -> list[int]:
    """The moments to kill at, counted from 1: all of them, or about `most`, spread evenly.

    The sample is the same in every run. Kinds of changes start at different offsets, so together they cover every sort
    of moment.
    """
    stride = 1 if EVERY_MOMENT else max(1, len(moments) // most)
    return list(range(1 + zlib.crc32(kind.encode()) % stride, len(moments) + 1, stride))


def around_writes(moments: list[str]) -> list[int]:
    """The first moment of every sort, and one await behind each."""
    first: dict[str, int] = {}
    for number, what in enumerate(moments, 1):
        first.setdefault(what, number)
    return sorted({*first.values(), *(number + 1 for number in first.values() if number < len(moments))})


class SharedTime:
    """The simulator's clock as the product sees it; the same in a fork."""

    def __init__(self, clock: RealClock) -> None:
        self._clock = clock
        self.time = self.monotonic = clock.now

    async def sleep(self, seconds: float) -> None:
        await self._clock.sleep(seconds)


class Requests(list[tuple[str, str]]):
    """The requests that the cluster has served; each can be observed before it is answered."""

    def heard(self, method: str, path: str) -> None: ...

    def append(self, request: tuple[str, str]) -> None:
        super().append(request)
        self.heard(*request)


@dataclass
class Scene:
    """A cluster, and the settings of servers on it that share one state."""

    sim: SimulatedCluster
    settings: Settings
    time: SharedTime
    folder: Path
    child: int = 0
    """The process that makes the change."""
    _seen: int = 0

    def server(self) -> App:
        return build(self.settings, clock=self.time)

    async def prepare(self, calls: tuple[tuple[str, Mapping[str, Any]], ...]) -> None:
        """What has to be there before the change, made by a server that ends as it should."""
        app = self.server()
        try:
            for tool, arguments in calls:
                assert not (await app.pipeline.run(tool, arguments, Exchange())).failed
        finally:
            await app.close()
        self._seen = len(self.sim.requests)

    def writes(self) -> Counter[tuple[str, str]]:
        """What the cluster was sent since everything was prepared."""
        return Counter((method, path) for method, path in self.sim.requests[self._seen :] if method != "GET")

    def lines(self) -> list[dict[str, Any]]:
        """Every whole line of the trail; a kill may have cut the last one short."""
        try:
            text = self.settings.audit_file.read_text()
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in text.split("\n")[:-1] if line.startswith("{") and line.endswith("}")]

    def entries(self) -> list[dict[str, Any]]:
        return fold(self.lines())


@asynccontextmanager
async def scene(
    folder: Path, *, ssh: bool = False, nodes: int | None = None, guests: int | None = None, **changes: Any
) -> AsyncIterator[Scene]:
    clock = RealClock(SPEED, MANUAL_EPOCH)  # backups and tasks of the demo are as old as in every other test
    sim = SimulatedCluster(clock=clock, auth_delay=0.0, ssh=ssh, nodes=nodes, guests=guests)
    sim.requests = Requests()
    async with sim:
        settings = Settings(
            **{
                "clusters": (simulated_cluster(sim),),
                "access": Access.ADMIN,
                "approval": Approval.NONE,
                "toolsets": ("all",),
                "audit_file": folder / "audit.jsonl",
                "state": str(folder / "state.sqlite"),
                "wait_seconds": FOREVER,
                **changes,
            }
        )
        yield Scene(sim, settings, SharedTime(clock), folder)


@dataclass(frozen=True)
class Death:
    moments: list[str]
    """What the server was at when each moment passed, up to its end."""
    killed: bool
    told: str


async def run_and_kill(
    stage: Scene, tool: str, arguments: Mapping[str, Any], at: int | None = None, of: str = ""
) -> Death:
    """Let a server make the change and kill it at the moment `at`, counted from 1; with None it lives.

    With `of`, only moments of that sort are counted.
    """
    report = stage.folder / "moments"
    report.write_text("")
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # of forks in threaded processes; this one uses none of the threads
        child = os.fork()
    if child == 0:
        _live_and_die(stage, tool, arguments, _Moments(report, at, of))
    stage.child = child
    _, status = await asyncio.to_thread(os.waitpid, child, 0)
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    *moments, last = report.read_text().split("\n")
    assert killed or last.startswith("told "), f"the server ended in another way: {status} {last}"
    return Death(moments, killed, last)


def _live_and_die(stage: Scene, tool: str, arguments: Mapping[str, Any], moments: _Moments) -> None:
    """In the fork. It must leave nothing to finalisers: they would speak on connections of the parent."""
    code = 1
    try:
        gc.disable()
        asyncio.events._set_running_loop(None)
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        _watch_writes(moments)
        loop.run_until_complete(_change(stage, tool, arguments, moments))
        code = 0
    except BaseException as error:  # noqa: BLE001
        moments.say(f"died of {error!r}")
    finally:
        os._exit(code)


async def _change(stage: Scene, tool: str, arguments: Mapping[str, Any], moments: _Moments) -> None:
    app = stage.server()
    asyncio.get_running_loop().set_task_factory(
        lambda loop, coroutine, **options: asyncio.Task(_Counted(coroutine, moments), loop=loop, **options)
    )
    calling = asyncio.ensure_future(app.pipeline.run(tool, arguments, Exchange()))
    try:
        answer = json.dumps(_plain((await calling).data), default=str)
    except Problem as problem:
        answer = f"problem {problem}"
    moments.over = True
    await app.close()
    moments.say(f"told {answer}")


def _plain(data: Any) -> Any:
    return data if isinstance(data, dict) else str(data)


class _Moments:
    def __init__(self, report: Path, at: int | None, of: str) -> None:
        self._handle = os.open(report, os.O_WRONLY | os.O_APPEND)
        self._left = at
        self._of = of
        self.over = False

    def pass_by(self, what: str) -> None:
        if self.over:
            return
        if self._left is None:
            os.write(self._handle, f"{what}\n".encode())
            return
        if self.dies_at(what):
            os.kill(os.getpid(), signal.SIGKILL)
        self._left -= self._of in ("", what)

    def dies_at(self, what: str) -> bool:
        """Whether the next moment, which is this one, is the last."""
        return not self.over and self._left == 1 and self._of in ("", what)

    def say(self, text: str) -> None:
        os.write(self._handle, text.replace("\n", " ").encode())


class _Counted(Coroutine[Any, Any, Any]):
    """A coroutine whose every suspension is a moment."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any] | Generator[Any, Any, Any], moments: _Moments) -> None:
        self._coroutine = coroutine
        self._moments = moments

    def send(self, value: Any) -> Any:
        yielded = self._coroutine.send(value)
        self._moments.pass_by("await")
        return yielded

    def throw(self, *error: Any) -> Any:
        yielded = self._coroutine.throw(*error)
        self._moments.pass_by("await")
        return yielded

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Any:
        return self._coroutine.__await__()  # type: ignore[union-attr]


def _watch_writes(moments: _Moments) -> None:
    """In the fork: the parts of every write to the trail and the store become moments, too."""
    write = trail_storage._write

    def halting_write(handle: int, data: bytes, size: int) -> None:
        phase = json.loads(data.strip().split(b"\n")[-1]).get("phase", "whole")
        moments.pass_by(f"before {phase}")
        if moments.dies_at(f"within {phase}"):
            os.write(handle, data[: len(data) // 2])  # what a kill within a write may leave
        moments.pass_by(f"within {phase}")
        write(handle, data, size)
        moments.pass_by(f"after {phase}")

    trail_storage._write = halting_write
    for database in (SqliteDatabase, PostgresDatabase):
        database.execute = _halting(database.execute, moments)  # type: ignore[method-assign]


def _halting(execute: Callable[..., Any], moments: _Moments) -> Callable[..., Any]:
    async def halting(self: Any, statement: str, *values: Any) -> int:
        what = " ".join(statement.split()[:3])
        moments.pass_by(f"before {what}")
        touched: int = await execute(self, statement, *values)
        moments.pass_by(f"after {what}")
        return touched

    return halting
