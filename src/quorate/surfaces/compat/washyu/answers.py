"""Answers that begin with a status, and the objects inside arguments, whose parts no schema describes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quorate.problems import REFUSED_LOGIN, BadArgument, Problem
from quorate.surfaces.compat.declaration import Tool
from quorate.surfaces.compat.execution import ChangeResult

ACCOUNT = "mcp_admin"
NO_ACCOUNT = (
    "Create that account with setup_mcp_admin, or keep another login with register_server: "
    f"devices are logged in to as {ACCOUNT}, or as their server is registered."
)


def success(**facts: Any) -> dict[str, Any]:
    return {"status": "success", **facts}


def change_answer(done: ChangeResult, **about: Any) -> dict[str, Any]:
    """The answer to a change: its status, its target, and the facts of the native answer.

    `status` is that of the call, so that of a guest is its `state`.
    """
    status = "dry_run" if done.was_dry_run else "running" if done.is_running else "success"
    facts = {
        "state" if key == "status" else key: value
        for key, value in done.facts.items()
        if key not in ("result", "plan", *about)
    }
    return {"status": status, "message": done.facts["plan"], **about, **facts}


def error(_: Tool, problem: Problem) -> dict[str, Any]:
    """`details` is what was done before it failed."""
    steps, message = problem.facts.get("steps"), str(problem)
    if problem.facts.get(REFUSED_LOGIN) == ACCOUNT:
        message += f" {NO_ACCOUNT}"
    return {"status": "error", "message": message, **({"details": steps} if steps else {})}


def as_object(value: Any, name: str) -> Mapping[str, Any]:
    if not isinstance(value or {}, Mapping):
        raise BadArgument(f"{name} is not an object")
    return value or {}


def as_list(value: Any, name: str) -> list[Any]:
    if not isinstance(value or [], list):
        raise BadArgument(f"{name} is not a list")
    return value or []
