"""Answers as markdown: a heading, then facts, one a line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from quorate.pve.errors import Problem, Refused
from quorate.surfaces.compat.declaring import Tool
from quorate.surfaces.compat.gates import ELEVATED_VARIABLE

_UNITS = ("B", "KB", "MB", "GB", "TB", "PB")


def card(icon: str, title: str, facts: Mapping[str, Any], *remarks: str) -> str:
    """One thing: its facts and what is to be said about it."""
    lines = [f"• **{label}**: {value}" for label, value in facts.items() if value not in (None, "")]
    return "\n\n".join(part for part in (f"{icon}  {title}", "\n".join(lines), "\n".join(remarks)) if part)


def bold(text: str) -> str:
    return f"**{text}**"


def entry(mark: str, title: str, facts: Mapping[str, Any], indent: str = "   • ") -> str:
    """One thing of a list."""
    lines = [f"{indent}{label}: {value}" for label, value in facts.items() if value not in (None, "")]
    return "\n".join([f"{mark} {title}", *lines])


def catalogue(icon: str, title: str, entries: list[str], footer: str = "") -> str:
    return "\n\n".join(part for part in (f"{icon}  {bold(title)}", *(entries or ["None found."]), footer) if part)


def fenced(text: str) -> str:
    """A stranger's text as it is; the fence is longer than any that the text could close it with."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{text.rstrip()}\n{fence}"


def light(on: bool) -> str:
    return "🟢" if on else "🔴"


def amount(count: float) -> str:
    """Bytes in binary units, as PVE's own pages show them: 5.89 GB."""
    value, unit = float(count), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value /= 1024
        unit += 1
    return f"{value:.2f} {_UNITS[unit]}" if unit else f"{value:.0f} B"


def used(part: float, whole: float, *, with_share: bool = True) -> str | None:
    if not whole:
        return None
    return f"{amount(part)} / {amount(whole)}" + (f" ({share(part / whole)})" if with_share else "")


def share(part: float) -> str:
    return f"{part * 100:.1f}%"


def uptime(seconds: float) -> str | None:
    if not seconds:
        return None
    minutes = int(seconds) // 60
    days, hours, minutes = minutes // 1440, minutes // 60 % 24, minutes % 60
    parts = (f"{days}d" if days else "", f"{hours}h" if days or hours else "", f"{minutes}m")
    return " ".join(part for part in parts if part)


def error(tool: Tool, problem: Problem) -> str:
    """What happened, why, what to do; a tool that the operator has not opened says so first."""
    closed = isinstance(problem, Refused) and tool.gate.variable is not None and tool.gate.variable in str(problem.why)
    if closed:
        facts = {"Current permissions": f"basic, without `{ELEVATED_VARIABLE}=true`"}
        return card("⚠️", bold(f"{tool.name} needs elevated permissions"), facts, problem.next_step or "")
    log = problem.facts.get("log") or []
    remarks = [part for part in (problem.why, problem.next_step) if part]
    if log:
        remarks.append(fenced("\n".join(map(str, log))))
    return card("❌", bold(problem.what.rstrip(".")), {"Task ID": problem.facts.get("task")}, *remarks)
