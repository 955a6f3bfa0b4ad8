"""Which machines a call is about: one, a list, those with a label, or all registered hosts; and asking them at once."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from quorate.hints import NAMED, Advice, Sentence, tools
from quorate.homelab.homelab import Homelab
from quorate.homelab.host import ALL, Host, is_ip
from quorate.homelab.machines import Login, Machine, find_machine, list_cluster_matches, resolve_host
from quorate.homelab.network_probe import Address, PortState, probe
from quorate.inside.transport import Command
from quorate.problems import BadArgument, NotFound, Problem, Refused, TimedOut, Unreachable
from quorate.pve.tasks import Report, for_each, gather_bounded
from quorate.ssh.pool import Pool
from quorate.ssh.target import SshTarget, split_port

AT_ONCE = 32
PROGRAMS_AT_ONCE = 4
"""The same where each host needs a process on this machine, such as Ansible or Terraform."""
MAX_HOSTS = 500
SECONDS = 40.0
"""For all hosts together: clients wait a minute for a tool."""
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
    """For all hosts together."""
    host_seconds: float = HOST_SECONDS
    at_once: int = AT_ONCE

    @classmethod
    def same_for_each(cls, seconds: float, at_once: int = AT_ONCE) -> Limits:
        """Limits under which each host may use all of the time."""
        return cls(seconds, seconds, at_once)


@dataclass(frozen=True, slots=True)
class Selection:
    machines: Sequence[Machine]
    failures: Mapping[str, Problem]
    """The references that lead to no machine that can be used, and why."""
    several: bool
    """True if the caller chose a list, a label or all, even if that is a single host."""


async def select(homelab: Homelab, hosts: str | Sequence[str], login: Login = Login()) -> Selection:  # noqa: B008
    """Raises the Problem of a single host; of several, those that cannot be used are listed."""
    refs, several = await expand_all(homelab, hosts)
    if not several:
        return Selection([await find_machine(homelab, refs[0], login)], {}, several=False)
    results = await gather_bounded(AT_ONCE, [partial(_find, homelab, ref, login) for ref in refs])
    machines = {_identity(machine): machine for machine in results if isinstance(machine, Machine)}
    failures = {ref: problem for ref, problem in zip(refs, results, strict=True) if isinstance(problem, Problem)}
    return Selection(list(machines.values()), failures, several=True)


@dataclass(frozen=True, slots=True)
class RecordSelection:
    """Registered hosts as they are recorded, not the machines."""

    hosts: Sequence[Host]
    failures: Mapping[str, Problem]
    several: bool


async def select_records(homelab: Homelab, hosts: str | Sequence[str], *, inactive: bool = False) -> RecordSelection:
    """Like `select`, but the registered records. `inactive`: a label and all include deactivated hosts."""
    refs, several = await expand_all(homelab, hosts, inactive=inactive, records=True)
    if not several:
        return RecordSelection([await homelab.hosts.get(refs[0])], {}, several=False)
    records: list[Host] = []
    failures: dict[str, Problem] = {}
    for ref in refs:
        try:
            records.append(await homelab.hosts.get(ref))
        except Problem as problem:
            failures[ref] = problem
    return RecordSelection(records, failures, several=True)


async def expand_all(
    homelab: Homelab, hosts: str | Sequence[str], *, inactive: bool = False, records: bool = False
) -> tuple[list[str], bool]:
    """The names that one reference or several stand for, and whether they are a group, even of a single host."""
    if isinstance(hosts, str) and "," in hosts:
        hosts = hosts.split(",")
    if isinstance(hosts, str):
        refs, several = await expand(homelab, hosts, inactive=inactive, records=records)
    else:
        parts = [await _expand_one(homelab, ref, inactive, records) for ref in hosts]
        refs, several = list(dict.fromkeys(ref for part in parts for ref in part)), True
    if not refs:
        raise BadArgument("The list of hosts is empty", next_step="Name a host, a label, or all")
    if len(refs) > MAX_HOSTS:
        raise BadArgument(f"{len(refs)} hosts are too many for one call", next_step=f"Choose at most {MAX_HOSTS}")
    return refs, several


async def _expand_one(homelab: Homelab, ref: str, inactive: bool, records: bool) -> list[str]:
    """Expand one reference of a list. A hidden host becomes a failure and does not stop the others."""
    try:
        return (await expand(homelab, ref, inactive=inactive, records=records))[0]
    except Refused:
        return [ref.strip()]


def _identity(machine: Machine) -> tuple[object, ...]:
    """The key by which a machine that is named twice is asked once."""
    return (
        machine.kind,
        machine.guest.vmid if machine.guest else machine.name,
        machine.where.name if machine.where else "",
    )


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
    known = [host for host in await homelab.hosts.all() if host.active or inactive]
    if name == ALL:
        if not known:
            advice = Advice("Register them first", tools.host_register, tools.host_import)
            raise NotFound("No host is registered", next_step=advice)
        return [host.name for host in known], True
    labeled = [host.name for host in known if name in host.labels]
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
    """Like `gather_in_time`, but hosts where nothing answers are not logged in to."""

    async def knock_first(machine: Machine) -> T:
        await knock(machine)
        return await ask(machine)

    return await gather_in_time(machines, knock_first, limits, report)


async def gather_in_time(
    items: Sequence[I],
    ask: Callable[[I], Awaitable[T]],
    limits: Limits = Limits(),  # noqa: B008 - it is frozen
    report: Report | None = None,
) -> list[T | Problem]:
    """The answer of each, or why there is none, in order. Nobody waits for a dead host longer than the limit."""
    answers: list[T | Problem] = [TimedOut(f"There was not enough time for {item}") for item in items]
    done = 0

    async def answer(numbered: tuple[int, I]) -> None:
        nonlocal done
        number, item = numbered
        answers[number] = TimedOut(f"{item} was not finished in time")
        answers[number] = await _ask(item, ask, limits.host_seconds)
        done += 1
        if report is not None:
            await report(float(done), float(len(items)), str(item))

    with contextlib.suppress(TimeoutError):  # finished answers count
        async with asyncio.timeout(limits.seconds):
            await for_each(limits.at_once, enumerate(items), answer)
    return answers


async def _ask(item: I, ask: Callable[[I], Awaitable[T]], seconds: float) -> T | Problem:
    try:
        async with asyncio.timeout(seconds):
            return await ask(item)
    except TimeoutError:
        return TimedOut(f"{item} was not finished after {seconds:g} s")
    except Problem as problem:
        return problem


async def knock(machine: Machine) -> None:
    """Raise Unreachable where a login is pointless: a quick check before a slow login."""
    if (address := _address_of(machine)) is None:
        return
    target, pool = _ssh_of(machine)
    answer = await pool.knock(target, partial(probe, address, target.port, KNOCK_SECONDS))
    if answer is PortState.SILENT:
        raise Unreachable(f"Nothing answers at {target}", next_step="Check that it is on and that the address is right")
    if answer is PortState.CLOSED:
        raise NoSshServer(f"{target} refuses the connection", next_step="Check that its SSH server runs on that port")


async def has_gone_silent(machine: Machine) -> bool:
    """True if nothing answers at its address any more, which an open connection notices only after minutes."""
    if (address := _address_of(machine)) is None:
        return False
    target, pool = _ssh_of(machine)
    if await probe(address, target.port, KNOCK_SECONDS) is not PortState.SILENT:
        return False
    pool.disconnect(target)
    return True


def _address_of(machine: Machine) -> Address | None:
    """Where to probe it; None if it is not over SSH, through a jump host, or by name: only a login can tell then."""
    target = machine.target
    try:
        return ipaddress.ip_address(target.host if target and target.jump is None else "")
    except ValueError:
        return None


def _ssh_of(machine: Machine) -> tuple[SshTarget, Pool]:
    assert machine.target is not None
    assert machine.ssh is not None
    return machine.target, machine.ssh.pool


class NoSshServer(Unreachable):
    """Something is at the address, but no SSH server."""


VERIFICATION_SECONDS = 20.0
WORDS = 200
STAGES = {"host_key": "host key", "authentication": "login", "configuration": "settings", "refused": "rules"}
"""The step that failed, by the problem's code; anything else is the connection."""
BEFORE = {"refused": "rules", "unreachable": "connection", "timeout": "connection"}
"""The step that failed before anything was sent; anything else is the settings, such as a missing secret."""


