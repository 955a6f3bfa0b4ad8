"""Parameters that solomonneas' tools share, and what they answer with: the guest, the task, an error with a code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quorate.operations.registry import Risk
from quorate.pve.errors import NotFound, Problem, Refused
from quorate.surfaces.compat.declaring import Recipe, Tool, may, need
from quorate.surfaces.compat.recipes import Source, taken
from quorate.surfaces.compat.running import Done, Found, Run

VMID = need("vmid", "integer", "VM or container")
UPID = need("upid", "string", "Task id")
CONFIRM = need("confirm", "boolean", "Must be true")
DESTRUCTIVE = need("destructive", "boolean", "Must be true; the operator must have enabled it as well")
NODE = may("node", "string")
INTERVAL = may("intervalMs", "integer", about="Accepted; the task is asked for at growing intervals")

SMOKE_POOL = "mcp-smoke"
LONGEST_WAIT = 3600
PATIENCE = 600.0  # for what has a second step, such as starting the new guest: it must not be left undone


def acting(
    operation: str,
    parameters: Mapping[str, Source] | None = None,
    /,
    *,
    echo: tuple[str, ...] = (),
    follow: float | None = None,
    **fixed: Any,
) -> Recipe:
    """One change of the guest `vmid`, followed to its end; `echo` are arguments that the answer repeats."""

    async def recipe(run: Run) -> dict[str, Any]:
        guest = await run.guest(run["vmid"])
        arguments = {"guest": guest.vmid, **fixed, **taken(run, parameters or {})}
        done = await run.change(operation, follow=follow, **arguments)
        return told(done, **place(guest), **{name: run[name] for name in echo if run[name] is not None})

    return recipe


def place(guest: Found) -> dict[str, Any]:
    return {"vmid": guest.vmid, "node": guest.node, "type": guest.type}


def told(done: Done, **about: Any) -> dict[str, Any]:
    """What it was about, its task, and what became of it."""
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
        return "VMID_NOT_FOUND" if "guest" in problem.what else "NOT_FOUND"
    if "task id" in problem.what:
        return "TASK_UPID_INVALID"
    if not isinstance(problem, Refused):
        return _CODES.get(problem.kind, "TOOL_ERROR")
    if tool.gate.variable and tool.gate.variable in (problem.why or ""):
        return "DESTRUCTIVE_ENV_REQUIRED"
    if problem.what.endswith("=true."):
        return "DESTRUCTIVE_CONFIRMATION_REQUIRED" if tool.risk is Risk.DESTROY else "WRITE_CONFIRMATION_REQUIRED"
    return "REFUSED"
