"""One call for one host or for several: a single answer or a table, one plan and one approval."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from quorate.hints import Advice, Wording, tools
from quorate.homelab.homelab import Homelab
from quorate.homelab.machines import Login, Machine, is_node
from quorate.homelab.selection import SECONDS, Limits, Selection, ask_reachable, select
from quorate.operations.plan import Action, ActionResult, Call, Failure, Plan, StepContext
from quorate.operations.registry import Risk, Table, page
from quorate.problems import Conflict, HostNotFound, Problem
from quorate.pve.tasks import Report
from quorate.tools.machines import machine_label
from quorate.units import count_of

WHY_NOT = "why_not"
MOST_REASONS = 10
MOST_ROWS = 1000
PLANNING = Limits.same_for_each(SECONDS)

Rows = list[list[Any]]
Facts = dict[str, Any]
Answer = TypeVar("Answer", Facts, Table, Facts | Table)
T = TypeVar("T")


# -- reads -------------------------------------------------------------------------------------------------------------


async def answer_each(
    chosen: Selection,
    ask: Callable[[Machine], Awaitable[Rows | Table]],
    columns: Sequence[str],
    *,
    report: Report | None = None,
) -> Table:
    """A table even for one host: the rows of each, after its name; hosts that did not answer come first."""

    async def table(machine: Machine) -> Table:
        answer = await ask(machine)
        return answer if isinstance(answer, Table) else Table(tuple(columns), answer, len(answer))

    return await _ask_all(chosen, table, columns, Limits(), report)


async def describe_each(
    chosen: Selection,
    describe: Callable[[Machine], Awaitable[Answer]],
    columns: Sequence[str] = (),
    *,
    limits: Limits = Limits(),  # noqa: B008 - it is frozen
    report: Report | None = None,
) -> Answer | Table:
    """The answer of a single host as it is; of several, a table with a row for each, or with their rows."""
    if not chosen.several:
        return await describe(chosen.machines[0])
    return await _ask_all(chosen, describe, columns, limits, report)


async def _ask_all(
    chosen: Selection,
    ask: Callable[[Machine], Awaitable[Answer]],
    columns: Sequence[str],
    limits: Limits,
    report: Report | None,
) -> Table:
    answers = await ask_reachable(chosen.machines, ask, limits, report)
    return join_answers(zip(map(machine_label, chosen.machines), answers, strict=True), chosen.failures, columns)


def join_answers(
    answers: Iterable[tuple[str, Facts | Table | Problem]],
    failures: Mapping[str, Problem],
    columns: Sequence[str] = (),
) -> Table:
    """One table: hosts that did not answer, then a row for each answer or its rows, after the host's name."""
    answered: list[tuple[str, Facts | Table]]
    answered, failures = _split_failures(answers, failures)
    rows_by_host: list[tuple[str, Facts]] = []
    facts_of: list[tuple[str, Mapping[str, Any]]] = []
    empty: list[str] = []
    for label, answer in answered:
        if isinstance(answer, Table):
            rows_by_host += [(label, dict(zip(answer.columns, row, strict=True))) for row in answer.rows]
            facts_of.append((label, answer.facts))
            empty += [] if answer.rows else [label]
        else:
            rows_by_host.append((label, answer))
            facts_of.append((label, {}))
    shown_columns = columns or dict.fromkeys(name for _, row in rows_by_host for name in row)
    names = [name for name in shown_columns if name not in ("host", WHY_NOT)]
    rows: Rows = [[label, *("" for _ in names), str(problem)] for label, problem in failures.items()]
    rows += [[label, *(row.get(name, "") for name in (*names, WHY_NOT))] for label, row in rows_by_host]
    table = page(("host", *names, WHY_NOT), rows[:MOST_ROWS], limit=MOST_ROWS, offset=0)
    table.facts = {
        "hosts": len(facts_of) + len(failures),
        "failed": len(failures),
        **_by_host(facts_of, whole=not failures),
    }
    table.facts |= {"nothing_on": empty} if empty else {}
    if len(rows) > MOST_ROWS:
        table.facts |= {"not_shown": len(rows) - MOST_ROWS, "next": "Name fewer hosts, or ask for less of each"}
    return table


def _split_failures(
    answers: Iterable[tuple[str, T | Problem]], failures: Mapping[str, Problem]
) -> tuple[list[tuple[str, T]], dict[str, Problem]]:
    """The answers, and why the other hosts have none."""
    answered: list[tuple[str, T]] = []
    failed = dict(failures)
    for label, answer in answers:
        if isinstance(answer, Problem):
            failed[label] = answer
        else:
            answered.append((label, answer))
    return answered, failed


def _by_host(facts: Sequence[tuple[str, Mapping[str, Any]]], *, whole: bool) -> Facts:
    """A fact that all hosts share once, others by host; by host as well if some hosts did not answer."""
    joined: Facts = {}
    for name in dict.fromkeys(name for _, facts_of_host in facts for name in facts_of_host if name != "host"):
        values = {label: facts_of_host[name] for label, facts_of_host in facts if name in facts_of_host}
        first = next(iter(values.values()))
        shared = whole and len(values) == len(facts) > 1 and all(value == first for value in values.values())
        joined[name] = first if shared else values
    return joined