async def verify_host(homelab: Homelab, host: Host, *, knock_first: bool = False) -> dict[str, Any]:
    """Log in, try to become root, and store the result. `knock_first`: try no login where nothing answers."""
    under_way = False
    try:
        machine = await resolve_host(homelab, host)
        under_way = True
        if knock_first:
            await knock(machine)
        who = await machine.transport.run(Command(("id", "-un")), seconds=VERIFICATION_SECONDS)
        result = {"verified": True, "logged_in_as": _words(who.stdout), **await _root(machine)}
        verdict = "ok"
    except Problem as problem:
        at = STAGES.get(problem.code, "connection") if under_way else BEFORE.get(problem.code, "settings")
        result = {"verified": False, "failed_at": at, "why": str(problem)}
        verdict = problem.what
    await _keep(homelab, host.name, verdict)
    return result


async def _root(machine: Machine) -> dict[str, Any]:
    """Root is not needed to use a host, so lacking it is not a failure."""
    try:
        root = await machine.transport.run(machine.as_root(Command(("true",))), seconds=VERIFICATION_SECONDS)
    except Problem as problem:
        return {"root": "no", "why_not_root": str(problem)}
    if root.exit_code == 0:
        return {"root": "yes"}
    reason = _words(root.stderr) or f"sudo ended with exit code {root.exit_code}"
    hint = " (set {sudo_password} by reference, or allow sudo without a password)" if "password" in reason else ""
    return {"root": "no", "why_not_root": Sentence(f"{reason}{hint}", sudo_password=NAMED)}


async def _keep(homelab: Homelab, name: str, verdict: str) -> None:
    """The host may have been removed during the attempt."""
    with contextlib.suppress(NotFound):
        await homelab.hosts.change(name, verified=homelab.clock.time(), verdict=verdict)


def _words(output: bytes) -> str:
    return output.decode("utf-8", "replace").strip()[:WORDS]
