"""Recipes that most tools share: one native change, one read, with the arguments under our names."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from quorate.operations.registry import operations
from quorate.surfaces.compat.declaring import Recipe
from quorate.surfaces.compat.running import Done, Run

Source = str | Callable[[Run], Any]
"""Where a native argument comes from: the parameter of that name, or what a function makes of the call."""

Shape = Callable[[Run, Done], Awaitable[Any]]
"""What the caller gets to see of a change."""


def speaks_of_tools(hint: str) -> bool:
    """Of our own, which are not there for whoever uses another server's."""
    return bool(set(re.findall(r"\w+", hint)) & set(operations()))


def changing(
    operation: str,
    parameters: Mapping[str, Source],
    /,
    *,
    shape: Shape,
    follow: Callable[[Run], float | None] | None = None,
    **fixed: Any,
) -> Recipe:
    """One change: `parameters` maps our argument names to where they come from, `fixed` is always the same."""

    async def recipe(run: Run) -> Any:
        arguments = {**fixed, **taken(run, parameters)}
        return await shape(run, await run.change(operation, follow=follow(run) if follow else None, **arguments))

    return recipe


def reading(path: str, /, **params: Source) -> Recipe:
    """PVE's own answer; `{name}` in the path is an argument, `params` are query parameters."""

    async def recipe(run: Run) -> Any:
        return await run.get(path.format_map(run.arguments), **taken(run, params))

    return recipe


def taken(run: Run, parameters: Mapping[str, Source]) -> dict[str, Any]:
    return {ours: run[source] if isinstance(source, str) else source(run) for ours, source in parameters.items()}
