"""Parameters that bsahane's tools share: how a guest is chosen, how a change is followed; and what they answer with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from quorate.operations.registry import Risk
from quorate.surfaces.compat.declaring import Parameter, Recipe, Tool, may
from quorate.surfaces.compat.gates import CONFIRM as CONFIRMED
from quorate.surfaces.compat.gates import OPEN
from quorate.surfaces.compat.recipes import Source, taken
from quorate.surfaces.compat.running import Done, Found, Run

NODE = may("node", "string", about="Default: the operator's")
GUEST = (may("vmid", "integer"), may("name", "string"), may("node", "string", about="Where the name occurs twice"))
STORAGE = may("storage", "string")
CONFIRM = may("confirm", "boolean", about="Must be true to act")
DRY_RUN = may("dry_run", "boolean", False, "Only show the plan")
SURE = (CONFIRM, DRY_RUN)
PATIENCE = 600  # seconds, where a tool waits and no other limit is given
SETTLING = 5.0  # a task that is itself given the time, as a shutdown is, ends a moment after it

VM, CONTAINER, ANY = "qemu", "lxc", None


def following(wait: bool, timeout: int | None, poll_interval: float = 2.0) -> tuple[Parameter, ...]:
    """Whether and how long the caller waits for the task."""
    return (
        may("wait", "boolean", wait, "For the task to end"),
        may("timeout", "integer", timeout, "Seconds to wait at most"),
        may("poll_interval", "number", poll_interval, "Accepted; the task is asked for at growing intervals"),
    )


def patience(run: Run) -> float | None:
    """How long a change is followed: as the caller says, or as usual where the tool has no say in it."""
    if "wait" not in run.arguments:
        return None
    return (run["timeout"] or PATIENCE) + SETTLING if run["wait"] else 0.0


async def chosen(run: Run, type: str | None = ANY) -> Found:
    """The guest by vmid or name; the node tells apart guests of one name."""
    return await run.guest(run["vmid"] or None, run["name"], node=run["node"], type=type)


def acting(operation: str, type: str | None, parameters: Mapping[str, Source] | None = None, /, **fixed: Any) -> Recipe:
    """One change of the chosen guest."""

    async def recipe(run: Run) -> dict[str, Any]:
        guest = await chosen(run, type)
        arguments = {"guest": guest.vmid, **fixed, **taken(run, parameters or {})}
        return await told(run, await run.change(operation, follow=patience(run), **arguments))

    return recipe


def making(operation: str, parameters: Mapping[str, Source], /, **fixed: Any) -> Recipe:
    """One change of something that is no guest, or no guest yet."""

    async def recipe(run: Run) -> dict[str, Any]:
        arguments = {**fixed, **taken(run, parameters)}
        return await told(run, await run.change(operation, follow=patience(run), **arguments))

    return recipe


async def told(run: Run, done: Done) -> dict[str, Any]:
    """The task, and how it stands unless the caller does not wait; `result` where PVE did it at once."""
    if done.was_dry_run:
        return {"dry_run": True, **done.facts}
    new = {"vmid": done.facts["vmid"]} if "vmid" in done.facts else {}
    if done.task is None:
        return {"result": None, **new, **done.remarks}
    status = {} if run.arguments.get("wait") is False else {"status": await run.task_status(done.task)}
    return {"upid": done.task, **new, **status, **done.remarks}


def act(
    name: str,
    about: str,
    native: str,
    recipe: Recipe,
    *parameters: Parameter,
    risk: Risk = Risk.CHANGE,
    needs: tuple[str, ...] = (),
) -> Tool:
    """A tool that changes something; those with `confirm` ask for it."""
    gate = CONFIRMED if CONFIRM in parameters else OPEN
    return Tool(name, about, parameters, risk, native, recipe, gate, needs)


def read(name: str, about: str, native: str, recipe: Recipe, *parameters: Parameter) -> Tool:
    return Tool(name, about, parameters, Risk.READ, native, recipe)


def keys_in(text: str | None) -> list[str] | None:
    """Public keys, one a line; PVE wants them percent-encoded, and some callers send them so."""
    if not text:
        return None
    return (unquote(text) if "%20" in text else text).splitlines()
