"""One call for one host or for several: a single answer or a table, one plan and one approval."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from quorate.hints import HOST_REGISTER, Advice
from quorate.homelab.homelab import Homelab
from quorate.homelab.machines import Login, Machine, is_node
from quorate.homelab.selection import SECONDS, Selection, ask_each, select
from quorate.operations.machine import machine_label
from quorate.operations.plan import Action, Plan
from quorate.operations.registry import Table, page
from quorate.problems import Conflict, HostNotFound, Problem
from quorate.pve.tasks import Report

WHY_NOT = "why_not"
MOST_REASONS = 10

Rows = list[list[Any]]


async def answer_each(
    home: Homelab,
    host: str | list[str],
    ask: Callable[[Machine], Awaitable[Rows]],
    columns: Sequence[str],
    *,
    seconds: float = SECONDS,
    report: Report | None = None,
) -> Table:
    """The rows of each host, each of them after the host's name; hosts that did not answer come first."""
    chosen = await select(home, host)
    answers = await ask_each(chosen.machines, ask, seconds=seconds, report=report)
    rows: Rows = []
    silent = dict(chosen.failures)
    for one, answer in zip(chosen.machines, answers, strict=True):
        if isinstance(answer, Problem):
            silent[machine_label(one)] = answer
        else:
            rows += [[machine_label(one), *row, ""] for row in answer]
    failed: Rows = [[name, *("" for _ in columns), str(problem)] for name, problem in silent.items()]
    count = max(1, len(failed) + len(rows))
    table = page(("host", *columns, WHY_NOT), [*failed, *rows], limit=count, offset=0)
    table.facts = {"hosts": len(chosen.machines) + len(chosen.failures), "failed": len(failed)}
    return table


async def plan_each(
    home: Homelab,
    host: str | list[str],
    summary: str,
    prepare: Callable[[Machine], Awaitable[Action]],
    columns: tuple[str, ...],
    *,
    login: Login = Login(),  # noqa: B008 - it is frozen
) -> Plan:
    """One step for each host, side by side. `summary` ends where the hosts are named: "Restart nginx on"."""
    chosen = await select(home, host, login)
    if not chosen.several:
        [only] = chosen.machines
        facts = {"host": machine_label(only), "way": only.transport.description}
        action = await prepare(only)
        return Plan(f"{summary} {machine_label(only)}", (action,), facts=facts)
    return await _plan_for_all(chosen, summary, prepare, columns)


async def _plan_for_all(
    chosen: Selection,
    summary: str,
    prepare: Callable[[Machine], Awaitable[Action]],
    columns: tuple[str, ...],
) -> Plan:
    async def ready(one: Machine) -> Action:
        await is_node(one)  # whether it answers at all; what it says is remembered for the judgment of the plan
        return await prepare(one)

    answers = await ask_each(chosen.machines, ready, host_seconds=SECONDS)
    failures = dict(chosen.failures)
    actions = []
    for one, answer in zip(chosen.machines, answers, strict=True):
        if isinstance(answer, Problem):
            failures[machine_label(one)] = answer
        else:
            actions.append(answer)
    if not actions:
        raise _none_usable(summary, failures)
    return Plan(
        f"{summary} {len(actions)} host{'' if len(actions) == 1 else 's'}",
        tuple(actions),
        failures=tuple(f"{name}: {problem}" for name, problem in failures.items()),
        independent=True,
        columns=columns,
    )


def by_reason(reasons: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Of names and reasons: the names that share a reason, by the reason."""
    found: dict[str, list[str]] = {}
    for name, reason in reasons:
        found.setdefault(reason, []).append(name)
    return found


def _none_usable(summary: str, failures: Mapping[str, Problem]) -> Problem:
    """An error, because an empty plan would look like success."""
    named = by_reason(
        (name, "not registered" if isinstance(problem, HostNotFound) else problem.what.removesuffix("."))
        for name, problem in failures.items()
    )
    reasons = [f"{', '.join(names)}: {reason}" for reason, names in named.items()]
    left_out = [f"and {len(reasons) - MOST_REASONS} more reasons"] if len(reasons) > MOST_REASONS else []
    unknown = all(isinstance(one, HostNotFound) for one in failures.values())
    return Conflict(
        f"{summary} {len(failures)} hosts: not possible on any of them, so nothing was changed",
        why="; ".join(reasons[:MOST_REASONS] + left_out),
        next_step=Advice("Register them, or give their addresses", HOST_REGISTER)
        if unknown
        else next(iter(failures.values())).advice,
    )
