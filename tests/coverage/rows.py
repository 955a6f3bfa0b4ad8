"""A row of another server's tool list, the native call made from its parameters, and the look at what it did."""

from __future__ import annotations

import inspect
import json
import ssl
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from quorate.sim.cluster import SimulatedCluster
from quorate.sim.guests import Guest
from quorate.sim.storages import Volume
from quorate.sim.world import World
from tests.driving import Rig, text_of

SYSTEMS = ("brynnjocelyn", "bsahane", "gilby125", "solomonneas", "washyu")

# What a caller of ours need not say, by what takes its place. A row may give these; no native argument comes of them.
NOT_ASKED_FOR = {
    "node": "the guest tells its node",
    "type": "the guest tells its type",
    "type_": "the guest tells its type",
    "vm_type": "the guest tells its type",
    "host": "the cluster is in the settings",
    "confirm": "a word of the model is no gate; approval is the operator's",
    "destructive": "a word of the model is no gate; approval is the operator's",
    "wait": "every change is followed to its end",
    "poll_interval": "tasks are asked for at growing intervals",
    "intervalMs": "tasks are asked for at growing intervals",
    "timeoutSeconds": "what outlasts the wait is handed back and can be followed with task_wait",
}


def seed_rows() -> list[dict[str, Any]]:
    """Every row: system, tool and params (name -> type, whether it is required, default)."""
    path = Path(__file__).parents[1] / "data" / "seed_tools.json"
    rows: list[dict[str, Any]] = json.loads(path.read_text())
    return rows


@dataclass(frozen=True)
class AnyOf:
    """The first of several parameters that is given; all of them select the same."""

    names: tuple[str, ...]


@dataclass(frozen=True)
class Turned:
    """A parameter whose value is spelled differently here."""

    name: str
    turn: Callable[[Any], Any]


@dataclass(frozen=True)
class Joined:
    """Several parameters that are one argument here; those that are not given are None."""

    names: tuple[str, ...]
    join: Callable[..., Any]


Source = str | AnyOf | Turned | Joined


@dataclass(frozen=True)
class Native:
    """One native call: the row's parameters under our names, and what is always the same."""

    tool: str
    parameters: Mapping[str, Source] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)

    def arguments(self, given: Mapping[str, Any]) -> dict[str, Any]:
        return {**self.fixed, **{ours: _value(source, given) for ours, source in self.parameters.items()
                                 if any(name in given for name in _names(source))}}  # fmt: skip

    @property
    def uses(self) -> set[str]:
        return {name for source in self.parameters.values() for name in _names(source)}


def native(tool: str, parameters: Mapping[str, Source] | None = None, /, **fixed: Any) -> Native:
    return Native(tool, parameters or {}, fixed)


def _names(source: Source) -> tuple[str, ...]:
    if isinstance(source, AnyOf | Joined):
        return source.names
    return (source.name,) if isinstance(source, Turned) else (source,)


def _value(source: Source, given: Mapping[str, Any]) -> Any:
    if isinstance(source, Turned):
        return source.turn(given[source.name])
    if isinstance(source, Joined):
        return source.join(*(given.get(name) for name in source.names))
    return next(given[name] for name in _names(source) if name in given)


@dataclass(frozen=True)
class Row:
    tool: str
    given: Mapping[str, Any]
    calls: tuple[Native, ...] | Callable[[Done], Any]
    """Mostly one; a row that does several things at once is as many calls, or a function that makes them."""
    check: Callable[[Done], Any]
    prepare: Callable[[Any], Any] | None = None
    uses: frozenset[str] = frozenset()
    """What a function of calls takes from the row."""
    without: Mapping[str, str] = field(default_factory=dict)
    """Parameters that have no counterpart, and why."""
    home: Callable[[Path], AbstractAsyncContextManager[Any]] | None = None
    """Where it is run, if not before a simulated cluster alone: gives something with a rig `quorate`. What is given may
    then be a function of that, and so may be what is prepared."""


