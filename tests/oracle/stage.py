"""A server in front of an estate of its own, and what each call to it does there."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from quorate.app import LOOPBACK, App, build
from quorate.config import Access, Approval, ClusterSettings, Settings
from quorate.config.homelab import HomelabSettings
from quorate.pipeline.caller import AnswerLater, Exchange
from quorate.problems import Problem
from quorate.pve.connection import Connection, Secret, Token, Trust
from quorate.ssh.settings import SshSettings
from quorate.surfaces.compat import SYSTEMS, system
from quorate.surfaces.lean import LeanSurface
from quorate.surfaces.native import NativeSurface, Surface
from quorate.surfaces.prompts import Prompts
from quorate.surfaces.resources import Completions, Resources
from tests.oracle import estate, verdict
from tests.oracle.estate import Estate
from tests.oracle.names import OUTSIDE
from tests.oracle.state import State, state_of
from tests.rigs.in_memory_wire import Sent, Wire
from tests.rigs.mcp_session import DrivenTime

AFTERMATH: Final = 90.0
"""Seconds in which the cluster may continue what a call has begun: the HA manager needs more than sixty."""
Way = Callable[[str, dict[str, Any], Exchange], Awaitable[Any]]
"""By which a caller comes in: the tools of a surface, resources, prompts, or names while they are typed."""


@dataclass(frozen=True, slots=True)
class Call:
    way: str
    tool: str
    arguments: dict[str, Any]

    def __str__(self) -> str:
        return json.dumps([self.way, self.tool, self.arguments])


@dataclass(slots=True)
class Stage:
    estate: Estate
    app: App
    wire: Wire
    surfaces: dict[str, Surface]
    ways: dict[str, Way]
    settings: Settings
    state: State = field(default_factory=dict)
    writes: int = 0
    """Calls that sent at least one write."""

    async def make(self, call: Call) -> list[str]:
        """Make the call and say what is wrong with what it told and did."""
        sent_before, recorded_before = len(self.wire.sent), self._trail_size()
        told = await self._told(call)
        sent = tuple(self.wire.sent[sent_before:])
        objections = [line for line in told if line.startswith(BROKE)]
        objections += verdict.leaks(str(call), "\n".join(told))
        if self.settings.access is Access.READ:
            objections += verdict.outside(sent, OUTSIDE)
            objections += [f"something was written at read: {request}" for request in sent if request.method != "GET"]
        if any(request.method != "GET" for request in sent):
            self.writes += 1
            objections += await self._consequences(sent, recorded_before)
        return objections

    async def _told(self, call: Call) -> list[str]:
        """Every line that the caller gets to see."""
        told: list[str] = []

        async def report(_: float, __: float | None, line: str) -> None:
            told.append(line)

        try:
            answer = await self.ways[call.way](call.tool, call.arguments, Exchange(report=report))
            told.append(answer if isinstance(answer, str) else answer.model_dump_json())
        except Problem as problem:
            told += [str(problem), json.dumps(problem.facts, default=str)]
        except AnswerLater as later:
            told.append(later.question.text)
        except Exception as error:  # noqa: BLE001 (that nothing breaks is part of the question)
            told.append(f"{BROKE} {type(error).__name__}: {error}")
        if any("internal error of the simulated cluster" in line for line in told):
            told.append(f"{BROKE} in the simulator: {self.wire.sent[-1]}")
        return told

    async def _consequences(self, sent: tuple[Sent, ...], recorded_before: int) -> list[str]:
        await self.estate.clock.advance(AFTERMATH)
        before, self.state = self.state, state_of(self.estate.world)
        return verdict.objections(verdict.Deed(self._recorded(recorded_before), sent, before, self.state))

    def _trail_size(self) -> int:
        trail = self.settings.audit_file
        return trail.stat().st_size if trail.exists() else 0

    def _recorded(self, since: int) -> frozenset[str]:
        """The changes that ran, by the audit trail: the tools of other servers run native operations."""
        if not self.settings.audit_file.exists():
            return frozenset()
        with self.settings.audit_file.open("rb") as trail:
            trail.seek(since)
            return frozenset(str(json.loads(line).get("tool", "")) for line in trail)


BROKE: Final = "it broke inside:"


@asynccontextmanager
async def stage(folder: Path, access: Access, version: str) -> AsyncIterator[Stage]:
    """Nobody approves anything here: whatever needs a person's yes must not happen."""
    folder.mkdir(parents=True)  # noqa: ASYNC240 (a folder is quickly made)
    place = Estate(version)
    await place.furnish()
    settings = _settings(folder, access)
    app = build(settings, clock=DrivenTime(place.clock))
    wire = Wire(place.handler)
    assert app.cluster is not None
    app.cluster.client._session = wire  # type: ignore[assignment]
    try:
        surfaces = _surfaces(app, settings)
        yield Stage(place, app, wire, surfaces, _ways(app, surfaces), settings, state_of(place.world))
    finally:
        await app.close()
        await place.close()


def _settings(folder: Path, access: Access) -> Settings:
    connection = Connection(("https://127.0.0.1:8006",), Token(estate.TOKEN, Secret(estate.SECRET)), Trust())
    nowhere = SshSettings(networks=LOOPBACK)
    return Settings(
        clusters=(ClusterSettings("estate", connection, ssh=nowhere, policy=estate.POLICY),),
        access=access,
        gate_chosen=True,  # so that the opt-ins of other servers open their own gates only
        opt_ins=frozenset(variable for name in SYSTEMS if (variable := system(name).opt_in)),
        toolsets=("all", "homelab"),
        approval=Approval.ASK,
        state=str(folder / "state.sqlite"),
        audit_file=folder / "audit.jsonl",
        homelab=HomelabSettings(ssh=nowhere, networks=LOOPBACK),
    )


def _surfaces(app: App, settings: Settings) -> dict[str, Surface]:
    """All of them side by side, which no single server would show: some have tools of the same name."""
    surfaces: dict[str, Surface] = {"native": NativeSurface(app.pipeline), "lean": LeanSurface(app.pipeline)}
    for name in SYSTEMS:
        app.adopt(replace(settings, surfaces=(name,)))
        (surfaces[name],) = app.surfaces()
    app.adopt(settings)
    return surfaces


def _ways(app: App, surfaces: Mapping[str, Surface]) -> dict[str, Way]:
    naming = surfaces["native"].naming
    resources, prompts = Resources(app.pipeline, naming), Prompts(app.pipeline, naming)
    completions = Completions(app.pipeline)
    return {
        **{name: surface.call for name, surface in surfaces.items()},
        "resource": lambda uri, _, exchange: resources.read(uri, exchange),
        "prompt": prompts.get,
        "completion": lambda name, arguments, exchange: completions.complete(name, arguments["typed"], {}, exchange),
    }


async def play(folder: Path, access: Access, version: str, calls: Sequence[Call]) -> list[str]:
    """What is wrong after these calls, in a world of their own; only the last one is asked."""
    objections: list[str] = []
    async with stage(folder, access, version) as alone:
        for call in calls:
            objections = await alone.make(call)
    return objections
