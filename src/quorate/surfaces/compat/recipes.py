"""Recipes that most tools share: one native change or one read, with arguments under their native names."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from quorate.problems import BadArgument, NotFound
from quorate.surfaces.compat.declaration import Recipe
from quorate.surfaces.compat.execution import ChangeResult, LocatedGuest, ToolCall

Source = str | Callable[[ToolCall], Any]
"""Where a native argument comes from: the parameter of that name, or a function of the call."""

Shape = Callable[[ToolCall, ChangeResult], Awaitable[Any]]
"""Makes the answer from the result of a change."""


def change(
    operation: str,
    parameters: Mapping[str, Source],
    /,
    *,
    shape: Shape,
    follow: Callable[[ToolCall], float | None] | None = None,
    **fixed: Any,
) -> Recipe:
    """One change. `parameters` maps native arguments to their sources; `fixed` are always the same."""

    async def recipe(call: ToolCall) -> Any:
        arguments = {**fixed, **map_arguments(call, parameters)}
        return await shape(call, await call.change(operation, follow=follow(call) if follow else None, **arguments))

    return recipe


def change_guest(
    operation: str,
    parameters: Mapping[str, Source] | None = None,
    /,
    *,
    type: str,
    shape: Shape,
    follow: Callable[[ToolCall], float | None] | None = None,
    **fixed: Any,
) -> Recipe:
    """One change of the guest of `node` and `vmid`; the rest as in `change`."""

    async def recipe(call: ToolCall) -> Any:
        guest = await guest_on_node(call, type)
        arguments = {"guest": guest.vmid, **fixed, **map_arguments(call, parameters or {})}
        return await shape(call, await call.change(operation, follow=follow(call) if follow else None, **arguments))

    return recipe


def read(path: str, /, **params: Source) -> Recipe:
    """PVE's own answer; `{name}` in the path is an argument, `params` are query parameters."""

    async def recipe(call: ToolCall) -> Any:
        return await call.get(path.format_map(call.arguments), **map_arguments(call, params))

    return recipe


def map_arguments(call: ToolCall, parameters: Mapping[str, Source]) -> dict[str, Any]:
    return {ours: call[source] if isinstance(source, str) else source(call) for ours, source in parameters.items()}


def number(name: str) -> Callable[[ToolCall], int | None]:
    """A parameter that is a whole number, given as a number (100, 100.0) or as text."""

    def parse(call: ToolCall) -> int | None:
        value = call[name]
        if value is None:
            return None
        if not re.fullmatch(r"-?\d+(\.0*)?", str(value).strip()):
            raise BadArgument(f"{call.tool} cannot take {name}={value!r}", next_step="Give a whole number")
        return int(float(value))

    return parse


async def guest_on_node(call: ToolCall, type: str | None = None) -> LocatedGuest:
    """The guest of `node` and `vmid`. A wrong node means that the caller's view is outdated, so nothing is done."""
    guest = await call.guest(number("vmid")(call), type=type)
    if guest.node != call["node"]:
        raise NotFound(
            f"{guest.vmid} {guest.name} is not on node {call['node']}",
            why=f"It is on {guest.node}",
            next_step=f"If that is the right guest, call again with node={guest.node}",
        )
    return guest
