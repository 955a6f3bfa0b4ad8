"""A few hundred calls in one world, and the shortest way to do again what went wrong."""

from __future__ import annotations

import asyncio
import itertools
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from quorate.config import Access
from tests.oracle.loop import InnerLoop
from tests.oracle.script import Script
from tests.oracle.stage import Call, play, stage

CALLS: Final = 250
"""In one world; then everything is rebuilt."""
VERSIONS: Final = ("9.1.8", "9.1.8", "8.4.14")
_TRIES: Final = 150


@dataclass(frozen=True, slots=True)
class Seed:
    """`operate-17`: the access level of the server, and a number that decides everything else."""

    access: Access
    number: int

    @classmethod
    def parse(cls, text: str) -> Seed:
        level, _, number = text.partition("-")
        return cls(Access(level), int(number))

    @property
    def version(self) -> str:
        return VERSIONS[self.number % len(VERSIONS)]

    def __str__(self) -> str:
        return f"{self.access.value}-{self.number}"


@dataclass(frozen=True, slots=True)
class Finding:
    seed: Seed
    objections: Sequence[str]
    calls: Sequence[Call]
    """Those that are needed for it, in order; the last one is the one that is objected to."""

    def __str__(self) -> str:
        return "\n".join(
            [
                f"{self.seed} (PVE {self.seed.version}):",
                *(f"  {objection}" for objection in self.objections),
                "after" if len(self.calls) > 1 else "by",
                *(f"  {call}" for call in self.calls),
                f"Again: python -m tests.oracle {self.seed}",
            ]
        )


def run(seed: Seed, calls: int = CALLS) -> tuple[Finding | None, int]:
    """The first finding of an episode, made small, and how many of its calls wrote something."""
    with asyncio.Runner(loop_factory=InnerLoop) as runner, tempfile.TemporaryDirectory(prefix="oracle-") as folder:
        return runner.run(_run(seed, calls, Path(folder)))


async def _run(seed: Seed, calls: int, folder: Path) -> tuple[Finding | None, int]:
    made: list[Call] = []
    async with stage(folder / "episode", seed.access, seed.version) as here:
        script = Script(here, str(seed))
        for _ in range(calls):
            made.append(script.next())
            if objections := await here.make(made[-1]):
                break
        else:
            return None, here.writes
    return await smallest(Finding(seed, objections, tuple(made)), folder), 0


async def smallest(finding: Finding, folder: Path) -> Finding:
    """Without the calls, then without the arguments of the last one, that do not matter."""
    tries = itertools.count()

    async def played(calls: Sequence[Call]) -> list[str]:
        number = next(tries)
        if number >= _TRIES:
            return []
        objections = await play(folder / f"try-{number}", finding.seed.access, finding.seed.version, calls)
        return (
            objections
            if {_kind(objection) for objection in objections} & {_kind(objection) for objection in finding.objections}
            else []
        )

    *before, last = finding.calls
    before = await _fewest(before, lambda kept: played([*kept, last]))
    last = await _plainest(last, lambda other: played([*before, other]))
    objections = await play(folder / "last", finding.seed.access, finding.seed.version, [*before, last])
    return replace(
        finding, objections=objections or finding.objections, calls=(*before, last) if objections else finding.calls
    )


def _kind(objection: str) -> str:
    """What an objection is about, without numbers and names."""
    return " ".join(objection.split(":")[0].split()[:2])


async def _fewest(calls: list[Call], holds: Callable[[list[Call]], Awaitable[Any]]) -> list[Call]:
    """Halves, quarters and so on are left out as long as it still happens."""
    size = len(calls)
    while calls and size:
        for start in range(0, len(calls), size):
            kept = calls[:start] + calls[start + size :]
            if len(kept) < len(calls) and await holds(kept):
                calls = kept
                break
        else:
            size //= 2
        size = min(size, len(calls))
    return calls


async def _plainest(call: Call, holds: Callable[[Call], Awaitable[Any]]) -> Call:
    for path in [*_paths(call.arguments)]:
        smaller = replace(call, arguments=_without(call.arguments, path))
        if await holds(smaller):
            call = smaller
    return call


def _paths(value: Any) -> list[tuple[str, ...]]:
    """Of everything that could be left out, the larger things first."""
    if not isinstance(value, dict):
        return []
    return [(name,) for name in value] + [(name, *path) for name, held in value.items() for path in _paths(held)]


def _without(value: Any, path: tuple[str, ...]) -> Any:
    name, *rest = path
    if not isinstance(value, dict) or name not in value:
        return value
    if rest:
        return {**value, name: _without(value[name], tuple(rest))}
    return {key: held for key, held in value.items() if key != name}
