"""Which machines a call is about: one, a list, those with a label, or all registered hosts; and asking them at once."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from quorate.hints import HOST_IMPORT, HOST_REGISTER, Advice
from quorate.homelab.homelab import Homelab
from quorate.homelab.host import ALL, Host
from quorate.homelab.machines import Login, Machine, machine
from quorate.homelab.network.probe import PortState, probe
from quorate.problems import BadArgument, NotFound, Problem, TimedOut, Unreachable
from quorate.pve.tasks import Report, gather_bounded
from quorate.ssh.target import SshTarget

AT_ONCE = 32
MOST = 500
SECONDS = 40.0
"""For all of them together: clients wait a minute for a tool."""
HOST_SECONDS = 20.0
KNOCK_SECONDS = 3.0

I = TypeVar("I")  # noqa: E741 - an item
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Selection:
    machines: Sequence[Machine]
    failures: Mapping[str, Problem]
    """The references that lead to no machine that can be used, and why."""
    several: bool
    """Whether the caller chose a list, a label or all, even if that is a single host."""


async def select(home: Homelab, given: str | Sequence[str], login: Login = Login()) -> Selection:  # noqa: B008
    """Raises the Problem of a single host; of several, those that cannot be used are listed."""
    refs, several = await expand_all(home, given)
    if not several:
        return Selection([await machine(home, refs[0], login)], {}, several=False)
    found = await gather_bounded(AT_ONCE, [partial(_find, home, ref, login) for ref in refs])
    machines = {_identity(one): one for one in found if isinstance(one, Machine)}
    failures = {ref: one for ref, one in zip(refs, found, strict=True) if isinstance(one, Problem)}
    return Selection(list(machines.values()), failures, several=True)


@dataclass(frozen=True, slots=True)
class RecordSelection:
    """Registered hosts as they are recorded, not the machines."""

    hosts: Sequence[Host]
    failures: Mapping[str, Problem]
    several: bool


async def select_records(home: Homelab, given: str | Sequence[str], *, inactive: bool = False) -> RecordSelection:
    """As `select`, for what is about the registry. `inactive`: a label and all include deactivated hosts."""
    refs, several = await expand_all(home, given, inactive=inactive)
    if not several:
        return RecordSelection([await home.hosts.get(refs[0])], {}, several=False)
    found: list[Host] = []
    failures: dict[str, Problem] = {}
    for ref in refs:
        try:
            found.append(await home.hosts.get(ref))
        except Problem as problem:
            failures[ref] = problem
    return RecordSelection(found, failures, several=True)


async def expand_all(home: Homelab, given: str | Sequence[str], *, inactive: bool = False) -> tuple[list[str], bool]:
    """The names that one reference or several stand for, and whether they are a group, even of a single host."""
    if isinstance(given, str):
        return await expand(home, given, inactive=inactive)
    parts = [await expand(home, one, inactive=inactive) for one in given]
    refs = list(dict.fromkeys(ref for part, _ in parts for ref in part))
    if not refs:
        raise BadArgument("The list of hosts is empty", next_step="Name a host, a label, or all")
    if len(refs) > MOST:
        raise BadArgument(f"{len(refs)} hosts are too many for one call", next_step=f"Choose at most {MOST}")
    return refs, True


def _identity(one: Machine) -> tuple[object, ...]:
    """A machine that is named twice is asked once."""
    return one.kind, one.guest.vmid if one.guest else one.name, one.where.name if one.where else ""


async def expand(home: Homelab, ref: str, *, inactive: bool = False) -> tuple[list[str], bool]:
    """The names that a reference stands for, and whether it stands for a group. A registered name is only itself."""
    name = ref.strip()
    if await home.hosts.find(name):
        return [name], False
    active = [one for one in await home.hosts.all() if one.active or inactive]
    if name == ALL:
        if not active:
            advice = Advice("Register them first", HOST_REGISTER, HOST_IMPORT)
            raise NotFound("No host is registered", next_step=advice)
        return [one.name for one in active], True
    labelled = [one.name for one in active if name in one.labels]
    return (labelled, True) if labelled else ([name], False)


async def _find(home: Homelab, ref: str, login: Login) -> Machine | Problem:
    try:
        return await machine(home, ref, login)
    except Problem as problem:
        return problem


async def ask_each(
    machines: Sequence[Machine], ask: Callable[[Machine], Awaitable[T]], **limits: Any
) -> list[T | Problem]:
    """As `within_time`, but hosts where nothing answers are not logged in to."""

    async def knock_first(one: Machine) -> T:
        await knock(one.target)
        return await ask(one)

    return await within_time(machines, knock_first, **limits)


async def within_time(
    items: Sequence[I],
    ask: Callable[[I], Awaitable[T]],
    *,
    seconds: float = SECONDS,
    host_seconds: float = HOST_SECONDS,
    report: Report | None = None,
) -> list[T | Problem]:
    """The answer of each, or why there is none, in order. Nobody waits for a dead host longer than `seconds`."""
    answers: list[T | Problem] = [TimedOut(f"There was not enough time for {one}") for one in items]
    queue, done = iter(enumerate(items)), 0

    async def work() -> None:
        nonlocal done
        for number, one in queue:
            answers[number] = TimedOut(f"{one} was not finished in time")
            answers[number] = await _ask(one, ask, host_seconds)
            done += 1
            if report is not None:
                await report(float(done), float(len(items)), str(one))

    with contextlib.suppress(TimeoutError):  # finished answers count
        async with asyncio.timeout(seconds), asyncio.TaskGroup() as workers:
            for _ in range(min(AT_ONCE, len(items))):
                workers.create_task(work())
    return answers


async def _ask(one: I, ask: Callable[[I], Awaitable[T]], seconds: float) -> T | Problem:
    try:
        async with asyncio.timeout(seconds):
            return await ask(one)
    except TimeoutError:
        return TimedOut(f"{one} was not finished after {seconds:g} s")
    except Problem as problem:
        return problem


async def knock(target: SshTarget | None) -> None:
    """Raise Unreachable where a login is pointless: a quick check before a slow login."""
    try:
        address = ipaddress.ip_address(target.host if target and target.jump is None else "")
    except ValueError:
        return  # not over SSH, through a jump host, or by name: only a login can tell
    assert target is not None
    answer = await probe(address, target.port, KNOCK_SECONDS)
    if answer is PortState.SILENT:
        raise Unreachable(f"Nothing answers at {target}", next_step="Check that it is on and that the address is right")
    if answer is PortState.CLOSED:
        raise Refusing(f"{target} refuses the connection", next_step="Check that its SSH server runs on that port")


class Refusing(Unreachable):
    """Something is at the address, but no SSH server."""
