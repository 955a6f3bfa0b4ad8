"""One plan for many guests, in which those that cannot be acted on do not hold up the others."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from quorate.operations.plan import Call, Plan
from quorate.pve.cluster import Guest
from quorate.pve.errors import Conflict, Problem
from quorate.pve.tasks import gather_bounded

READS_AT_ONCE = 16
REASONS_TOLD = 5

Planner = Callable[[Guest], Awaitable[Call | str]]


async def plan_each(summary: str, guests: list[Guest], planner: Planner) -> Plan:
    """A call for each guest; those that need none are unchanged, those that cannot are failures."""

    async def one(guest: Guest) -> Call | Problem | str:
        try:
            return await planner(guest)
        except Problem as problem:
            return problem

    found = await gather_bounded(READS_AT_ONCE, [partial(one, guest) for guest in guests])
    problems = [each for each in found if isinstance(each, Problem)]
    if problems and len(problems) == len(found):
        raise problems[0] if len(problems) == 1 else _together(problems)
    return Plan(
        summary,
        tuple(each for each in found if isinstance(each, Call)),
        tuple(each for each in found if isinstance(each, str)),
        tuple(_about(guest, each) for guest, each in zip(guests, found, strict=True) if isinstance(each, Problem)),
        independent=True,
    )


def _about(guest: Guest, problem: Problem) -> str:
    text = str(problem)
    return text if str(guest) in text else f"{guest}: {text}"


def _together(problems: list[Problem]) -> Conflict:
    why = " ".join(str(problem) for problem in problems[:REASONS_TOLD])
    return Conflict("None of the guests can do this now", why=why)
