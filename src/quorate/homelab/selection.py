"""Which machines a call is about: one, a list, those with a label, or all registered hosts; and asking them at once."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from quorate.hints import HOST_IMPORT, HOST_REGISTER, Advice
from quorate.homelab.homelab import Homelab
from quorate.homelab.host import ALL, Host, is_ip
from quorate.homelab.machines import Login, Machine, find_machine, list_cluster_matches
from quorate.homelab.network.probe import PortState, probe
from quorate.problems import BadArgument, NotFound, Problem, Refused, TimedOut, Unreachable
from quorate.pve.tasks import Report, gather_bounded
from quorate.ssh.target import SshTarget, split_port

AT_ONCE = 32
PROGRAMS_AT_ONCE = 4
"""Where each host takes a program of this machine: Ansible, Terraform."""
MAX_HOSTS = 500
SECONDS = 40.0
"""For all of them together: clients wait a minute for a tool."""
HOST_SECONDS = 20.0
KNOCK_SECONDS = 3.0
SHOWN = 5
"""Hosts of a label in an error message."""

I = TypeVar("I")  # noqa: E741 - an item
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Limits:
    """How long many hosts may take, and how many are asked in parallel."""

    seconds: float = SECONDS
    """For all of them together."""
    host_seconds: float = HOST_SECONDS
    at_once: int = AT_ONCE

    @classmethod
    def same_for_each(cls, seconds: float, at_once: int = AT_ONCE) -> Limits:
        """Each host may use all of the time."""
        return cls(seconds, seconds, at_once)


@dataclass(frozen=True, slots=True)
class Selection:
    machines: Sequence[Machine]
    failures: Mapping[str, Problem]
    """The references that lead to no machine that can be used, and why."""
    several: bool
    """Whether the caller chose a list, a label or all, even if that is a single host."""


async def select(homelab: Homelab, given: str | Sequence[str], login: Login = Login()) -> Selection:  # noqa: B008
    """Raises the Problem of a single host; of several, those that cannot be used are listed."""
    refs, several = await expand_all(homelab, given)
    if not several:
        return Selection([await find_machine(homelab, refs[0], login)], {}, several=False)
    found = await gather_bounded(AT_ONCE, [partial(_find, homelab, ref, login) for ref in refs])
    machines = {_identity(one): one for one in found if isinstance(one, Machine)}
    failures = {ref: one for ref, one in zip(refs, found, strict=True) if isinstance(one, Problem)}
    return Selection(list(machines.values()), failures, several=True)


@dataclass(frozen=True, slots=True)
class RecordSelection:
    """Registered hosts as they are recorded, not the machines."""

    hosts: Sequence[Host]
    failures: Mapping[str, Problem]
    several: bool


async def select_records(homelab: Homelab, given: str | Sequence[str], *, inactive: bool = False) -> RecordSelection:
    """As `select`, for what is about the registry. `inactive`: a label and all include deactivated hosts."""
    refs, several = await expand_all(homelab, given, inactive=inactive, records=True)
    if not several:
        return RecordSelection([await homelab.hosts.get(refs[0])], {}, several=False)
    found: list[Host] = []
    failures: dict[str, Problem] = {}
    for ref in refs:
        try:
            found.append(await homelab.hosts.get(ref))
        except Problem as problem:
            failures[ref] = problem
    return RecordSelection(found, failures, several=True)


async def expand_all(
    homelab: Homelab, given: str | Sequence[str], *, inactive: bool = False, records: bool = False
) -> tuple[list[str], bool]:
    """The names that one reference or several stand for, and whether they are a group, even of a single host."""
    if isinstance(given, str) and "," in given:
        given = given.split(",")
    if isinstance(given, str):
        refs, several = await expand(homelab, given, inactive=inactive, records=records)
    else:
        parts = [await _expand_one(homelab, one, inactive, records) for one in given]
        refs, several = list(dict.fromkeys(ref for part in parts for ref in part)), True
    if not refs:
        raise BadArgument("The list of hosts is empty", next_step="Name a host, a label, or all")
    if len(refs) > MAX_HOSTS:
        raise BadArgument(f"{len(refs)} hosts are too many for one call", next_step=f"Choose at most {MAX_HOSTS}")
    return refs, several


async def _expand_one(homelab: Homelab, ref: str, inactive: bool, records: bool) -> list[str]:
    """Of a list: a host that the caller may not see is one of the failures, it does not stop the others."""
    try:
        return (await expand(homelab, ref, inactive=inactive, records=records))[0]
    except Refused:
        return [ref.strip()]


def _identity(one: Machine) -> tuple[object, ...]:
    """A machine that is named twice is asked once."""
    return one.kind, one.guest.vmid if one.guest else one.name, one.where.name if one.where else ""


async def expand(
    homelab: Homelab, ref: str, *, inactive: bool = False, records: bool = False
) -> tuple[list[str], bool]:
    """The names that a reference stands for, and whether it stands for a group. A registered name is only itself.

    A label never takes the place of an address, a node or a guest: anyone who sets labels could redirect commands.
    `records`: only registered hosts can be meant.
    """
    name = ref.strip()
    if await homelab.hosts.find(name):
        return [name], False
    known = [one for one in await homelab.hosts.all() if one.active or inactive]
    if name == ALL:
        if not known:
            advice = Advice("Register them first", HOST_REGISTER, HOST_IMPORT)
            raise NotFound("No host is registered", next_step=advice)
        return [one.name for one in known], True
    labeled = [one.name for one in known if name in one.labels]
    if not labeled or "@" in name or is_ip(split_port(name)[0]):
        return [name], False
    if not records and (others := await list_cluster_matches(homelab, name)):
        raise BadArgument(
            f"{name!r} is ambiguous",
            why=f"It is a label of {', '.join(labeled[:SHOWN])}, and the name of {', '.join(others)}",
            next_step=f"Use {others[0]}, or name the hosts",
        )
    return labeled, True


async def _find(homelab: Homelab, ref: str, login: Login) -> Machine | Problem:
    try:
        return await find_machine(homelab, ref, login)
    except Problem as problem:
        return problem


async def ask_reachable(
    machines: Sequence[Machine],
    ask: Callable[[Machine], Awaitable[T]],
    limits: Limits = Limits(),  # noqa: B008 - it is frozen
    report: Report | None = None,
) -> list[T | Problem]:
    """As `gather_in_time`, but hosts where nothing answers are not logged in to."""

    async def knock_first(one: Machine) -> T:
        await knock(one.target)
        return await ask(one)

    return await gather_in_time(machines, knock_first, limits, report)


async def gather_in_time(
    items: Sequence[I],
    ask: Callable[[I], Awaitable[T]],
    limits: Limits = Limits(),  # noqa: B008 - it is frozen
    report: Report | None = None,
) -> list[T | Problem]:
    """The answer of each, or why there is none, in order. Nobody waits for a dead host longer than the limit."""
    answers: list[T | Problem] = [TimedOut(f"There was not enough time for {one}") for one in items]
    queue, done = iter(enumerate(items)), 0

    async def work() -> None:
        nonlocal done
        for number, one in queue:
            answers[number] = TimedOut(f"{one} was not finished in time")
            answers[number] = await _ask(one, ask, limits.host_seconds)
            done += 1
            if report is not None:
                await report(float(done), float(len(items)), str(one))

    with contextlib.suppress(TimeoutError):  # finished answers count
        async with asyncio.timeout(limits.seconds), asyncio.TaskGroup() as workers:
            for _ in range(min(limits.at_once, len(items))):
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
        raise NoSshServer(f"{target} refuses the connection", next_step="Check that its SSH server runs on that port")


class NoSshServer(Unreachable):
    """Something is at the address, but no SSH server."""
