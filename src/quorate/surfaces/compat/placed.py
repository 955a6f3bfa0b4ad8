"""Tools that name a guest by its node and vmid, as PVE's own paths do."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from quorate.pve.errors import BadArgument, NotFound
from quorate.surfaces.compat.declaring import Recipe
from quorate.surfaces.compat.recipes import Shape, Source, taken
from quorate.surfaces.compat.running import Found, Run


def number(name: str) -> Callable[[Run], int | None]:
    """A parameter that is a whole number, whether it came as one, as a text or with a point."""

    def read(run: Run) -> int | None:
        value = run[name]
        if value is None:
            return None
        if not re.fullmatch(r"-?\d+(\.0*)?", str(value).strip()):
            raise BadArgument(f"{run.tool} cannot take {name}={value!r}", next_step="It is a whole number")
        return int(float(value))

    return read


async def placed(run: Run, type: str | None = None) -> Found:
    """The guest of `node` and `vmid`. Who has the node wrong knows an old state of things, so nothing is done then."""
    guest = await run.guest(number("vmid")(run), type=type)
    if guest.node != run["node"]:
        raise NotFound(
            f"{guest.vmid} {guest.name} is not on node {run['node']}",
            why=f"It is on {guest.node}",
            next_step=f"If that is the guest you mean, call again with node={guest.node}",
        )
    return guest


def changing_guest(
    operation: str,
    parameters: Mapping[str, Source] | None = None,
    /,
    *,
    type: str,
    shape: Shape,
    follow: Callable[[Run], float | None] | None = None,
    **fixed: Any,
) -> Recipe:
    """One change of the guest of `node` and `vmid`; the rest as in `changing`."""

    async def recipe(run: Run) -> Any:
        guest = await placed(run, type)
        arguments = {"guest": guest.vmid, **fixed, **taken(run, parameters or {})}
        return await shape(run, await run.change(operation, follow=follow(run) if follow else None, **arguments))

    return recipe