# -- changes -----------------------------------------------------------------------------------------------------------


async def plan_each(
    homelab: Homelab,
    host: str | list[str],
    summary: str,
    prepare: Callable[[Machine], Awaitable[Action | Plan]],
    columns: tuple[str, ...],
    *,
    login: Login = Login(),  # noqa: B008 - it is frozen
    limits: Limits = PLANNING,
) -> Plan:
    """The steps of each host, hosts in parallel. `summary` ends where the hosts are named: "Restart nginx on"."""
    chosen = await select(homelab, host, login)
    if not chosen.several:
        [only] = chosen.machines
        prepared = await prepare(only)
        if isinstance(prepared, Plan):
            return prepared
        facts = {"host": machine_label(only), "way": only.transport.description}
        return Plan(f"{summary} {machine_label(only)}", (prepared,), facts=facts)

    async def ready(machine: Machine) -> Action | Plan:
        await is_node(machine)  # raises if it does not answer; the result is kept for judging the plan
        return await prepare(machine)

    answers = await ask_reachable(chosen.machines, ready, limits)
    plans = [Plan(answer.summary, (answer,)) if isinstance(answer, Action) else answer for answer in answers]
    return join_plans(summary, zip(map(machine_label, chosen.machines), plans, strict=True), chosen.failures, columns)


def join_plans(
    summary: str,
    answers: Iterable[tuple[str, Plan | Problem]],
    failures: Mapping[str, Problem],
    columns: tuple[str, ...],
) -> Plan:
    """One plan for all hosts, each with the steps of its own plan in order."""
    plans, failures = _split_failures(answers, failures)
    if not plans:
        raise _none_usable(summary, failures)
    steps = [_steps(label, plan) for label, plan in plans]
    following = plans[0][1].next_step
    return Plan(
        f"{summary} {len(plans)} host{'' if len(plans) == 1 else 's'}",
        tuple(step for part in steps for step in part),
        unchanged=tuple(f"{label}: {text}" for label, plan in plans for text in plan.unchanged),
        failures=tuple(Failure(name, str(problem)) for name, problem in failures.items()),
        independent=True,
        sequences=tuple(len(part) for part in steps if part),
        columns=columns,
        next_step=following if all(plan.next_step == following for _, plan in plans) else None,
        facts=_by_host([(label, plan.facts) for label, plan in plans], whole=not failures),
        warnings=_warnings(plans),
        risk=Risk.DESTROY if any(plan.risk is Risk.DESTROY for _, plan in plans) else None,
    )


def _steps(label: str, plan: Plan) -> list[Call | Action]:
    """Every step names its host, and the last one reads what the plan would read at the end."""
    named = re.compile(rf"(?<![\w.-]){re.escape(label)}(?![\w.-])")
    steps = [
        step if named.search(step.summary) else replace(step, summary=f"{label}: {step.summary}") for step in plan.calls
    ]
    if steps and plan.after is not None:
        last = steps[-1]
        assert isinstance(last, Action)
        steps[-1] = replace(last, perform=_perform_then(last, plan.after))
    return steps


def _perform_then(
    step: Action, after: Callable[[], Awaitable[Mapping[str, Any]]]
) -> Callable[..., Awaitable[ActionResult]]:
    async def perform(context: StepContext) -> ActionResult:
        performed = await step.perform(context)
        return performed if performed.running else replace(performed, facts={**performed.facts, **await after()})

    return perform


def _warnings(plans: Sequence[tuple[str, Plan]]) -> tuple[str | Wording, ...]:
    """Each warning once, with its hosts unless it is about all of them."""
    advice: list[Wording] = []
    for _, plan in plans:
        advice += [warning for warning in plan.warnings if isinstance(warning, Wording) and warning not in advice]
    shared = by_reason(
        (label, warning) for label, plan in plans for warning in plan.warnings if isinstance(warning, str)
    )
    texts = (text if len(labels) == len(plans) else f"{', '.join(labels)}: {text}" for text, labels in shared.items())
    return (*texts, *advice)


def by_reason(reasons: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Group names by their reason."""
    names_by_reason: dict[str, list[str]] = {}
    for name, reason in reasons:
        names_by_reason.setdefault(reason, []).append(name)
    return names_by_reason


def _none_usable(summary: str, failures: Mapping[str, Problem]) -> Problem:
    """An error, because an empty plan would look like success."""
    named = by_reason(
        (name, "not registered" if isinstance(problem, HostNotFound) else problem.what.removesuffix("."))
        for name, problem in failures.items()
    )
    reasons = [f"{', '.join(names)}: {reason}" for reason, names in named.items()]
    left_out = [f"and {len(reasons) - MOST_REASONS} more reasons"] if len(reasons) > MOST_REASONS else []
    unknown = all(isinstance(problem, HostNotFound) for problem in failures.values())
    return Conflict(
        f"{summary} {count_of(len(failures), 'host')}: not possible on any of them, so nothing was changed",
        why="; ".join(reasons[:MOST_REASONS] + left_out),
        next_step=Advice("Register them, or give their addresses", tools.host_register)
        if unknown
        else next(iter(failures.values())).advice,
    )
