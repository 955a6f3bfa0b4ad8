"""Calls of other servers' tools with their own parameters, and checks of what they did."""

from __future__ import annotations

import inspect
import json
import ssl
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from pve_simulator.guests.guest import Guest
from pve_simulator.simulator import SimulatedCluster
from pve_simulator.storage.storages import Volume
from pve_simulator.world import World
from tests import paths
from tests.rigs.mcp_session import Rig, text_of


def seed_rows() -> list[dict[str, Any]]:
    """Every row: system, tool and params (name -> type, whether it is required, default)."""
    path = paths.DATA / "seed_tools.json"
    rows: list[dict[str, Any]] = json.loads(path.read_text())
    return rows


@dataclass(frozen=True)
class Row:
    """One call of a tool of another server."""

    tool: str
    given: Mapping[str, Any]
    check: Callable[[Done], Any]
    prepare: Callable[[Any], Any] | None = None
    homelab: Callable[[Path], AbstractAsyncContextManager[Any]] | None = None
    """Where it runs, if a simulated cluster alone is not enough: yields something with a rig `quorate`. Values in
    `given` may then be functions of that, and `prepare` gets it."""


@dataclass
class Done:
    """A row that has been run: the world before and after, and what the product answered."""

    rig: Rig
    given: Mapping[str, Any]
    runs_before: dict[int, tuple[bool, float]]
    volumes_before: set[str]
    answers: list[dict[str, Any]] = field(default_factory=list)
    homelab: Any = None
    """What the row's `homelab` yielded."""

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
        """The guest that a parameter of the row names."""
        return self.world.guests[int(self.given[parameter])]

    def volume(self, volid: str) -> Volume:
        storage = self.world.storages[volid.partition(":")[0]]
        return next(space.volumes[volid] for space in storage.spaces.values() if volid in space.volumes)

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
    """What PVE itself says, asked independently of the product."""
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


async def prepare_row(rig: Rig, chosen: Row, homelab: Any = None) -> Done:
    """The world as the row wants it before it is run."""
    world = rig.sim.world
    if chosen.prepare is not None:
        ready = chosen.prepare(world if homelab is None else homelab)
        if inspect.isawaitable(ready):
            await ready
    given = {name: value(homelab) if callable(value) else value for name, value in chosen.given.items()}
    before = {vmid: (guest.running, guest.started_at) for vmid, guest in world.guests.items()}
    return Done(rig, given, before, volumes(world), homelab=homelab)


async def check_row(chosen: Row, done: Done) -> None:
    looked = chosen.check(done)
    if inspect.isawaitable(looked):
        await looked


def volumes(world: World) -> set[str]:
    return {
        volid for storage in world.storages.values() for space in storage.spaces.values() for volid in space.volumes
    }
