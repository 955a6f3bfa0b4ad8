"""Answers as markdown: a heading, then facts, one per line."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from quorate.problems import Problem
from quorate.surfaces.compat.declaration import ELEVATED_VARIABLE, OptInMissing, Tool
from quorate.surfaces.compat.execution import ChangeResult, ToolCall
from quorate.surfaces.compat.recipes import Shape

_UNITS = ("B", "KB", "MB", "GB", "TB", "PB")


def card(icon: str, title: str, facts: Mapping[str, Any], *remarks: str) -> str:
    """One object: its facts, then remarks."""
    lines = [f"• **{label}**: {value}" for label, value in facts.items() if value not in (None, "")]
    return "\n\n".join(part for part in (f"{icon}  {title}", "\n".join(lines), "\n".join(remarks)) if part)


def bold(text: str) -> str:
    return f"**{text}**"


def entry(mark: str, title: str, facts: Mapping[str, Any], indent: str = "   • ") -> str:
    """One object of a list."""
    lines = [f"{indent}{label}: {value}" for label, value in facts.items() if value not in (None, "")]
    return "\n".join([f"{mark} {title}", *lines])


def catalogue(icon: str, title: str, entries: list[str], footer: str = "") -> str:
    return "\n\n".join(part for part in (f"{icon}  {bold(title)}", *(entries or ["None found."]), footer) if part)


def fence(text: str) -> str:
    """Text from a guest, unchanged; the fence is longer than any in the text."""
    longest = max((len(marks) for marks in re.findall(r"`+", text)), default=0)
    marks = "`" * max(3, longest + 1)
    return f"{marks}\n{text.rstrip()}\n{marks}"


def light(on: bool) -> str:
    return "🟢" if on else "🔴"


def amount(count: float) -> str:
    """Bytes in binary units, as PVE's own pages show them: 5.89 GB."""
    value, unit = float(count), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value /= 1024
        unit += 1
    return f"{value:.2f} {_UNITS[unit]}" if unit else f"{value:.0f} B"


def usage(part: float, whole: float, *, with_share: bool = True) -> str | None:
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
    """What happened, why, what to do next; or that the operator has not enabled the tool."""
    if isinstance(problem, OptInMissing):
        facts = {"Current permissions": f"basic, without `{ELEVATED_VARIABLE}=true`"}
        return card("⚠️", bold(f"{tool.name} needs elevated permissions"), facts, problem.next_step or "")
    log = problem.facts.get("log") or []
    remarks = [part for part in (problem.why, problem.next_step) if part]
    if log:
        remarks.append(fence("\n".join(map(str, log))))
    return card("❌", bold(problem.what.rstrip(".")), {"Task ID": problem.facts.get("task")}, *remarks)


# -- changes -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Kind:
    """VMs and containers have separate tools, distinguished by the end of their names."""

    suffix: str
    type: str
    label: str
    word: str


LXC = Kind("lxc", "lxc", "LXC", "container")
VM = Kind("vm", "qemu", "QEMU", "VM")
BOTH = (LXC, VM)

Fact = str | Callable[[ToolCall, ChangeResult], Any]
"""A parameter, or a function of the call and its result."""


def change_card(icon: str, title: str, facts: Mapping[str, Fact], tip: str = "") -> Shape:
    """The answer to a change: its target, its task and how it ended."""

    async def shape(call: ToolCall, done: ChangeResult) -> str:
        if done.was_dry_run:
            return _dry_run(title, done)
        known = {label: call[fact] if isinstance(fact, str) else fact(call, done) for label, fact in facts.items()}
        end = {"Task ID": done.task, "Took": done.facts.get("took")}
        still_running = ("**Note**: The task is still running; check again later.",) if done.is_running else ()
        return card(
            icon,
            bold(f"{title}: {done.facts['result']}"),
            known | end,
            *_remarks(done),
            *still_running,
            *filter(None, [tip]),
        )

    return shape


def about_guest(kind: Kind, **more: Fact) -> dict[str, Fact]:
    """The facts at the start of most answers; underscores in the other labels become spaces."""
    others = {label.replace("_", " "): fact for label, fact in more.items()}
    return {"VM ID": "vmid", "Type": lambda *_: kind.label, "Node": "node", **others}


def _remarks(done: ChangeResult) -> list[str]:
    waiting = done.facts.get("waits_for_restart")
    warnings = [*done.facts.get("warnings", ()), *done.facts.get("unchanged", ())]
    return [
        *(f"⚠️  **Note**: {warning.rstrip('.')}." for warning in warnings),
        *([f"**Note**: {', '.join(waiting)} changes at the next restart."] if waiting else []),
    ]


def _dry_run(title: str, done: ChangeResult) -> str:
    steps = [f"{number}. {step['step']}" for number, step in enumerate(done.facts["steps"], 1)]
    facts = {"Plan": done.facts["plan"], "Plan token": done.facts.get("plan_token")}
    return card("📝", bold(f"{title}: {done.facts['result']}"), facts, *steps, *_remarks(done))
