"""The system inside a guest."""

from __future__ import annotations

import asyncio
from typing import Any

from quorate.inside.facts.model import Filesystem
from quorate.inside.guest_facts import SystemFacts, agent_facts, system_facts
from quorate.operations.inside.parameters import WayName, look_inside
from quorate.operations.registry import GuestRef, Risk, operation
from quorate.operations.units import Quantity, duration, moment, percent, used_of
from quorate.problems import Problem
from quorate.pve.cluster import Cluster, Guest


@operation(
    risk=Risk.LOOK_INSIDE,
    search_words=(
        "linux windows how long up distro operating system installed kernel distribution version inside guest "
        "filesystem full users agent alive"
    ),
    example="guest=pihole",
)
async def guest_info(pve: Cluster, guest: GuestRef, way: WayName | None = None) -> dict[str, Any]:
    """The system inside a guest: OS, kernel, uptime, load, memory, file systems, users logged in."""
    found = await pve.guest(guest)
    reported, (description, seen) = await asyncio.gather(
        _facts_from_agent(found), look_inside(pve, found, way, system_facts)
    )
    if isinstance(seen, Problem) and (reported is None or isinstance(reported, Problem)):
        raise seen
    facts = seen if isinstance(seen, SystemFacts) else SystemFacts()
    if isinstance(reported, SystemFacts):
        # The agent names Windows, users and file systems better than the commands do, Linux no worse.
        facts = reported.filled_from(facts)
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


async def _facts_from_agent(guest: Guest) -> SystemFacts | Problem | None:
    """None for a container, which has no agent."""
    if not guest.is_vm:
        return None
    try:
        return await agent_facts(guest)
    except Problem as problem:
        return problem


def _memory(facts: SystemFacts) -> str:
    if facts.memory_total is None or facts.memory_used is None:
        return ""
    return _share(facts.memory_used, facts.memory_total)


def _usage(one: Filesystem) -> str:
    return _share(one.used or 0, one.size or 1, one.type or "")


def _share(used: float, total: float, kind: str = "") -> str:
    text = f"{used_of(used, total)} ({percent(used / total)}) {kind}".rstrip()
    return Quantity(text, {"used": int(used), "total": int(total), **({"type": kind} if kind else {})})
