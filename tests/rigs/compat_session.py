"""Calls tools of other servers by their own names and parameters, and checks what they did."""

from __future__ import annotations

import inspect
import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pve_simulator.guests.guest import Guest
from pve_simulator.storage.storages import Volume
from pve_simulator.world import World
from quorate.config import Access, Approval
from tests import paths
from tests.rigs.mcp_session import Rig, rig, text_of
from tests.rigs.simulator import ask, volumes


@dataclass(frozen=True)
class Row:
    """One call of a tool of another server."""

    tool: str
    arguments: Mapping[str, Any]
    check: Callable[[Done], Any]
    prepare: Callable[[Any], Any] | None = None
    homelab: Callable[[Path], AbstractAsyncContextManager[Any]] | None = None
    """Where it runs, if a simulated cluster alone is not enough: yields something with a rig `quorate`. Values in
    `arguments` may then be functions of that, and `prepare` gets it."""


@dataclass
class Done:
    """A row that has been run: the world before and after, and what the product answered."""

    rig: Rig
    arguments: Mapping[str, Any]
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
        return self.world.guests[int(self.arguments[parameter])]

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


@asynccontextmanager
async def surface(
    tmp_path: Path,
    *names: str,
    access: Access = Access.ADMIN,
    approval: Approval = Approval.NONE,
    opt_ins: Iterable[str] = (),
    gate_chosen: bool = True,
    settings: Mapping[str, Any] | None = None,
    **rest: Any,
) -> AsyncIterator[Rig]:
    more = {"surfaces": names, "opt_ins": frozenset(opt_ins), "gate_chosen": gate_chosen, **(settings or {})}
    async with rig(tmp_path, access=access, approval=approval, more=more, **rest) as quorate:
        yield quorate


async def attempt(quorate: Rig, row: Row, homelab: Any = None, *, dry_run: bool = False) -> Done:
    """Prepare the world, call the tool and check what it did. With `dry_run`, a dry run precedes it."""
    world = quorate.sim.world
    if row.prepare is not None:
        ready = row.prepare(world if homelab is None else homelab)
        if inspect.isawaitable(ready):
            await ready
    arguments = {name: value(homelab) if callable(value) else value for name, value in row.arguments.items()}
    if dry_run:
        mark = len(quorate.sim.requests)
        await quorate.facts(row.tool, **{**arguments, "dry_run": True})
        assert {method for method, _ in quorate.requests_since(mark)} <= {"GET"}
    before = {vmid: (guest.running, guest.started_at) for vmid, guest in world.guests.items()}
    done = Done(quorate, arguments, before, volumes(world), homelab=homelab)
    await done.call(row.tool, **arguments)
    checking = row.check(done)
    if inspect.isawaitable(checking):
        await checking
    return done


# -- listing -----------------------------------------------------------------------------------------------------------


ONLY_DOCUMENTED: dict[tuple[str, str], dict[str, Any]] = {
    ("gilby125", "proxmox_clone_lxc"): {"name": ["string", False, None], "full": ["boolean", False, False]},
    ("gilby125", "proxmox_clone_vm"): {"full": ["boolean", False, False]},
    ("gilby125", "proxmox_remove_disk_vm"): {"mp": ["string", False, None]},
    ("gilby125", "proxmox_remove_mountpoint_lxc"): {"disk": ["string", False, None]},
}
"""What a server's documentation has and its code lacks; the rest is the same in both."""


def seed_rows() -> list[dict[str, Any]]:
    """Every row: system, tool and params (name -> type, whether it is required, default)."""
    path = paths.DATA / "seed_tools.json"
    rows: list[dict[str, Any]] = json.loads(path.read_text())
    return rows


def documented(system: str) -> dict[str, dict[str, Any]]:
    """Tool -> parameter -> type, whether it is required, and default, from documentation and code together."""
    return {
        row["tool"]: {**row["params"], **ONLY_DOCUMENTED.get((system, row["tool"]), {})}
        for row in seed_rows()
        if row["system"] == system
    }


def as_documented(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A listed schema in the notation of the documentation."""
    assert schema["additionalProperties"] is False
    return {
        name: [_type(part), name in schema.get("required", ()), part.get("default")]
        for name, part in schema["properties"].items()
    }


def _type(part: Mapping[str, Any]) -> str:
    if "anyOf" in part:
        return "|".join(_type(option) for option in part["anyOf"])
    if "enum" in part:
        return f"{part['type']} enum({','.join(part['enum'])})"
    return f"array<{_type(part['items'])}>" if part["type"] == "array" else str(part["type"])


async def refused(quorate: Rig, tool: str, /, **arguments: Any) -> str:
    """The text of a call that must fail and must not have written anything."""
    mark = len(quorate.sim.requests)
    answer = await quorate.call(tool, **arguments)
    assert answer.is_error, answer.structured_content
    assert not [request for request in quorate.requests_since(mark) if request[0] != "GET"]
    return text_of(answer)
