"""What gilby125's tools share: the two kinds of guests, parameters, and how a change is told."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from quorate.surfaces.compat.declaring import need
from quorate.surfaces.compat.gilby125.markdown import bold, card
from quorate.surfaces.compat.recipes import Shape
from quorate.surfaces.compat.running import Done, Run

NODE = need("node", "string", "Node name")
VMID = need("vmid", "string", "VM or container id")


@dataclass(frozen=True, slots=True)
class Kind:
    """VMs and containers have tools of their own, told apart by the end of the name."""

    suffix: str
    type: str
    label: str
    word: str


LXC = Kind("lxc", "lxc", "LXC", "container")
VM = Kind("vm", "qemu", "QEMU", "VM")
BOTH = (LXC, VM)

Fact = str | Callable[[Run, Done], Any]
"""A parameter, or what a function makes of the call and of what became of it."""

_ARGUMENT = re.compile(r";[^;]*\b\w+=true\b[^;]*")
"""Advice to give an argument that our own tools have and these do not."""


def told(icon: str, title: str, facts: Mapping[str, Fact], tip: str = "") -> Shape:
    """A change: what it was about, its task and how it ended."""

    async def shape(run: Run, done: Done) -> str:
        if done.was_dry_run:
            return _dry_run(title, done)
        known = {label: run[fact] if isinstance(fact, str) else fact(run, done) for label, fact in facts.items()}
        end = {"Task ID": done.task, "Took": done.facts.get("took")}
        going_on = ("**Note**: The task goes on; look again in a while.",) if done.is_running else ()
        return card(
            icon,
            bold(f"{title}: {done.facts['result']}"),
            known | end,
            *_remarks(done),
            *going_on,
            *filter(None, [tip]),
        )

    return shape


def about_guest(kind: Kind, **more: Fact) -> dict[str, Fact]:
    """The facts with which most answers begin; underscores in the other labels are blanks."""
    others = {label.replace("_", " "): fact for label, fact in more.items()}
    return {"VM ID": "vmid", "Type": lambda *_: kind.label, "Node": "node", **others}


def _remarks(done: Done) -> list[str]:
    waiting = done.facts.get("waits_for_restart")
    warnings = [*done.facts.get("warnings", ()), *done.facts.get("unchanged", ())]
    return [
        *(f"⚠️  **Note**: {_ARGUMENT.sub('', one).rstrip('.')}." for one in warnings),
        *([f"**Note**: {', '.join(waiting)} changes with the next restart."] if waiting else []),
    ]


def _dry_run(title: str, done: Done) -> str:
    steps = [f"{number}. {step['step']}" for number, step in enumerate(done.facts["steps"], 1)]
    facts = {"Plan": done.facts["plan"], "Plan token": done.facts.get("plan_token")}
    return card("📝", bold(f"{title}: {done.facts['result']}"), facts, *steps, *_remarks(done))
