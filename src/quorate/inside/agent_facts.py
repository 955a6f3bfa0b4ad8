"""What the agent of a VM tells about the system inside, without running a command there."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from quorate.inside.system_facts import FileSystem, SystemFacts
from quorate.problems import Problem
from quorate.pve.cluster import Guest

_NANO = 1_000_000_000
_ASKED = ("get-osinfo", "get-host-name", "get-timezone", "get-time", "get-fsinfo", "get-users", "get-vcpus")


async def system_facts(guest: Guest) -> SystemFacts:
    """Raises a Problem if the agent does not answer at all; what it does not know stays empty."""
    first = await _result(guest, _ASKED[0])
    answers = await asyncio.gather(*(_asked(guest, name) for name in _ASKED[1:]))
    system, (host, zone, time, volumes, users, cpus) = first or {}, answers
    return SystemFacts(
        os=_os_name(system),
        kernel=str(system.get("kernel-release") or ""),
        hostname=str((host or {}).get("host-name", "")),
        timezone=str((zone or {}).get("zone", "")),
        clock=time / _NANO if isinstance(time, int) else None,
        cpus=len([cpu for cpu in cpus if cpu.get("online")]) if isinstance(cpus, list) else None,
        filesystems=[_filesystem(one) for one in volumes or [] if one.get("total-bytes")],
        users=[_user(one) for one in users or []],
    )


async def _asked(guest: Guest, name: str) -> Any:
    """None where this agent does not know the question."""
    try:
        return await _result(guest, name)
    except Problem:
        return None


async def _result(guest: Guest, name: str) -> Any:
    answer = await guest.get(f"agent/{name}")
    result = answer.get("result") if isinstance(answer, dict) else None
    return None if isinstance(result, dict) and "error" in result else result


def _os_name(system: Mapping[str, Any]) -> str:
    name = str(system.get("pretty-name") or system.get("name") or "")
    return f"{name} {system.get('version', '')}".strip() if name and not system.get("pretty-name") else name


def _filesystem(told: Mapping[str, Any]) -> FileSystem:
    mount, kind = str(told.get("mountpoint", "?")), str(told.get("type", ""))
    return FileSystem(mount, int(told["total-bytes"]), int(told.get("used-bytes", 0)), kind)


def _user(told: Mapping[str, Any]) -> str:
    domain = f"{told['domain']}\\" if told.get("domain") else ""
    return f"{domain}{told.get('user', '?')}"
