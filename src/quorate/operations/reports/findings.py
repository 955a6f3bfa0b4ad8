"""Findings of a health check: what is wrong or could not be checked, its severity, and the call that helps."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from quorate.hints import ToolHint
from quorate.operations.units import shortlist
from quorate.problems import PermissionMissing, Problem, TimedOut
from quorate.pve.cluster import Cluster

CHECK_SECONDS = 30.0
READ_SECONDS = 10.0
NAMES_SHOWN = 8

Severity = Literal["critical", "warning", "info", "unchecked"]
SEVERITIES: tuple[Severity, ...] = ("critical", "warning", "unchecked", "info")


@dataclass(frozen=True, slots=True)
class Finding:
    severity: Severity
    area: str
    what: str
    next_call: ToolHint
    kind: str = ""
    """The kind of finding, such as `node-down`."""
    target: str = ""
    """What it is about, such as `node pve1`; empty if it is the cluster or the `subjects`."""
    subjects: tuple[str, ...] = ()
    """The guests or nodes that share it."""


async def run_check(pve: Cluster, area: str, next_call: ToolHint, check: Awaitable[list[Finding]]) -> list[Finding]:
    """What a check finds; a check that cannot be done is itself a finding and never hides the others."""
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            return await check
    except TimeoutError:
        return [Finding("unchecked", area, f"The check took longer than {CHECK_SECONDS:g} s", next_call)]
    except Problem as problem:
        return [await explained_finding(pve, area, problem, next_call)]


async def read_in_time(read: Awaitable[Any]) -> Any:
    """Read with a short timeout, so that a node that hangs does not use up the time of the others."""
    try:
        async with asyncio.timeout(READ_SECONDS):
            return await read
    except TimeoutError:
        raise TimedOut(f"No answer came within {READ_SECONDS:g} s") from None


def unchecked_finding(area: str, problem: Problem, next_call: ToolHint, where: str = "") -> Finding:
    """Why it could not be checked; a missing privilege comes with the command that grants it."""
    why = f" {problem.why}" if problem.why else ""
    grant = f" {problem.next_step}" if isinstance(problem, PermissionMissing) and problem.next_step else ""
    return Finding("unchecked", area, f"Could not look{where}: {problem.what}{why}{grant}", next_call)


async def explained_finding(pve: Cluster, area: str, problem: Problem, next_call: ToolHint, where: str = "") -> Finding:
    """The same, where PVE can be asked what is held: the command that grants the privilege then revokes nothing."""
    return unchecked_finding(area, await pve.explain(problem), next_call, where)


def names(all_of_them: Iterable[str]) -> str:
    return shortlist(list(all_of_them), NAMES_SHOWN)


def count_of(count: int, one: str, several: str) -> str:
    return f"1 {one}" if count == 1 else f"{count} {several}"


def pve_time(pve: Cluster) -> float:
    """What PVE's clock says, as of its latest answer."""
    return pve.clock.time() + pve.client.clock_skew
