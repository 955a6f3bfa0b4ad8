"""Parameters that solomonneas' tools share, and what they answer with: the guest, the task, an error with a code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quorate.operations.registry import Risk
from quorate.problems import BadTaskId, GuestNotFound, NotFound, Problem, Refused
from quorate.surfaces.compat.declaration import ConfirmationMissing, OptInMissing, Recipe, Tool
from quorate.surfaces.compat.execution import ChangeResult, LocatedGuest, ToolCall
from quorate.surfaces.compat.recipes import Source, map_arguments

SMOKE_POOL = "mcp-smoke"
LONGEST_WAIT = 3600
PATIENCE = 600.0  # for changes with a second step, such as starting the new guest, which must not be skipped


def guest_change(
    operation: str,
    parameters: Mapping[str, Source] | None = None,
    /,
    *,
    echo: tuple[str, ...] = (),
    follow: float | None = None,
    **fixed: Any,
) -> Recipe:
    """One change of the guest `vmid`, followed to its end; `echo` are arguments that the answer repeats."""

    async def recipe(call: ToolCall) -> dict[str, Any]:
        guest = await call.guest(call["vmid"])
        arguments = {"guest": guest.vmid, **fixed, **map_arguments(call, parameters or {})}
        done = await call.change(operation, follow=follow, **arguments)
        return change_answer(
            done, **guest_facts(guest), **{name: call[name] for name in echo if call[name] is not None}
        )

    return recipe


def guest_facts(guest: LocatedGuest) -> dict[str, Any]:
    return {"vmid": guest.vmid, "node": guest.node, "type": guest.type}


def change_answer(done: ChangeResult, **about: Any) -> dict[str, Any]:
    """Its target, its task and its result."""
    if done.was_dry_run:
        return {**about, "dry_run": True, **done.facts}
    return {**about, "upid": done.task, "result": done.facts["result"], **done.remarks}


_CODES: Mapping[str, str] = {
    "argument": "TOOL_INPUT_INVALID",
    "parameter": "TOOL_INPUT_INVALID",
    "unreachable": "PROXMOX_UNREACHABLE",
    "timeout": "PROXMOX_UNREACHABLE",
    "task_failed": "TASK_FAILED",
    "permission": "PROXMOX_HTTP_403",
    "authentication": "PROXMOX_HTTP_401",
}


def error(tool: Tool, problem: Problem) -> dict[str, Any]:
    """The text, a code that does not change, and the kind of error."""
    return {"error": str(problem), "code": _code(tool, problem), "name": type(problem).__name__}


def _code(tool: Tool, problem: Problem) -> str:
    if isinstance(problem, NotFound):
        return "VMID_NOT_FOUND" if isinstance(problem, GuestNotFound) else "NOT_FOUND"
    if isinstance(problem, BadTaskId):
        return "TASK_UPID_INVALID"
    if not isinstance(problem, Refused):
        return _CODES.get(problem.code, "TOOL_ERROR")
    if isinstance(problem, OptInMissing):
        return "DESTRUCTIVE_ENV_REQUIRED"
    if isinstance(problem, ConfirmationMissing):
        return "DESTRUCTIVE_CONFIRMATION_REQUIRED" if tool.risk is Risk.DESTROY else "WRITE_CONFIRMATION_REQUIRED"
    return "REFUSED"