def row(
    tool: str,
    given: Mapping[str, Any],
    call: Native | Sequence[Native] | Callable[[Done], Any],
    check: Callable[[Done], Any],
    *,
    prepare: Callable[[Any], Any] | None = None,
    uses: Sequence[str] = (),
    without: Mapping[str, str] | None = None,
    home: Callable[[Path], AbstractAsyncContextManager[Any]] | None = None,
) -> Row:
    calls = (call,) if isinstance(call, Native) else tuple(call) if isinstance(call, Sequence) else call
    return Row(tool, given, calls, check, prepare, frozenset(uses), without or {}, home)


@dataclass
class Done:
    """A row that has been run: the world before and after, and what the product answered."""

    rig: Rig
    given: Mapping[str, Any]
    runs_before: dict[int, tuple[bool, float]]
    volumes_before: set[str]
    answers: list[dict[str, Any]] = field(default_factory=list)
    home: Any = None
    """What a row's `home` gave."""

    @property
    def world(self) -> World:
        return self.rig.sim.world

    @property
    def facts(self) -> dict[str, Any]:
        return self.answers[-1]

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [dict(zip(self.facts["columns"], row, strict=True)) for row in self.facts["rows"]]

    def guest(self, parameter: str = "vmid") -> Guest:
        """The guest that a parameter of the row speaks of."""
        return self.world.guests[int(self.given[parameter])]

    def volume(self, volid: str) -> Volume:
        storage = self.world.storages[volid.partition(":")[0]]
        return next(place.volumes[volid] for place in storage.places.values() if volid in place.volumes)

    def new_volumes(self) -> set[str]:
        return volumes(self.world) - self.volumes_before

    async def call(self, tool: str, /, **arguments: Any) -> dict[str, Any]:
        answer = await self.rig.call(tool, **arguments)
        assert not answer.is_error, f"{tool} {arguments}: {text_of(answer)}"
        self.answers.append(answer.structured_content)
        return self.facts

    async def get(self, path: str, /, **query: Any) -> Any:
        return await ask(self.rig.sim, path, **query)


async def ask(sim: SimulatedCluster, path: str, /, **query: Any) -> Any:
    """What PVE itself says, asked beside the product."""
    return (await ask_all(sim, path, **query))[path]


async def ask_all(sim: SimulatedCluster, *paths: str, **query: Any) -> dict[str, Any]:
    headers = {"Authorization": f"PVEAPIToken={sim.token_id}={sim.token_secret}"}
    connector = aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=sim.ca_file))
    answers = {}
    async with aiohttp.ClientSession(f"{sim.url}/", connector=connector, headers=headers) as session:
        for path in paths:
            async with session.get(f"/api2/json{path}", params=query) as answer:
                assert answer.status == 200, await answer.text()
                answers[path] = (await answer.json())["data"]
    return answers


async def run(rig: Rig, chosen: Row, home: Any = None) -> None:
    """Prepare the world, make the native call and look at what it did."""
    done = await prepared(rig, chosen, home)
    if callable(chosen.calls):
        await chosen.calls(done)
    else:
        for call in chosen.calls:
            await done.call(call.tool, **call.arguments(done.given))
    await looked_at(chosen, done)


async def prepared(rig: Rig, chosen: Row, home: Any = None) -> Done:
    """The world as the row wants it before it is run."""
    world = rig.sim.world
    if chosen.prepare is not None:
        ready = chosen.prepare(world if home is None else home)
        if inspect.isawaitable(ready):
            await ready
    given = {name: value(home) if callable(value) else value for name, value in chosen.given.items()}
    before = {vmid: (guest.running, guest.started_at) for vmid, guest in world.guests.items()}
    return Done(rig, given, before, volumes(world), home=home)


async def looked_at(chosen: Row, done: Done) -> None:
    looked = chosen.check(done)
    if inspect.isawaitable(looked):
        await looked


def volumes(world: World) -> set[str]:
    return {
        volid for storage in world.storages.values() for place in storage.places.values() for volid in place.volumes
    }
