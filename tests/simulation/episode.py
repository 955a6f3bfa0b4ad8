"""One seed: a cluster, callers, faults, crashes and replicas, and what is wrong in the end."""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import secrets
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from quorate.app import App
from quorate.pipeline.caller import Exchange
from quorate.pipeline.pipeline import Pipeline
from quorate.problems import Problem
from quorate.runs.store import Run, RunState
from tests.simulation import checker
from tests.simulation.evidence import Evidence, ToolCall
from tests.simulation.faultiness import Faultiness
from tests.simulation.kinds import Scenario
from tests.simulation.kinds.evacuate import Evacuate
from tests.simulation.kinds.guest_update import GuestUpdate
from tests.simulation.kinds.remote_move import RemoteMove
from tests.simulation.kinds.restore_drill import RestoreDrill
from tests.simulation.kinds.rolling_update import RollingUpdate
from tests.simulation.kinds.undo import Undo
from tests.simulation.lab import Lab
from tests.simulation.loop import VirtualLoop
from tests.simulation.replica import CURRENT, Disk, Replica, task_factory
from tests.simulation.replica import start as start_server

Kind = type[Scenario]
KINDS: dict[Kind, int] = {
    Evacuate: 8,
    Undo: 8,
    RemoteMove: 3,
    GuestUpdate: 2,
    RestoreDrill: 1,
    RollingUpdate: 1,
}
"""How often each is played: what is cheaper, more often."""

AT_ONCE = 20
"""Episodes between two collections of what dead servers leave."""
TASK_FAILS = 0.25
"""How often the first task of an episode fails in PVE."""
MIND_CHANGES = 0.25
"""How often someone pauses or aborts the run."""
CALM_SECONDS = 6 * 3600.0
"""Within this time after the last fault, every run has to end."""


@contextmanager
def unburied() -> Iterator[None]:
    """The coroutines of dead servers are never closed, only collected, here and in silence."""
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    trace_of, quiet = Pipeline.trace_of, logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    gc.disable()
    gc.freeze()  # what was there before needs no second look: collecting takes a tenth of the time
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
            Pipeline.trace_of = lambda *_: ""  # type: ignore[method-assign]
            while gc.collect():  # what a `finally` of theirs leaves is collected in the next round
                pass
    finally:
        Pipeline.trace_of = trace_of  # type: ignore[method-assign]
        gc.unfreeze()
        gc.enable()
        logging.disable(quiet)
        sys.unraisablehook = hook


def run(seed: int, only: Kind | None = None) -> tuple[list[str], list[str]]:
    """What is wrong after the episode, and its trace. The same seed gives the same trace; `only` chooses its kind."""
    with unburied():
        return play(seed, only)


def first_failure(seeds: Iterable[int], only: Kind | None = None) -> str:
    """The first seed after which something is wrong, with its trace; empty if there is none."""
    for group in batched(seeds, AT_ONCE):
        with unburied():
            for seed in group:
                objections, trace = play(seed, only)
                if objections:
                    return "\n".join([*trace, *objections, f"Again: python -m tests.simulation {seed}"])
    return ""


def batched(seeds: Iterable[int], size: int) -> Iterator[list[int]]:
    left = list(seeds)
    for start in range(0, len(left), size):
        yield left[start : start + size]


def play(seed: int, only: Kind | None) -> tuple[list[str], list[str]]:
    loop = VirtualLoop()
    loop.set_task_factory(task_factory)
    try:
        return loop.run_until_complete(_run(seed, only))
    finally:
        loop.close()  # servers that live or have died are simply left: nothing of them may run again


async def _run(seed: int, only: Kind | None) -> tuple[list[str], list[str]]:
    chance = random.Random(seed)
    drawn = chance.choices(list(KINDS), list(KINDS.values()))[0]
    scenario = (only or drawn)()
    labs = {name: Lab(chance, name, 8006 + number) for number, name in enumerate(scenario.clusters)}
    evidence = Evidence(labs, Disk())
    evidence.calls = scenario.begin(evidence, chance)
    evidence.before = {vmid: (guest.node, guest.running) for vmid, guest in evidence.guests.items()}
    faults = Faultiness(chance.choice((0.0, 0.02, 0.1)), chance.choice((0.0, 0.02, 0.1)))
    drama = _Drama(chance, scenario, evidence, faults)
    try:
        with seeded(chance):
            await drama.play()
    finally:
        for lab in labs.values():
            await lab.close()
    return checker.objections(evidence, scenario), evidence.trace


@contextmanager
def seeded(chance: random.Random) -> Iterator[None]:
    """Ids of runs and changes come from the seed as well: they are part of names."""
    own = random.Random(chance.random())
    ours: dict[str, Callable[..., Any]] = {
        "choice": own.choice,
        "randbits": own.getrandbits,
        "token_bytes": own.randbytes,
        "token_hex": lambda size: own.randbytes(size).hex(),
        "token_urlsafe": lambda size: own.randbytes(size).hex(),
    }
    kept = {name: getattr(secrets, name) for name in ours}
    for name, function in ours.items():
        setattr(secrets, name, function)
    try:
        yield
    finally:
        for name, function in kept.items():
            setattr(secrets, name, function)


