"""Calls a tool of another server by its own name and parameters, and checks what it did."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pve_simulator.world import World
from quorate.config import Access, Approval
from tests.coverage.rows import Done, Row, seed_rows, volumes
from tests.rigs.mcp_session import Rig, rig, text_of


@dataclass(frozen=True)
class Try:
    tool: str
    given: Mapping[str, Any]
    check: Callable[[Done], Any]
    prepare: Callable[[World], Any] | None = None


def as_tries(rows: Iterable[Row]) -> list[Try]:
    """Rows that check only the world, as calls of the tools themselves."""
    return [Try(row.tool, row.given, row.check, row.prepare) for row in rows]


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


async def attempt(quorate: Rig, tried: Try) -> Done:
    """Prepare the world, call the tool and check what it did."""
    world = quorate.sim.world
    if tried.prepare is not None:
        tried.prepare(world)
    running = {vmid: (guest.running, guest.started_at) for vmid, guest in world.guests.items()}
    done = Done(quorate, dict(tried.given), running, volumes(world))
    await done.call(tried.tool, **tried.given)
    looked = tried.check(done)
    if inspect.isawaitable(looked):
        await looked
    return done


# -- listing -----------------------------------------------------------------------------------------------------------


ONLY_DOCUMENTED: dict[tuple[str, str], dict[str, Any]] = {
    ("gilby125", "proxmox_clone_lxc"): {"name": ["string", False, None], "full": ["boolean", False, False]},
    ("gilby125", "proxmox_clone_vm"): {"full": ["boolean", False, False]},
    ("gilby125", "proxmox_remove_disk_vm"): {"mp": ["string", False, None]},
    ("gilby125", "proxmox_remove_mountpoint_lxc"): {"disk": ["string", False, None]},
}
"""What a server's documentation has and its code lacks; the rest is the same in both."""


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
        return "|".join(_type(one) for one in part["anyOf"])
    if "enum" in part:
        return f"{part['type']} enum({','.join(part['enum'])})"
    return f"array<{_type(part['items'])}>" if part["type"] == "array" else str(part["type"])


async def refused(quorate: Rig, tool: str, /, **arguments: Any) -> str:
    """The text of a call that must fail and must not have written anything."""
    mark = len(quorate.sim.requests)
    answer = await quorate.call(tool, **arguments)
    assert answer.is_error, answer.structured_content
    assert not [one for one in quorate.requests_since(mark) if one[0] != "GET"]
    return text_of(answer)
