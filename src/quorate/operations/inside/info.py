"""What a guest tells about the system inside it."""

from __future__ import annotations

import asyncio
from typing import Any

from quorate.inside import agent_facts, posix_facts, windows_facts
from quorate.inside.reaching import way_into
from quorate.inside.system_facts import FileSystem, SystemFacts
from quorate.operations.inside.parameters import WayName
from quorate.operations.registry import GuestRef, Risk, operation
from quorate.operations.units import duration, moment, percent, used_of
from quorate.pve.cluster import Cluster, Guest
from quorate.pve.errors import Problem


@operation(risk=Risk.LOOK_INSIDE)
async def guest_info(pve: Cluster, guest: GuestRef, way: WayName | None = None) -> dict[str, Any]:
    """The system inside a guest: OS, kernel, uptime, load, memory, file systems, users logged in."""
    found = await pve.guest(guest)
    told, (description, seen) = await asyncio.gather(_told_by_agent(found), _seen_inside(pve, found, way))
    if isinstance(seen, Problem) and (told is None or isinstance(told, Problem)):
        raise seen
    facts = seen if isinstance(seen, SystemFacts) else SystemFacts()
    if isinstance(told, SystemFacts):
        # The agent names Windows, users and file systems better than the commands do, Linux no worse.
        facts = told.filled_from(facts)
    return {
        "guest": found.label,
        "way": description or "agent, without running a command",
        "os": facts.os,
        "kernel": facts.kernel,
        "hostname": facts.hostname,
        "uptime": "" if facts.uptime is None else duration(facts.uptime),
        "load": facts.load,
        "cpus": facts.cpus,
        "memory": _memory(facts),
        "timezone": facts.timezone,
        "clock": "" if facts.clock is None else moment(facts.clock),
        "filesystems": {one.mount: _usage(one) for one in facts.filesystems},
        "users": facts.users or "nobody is logged in",
        "not_known": {"uptime, load, memory": str(seen)} if isinstance(seen, Problem) else {},
    }


async def _told_by_agent(guest: Guest) -> SystemFacts | Problem | None:
    """None for a container, which has no agent."""
    if not guest.is_vm:
        return None
    try:
        return await agent_facts.system_facts(guest)
    except Problem as problem:
        return problem


async def _seen_inside(pve: Cluster, guest: Guest, way: WayName | None) -> tuple[str, SystemFacts | Problem]:
    try:
        into = await way_into(pve, guest, prefer=way)
        return into.description, await (windows_facts if into.system == "windows" else posix_facts).system_facts(into)
    except Problem as problem:
        if way is not None:
            raise
        return "", problem


def _memory(facts: SystemFacts) -> str:
    if facts.memory_total is None or facts.memory_used is None:
        return ""
    return f"{used_of(facts.memory_used, facts.memory_total)} ({percent(facts.memory_used / facts.memory_total)})"


def _usage(one: FileSystem) -> str:
    kind = f" {one.type}" if one.type else ""
    return f"{used_of(one.used, one.total)} ({percent(one.used / one.total)}){kind}"