class _Drama:
    def __init__(self, chance: random.Random, scenario: Scenario, evidence: Evidence, faults: Faultiness) -> None:
        self._chance = chance
        self._scenario = scenario
        self._evidence = evidence
        self._faults = faults
        self._servers: list[tuple[Replica, App]] = []

    async def play(self) -> None:
        chance, evidence = self._chance, self._evidence
        fails, crashes = chance.random() < TASK_FAILS, chance.randint(0, 3)
        if fails:
            kind = chance.choice(self._scenario.tasks)
            evidence.lab.faults.add(f"task-fails:{kind}:no space left on device;count=1")
        evidence.quiet = not (fails or crashes or self._faults.before or self._faults.after)
        if chance.random() < MIND_CHANGES:
            doubt = asyncio.create_task(self._change_mind())  # noqa: F841, RUF006 - ends with the loop
        await self._first_act(crashes)
        self._faults.active = False
        evidence.lab.faults.clear()
        await self._calm()

    async def _first_act(self, crashes: int) -> None:
        """Callers start things while servers come and go."""
        replicas = [self._server() for _ in range(self._chance.choice((1, 1, 2)))]
        asking = [replicas[0][0].spawn(self._ask(replicas[0][1], call)) for call in list(self._evidence.calls)]
        for _ in range(crashes):
            victim = self._chance.randrange(len(replicas))
            replicas[victim][0].left = self._chance.randint(1, 900)
            await self._until(lambda: replicas[victim][0].dead or self._is_over(asking), 300.0)  # noqa: B023
            if not replicas[victim][0].dead:
                break
            self._say(f"{replicas[victim][0].name} died")
            replicas[victim] = self._server()
        if not self._is_over(asking):
            await asyncio.sleep(self._chance.choice((0.0, 5.0, 30.0)))
        for replica, _ in replicas:
            replica.dead = len(replicas) == 1 or self._chance.random() < 0.5

    def _is_over(self, asking: list[asyncio.Task[Any]]) -> bool:
        """Whether every caller was answered, or never will be, and no run is active."""
        if not all(task.done() for task in asking):
            return False
        query = "SELECT count(*) AS active FROM quorate_runs WHERE state NOT IN ('done', 'failed', 'aborted', 'paused')"
        return not self._evidence.disk.connection.execute(query).fetchone()["active"]

    async def _calm(self) -> None:
        """No more faults: one more server, and an operator who resumes what has paused."""
        earlier = list(self._servers)
        _, app = self._server()
        deadline = asyncio.get_running_loop().time() + CALM_SECONDS
        while asyncio.get_running_loop().time() < deadline:
            runs = await self._listed(app)
            if all(run.state.has_ended for run in runs):
                break
            for run in runs:
                if run.state is RunState.PAUSED:
                    await self._resume(app, run)
            await asyncio.sleep(5)
        for replica, _ in earlier:
            replica.dead = True
        for _ in range(10):  # what was given up is resolved
            await self._outside(app.pipeline.resolve_unfinished())
            if not self._evidence.disk.connection.execute("SELECT id FROM quorate_changes").fetchall():
                break
            await asyncio.sleep(30)
        self._evidence.runs = await self._listed(app)
        for run in self._evidence.runs:
            self._say(f"run {run.kind} {run.state} {run.reason}")

    async def _listed(self, app: App) -> list[Run]:
        return list(await self._outside(app.runs.store.list(limit=100)))

    async def _resume(self, app: App, run: Run) -> None:
        try:
            await self._outside(app.runs.control(run.id, "resume", Exchange()))
        except Problem as problem:
            self._say(f"not resumed: {problem}")

    async def _outside(self, work: Any) -> Any:
        return await work

    def _server(self) -> tuple[Replica, App]:
        replica = Replica(f"server{len(self._servers) + 1}", self._evidence.disk)
        token = CURRENT.set(replica)
        try:
            app = start_server(replica, self._evidence.labs.values(), self._chance, self._faults)
        finally:
            CURRENT.reset(token)
        replica.spawn(self._serve(app))
        self._servers.append((replica, app))
        return replica, app

    async def _serve(self, app: App) -> None:
        async with app.resolving(), app.runs.working():
            await asyncio.sleep(1e9)

    async def _ask(self, app: App, call: ToolCall) -> None:
        """One caller: the request, and what follows from it."""
        await asyncio.sleep(self._chance.random() * 20)
        await self._call(app, call)
        while following := self._scenario.follow_up(self._evidence, call):
            call = following
            self._evidence.calls.append(call)
            await self._call(app, call)

    async def _change_mind(self) -> None:
        """Someone pauses or aborts the run, through any server that lives."""
        chance = self._chance
        after, action = chance.random() * self._scenario.lasts, chance.choice(("pause", "abort"))
        while not (rows := self._evidence.disk.connection.execute("SELECT id FROM quorate_runs").fetchall()):
            await asyncio.sleep(1)
        await asyncio.sleep(after)
        if living := [(replica, app) for replica, app in self._servers if not replica.dead]:
            replica, app = chance.choice(living)
            control = ToolCall("run_control", {"run": rows[0]["id"], "action": action})
            self._evidence.calls.append(control)
            replica.spawn(self._call(app, control))

    async def _call(self, app: App, call: ToolCall) -> None:
        try:
            result = await app.pipeline.run(call.tool, call.arguments, Exchange())
            assert isinstance(result.data, dict)
            call.answer = result.data
        except Problem as problem:
            call.problem = str(problem)
        except Exception as error:
            self._evidence.seen.append(f"{call.tool} broke inside: {error!r}")
            raise
        self._say(f"{call.tool} {call.problem or 'answered'}")

    async def _until(self, holds: Callable[[], bool], seconds: float) -> None:
        deadline = asyncio.get_running_loop().time() + seconds
        while not holds() and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(1)

    def _say(self, line: str) -> None:
        self._evidence.trace.append(f"{asyncio.get_running_loop().time():.3f} {line}")
