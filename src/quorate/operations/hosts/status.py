"""How hosts are doing, at a glance."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from quorate.homelab.homelab import Homelab
from quorate.homelab.machines import Machine
from quorate.homelab.selection import HOST_SECONDS, select
from quorate.inside.upgrades import count_pending
from quorate.operations.hosts.parameters import HostRefs
from quorate.operations.hosts.several import WHY_NOT, answer_each
from quorate.operations.registry import Risk, Table, operation
from quorate.operations.units import duration, percent, shortlist, used_of
from quorate.pve.tasks import Report

if TYPE_CHECKING:
    from quorate.inside.facts import model as of

SECTIONS = ("system", "cpu", "memory", "filesystems", "services", "uptime", "temperature")
COLUMNS = ("attention", "up", "load", "memory", "disk", "temp", "failed", "reboot", "updates", "system")
FULL, HOT = 0.9, 85.0
SPARE_SECONDS = 4.0
"""Seconds reserved for the login."""
_NOT_DISKS = ("/boot/efi", "/snap/", "/run", "/dev", "/sys", "/proc")


@operation(
    risk=Risk.LOOK_INSIDE,
    search_words=(
        "how are my hosts servers machines doing health overview glance load memory disk full temperature failed "
        "units reboot required pending updates uptime nas raspberry pi all hosts check"
    ),
    example="host=nas",
)
async def host_status(
    homelab: Homelab,
    report: Report,
    host: HostRefs = "all",
) -> Table:
    """Uptime, load, memory, disk, temperature, failed units, updates of hosts; what needs attention first."""
    table = await answer_each(await select(homelab, host), _look, COLUMNS, report=report)
    attention = table.columns.index("attention") if "attention" in table.columns else None
    silent = table.columns.index(WHY_NOT) if WHY_NOT in table.columns else None
    table.rows.sort(
        key=lambda row: (silent is None or not row[silent], attention is None or not row[attention]),
    )
    return table


async def _look(one: Machine) -> list[list[Any]]:
    seconds = HOST_SECONDS - SPARE_SECONDS
    facts, updates = await asyncio.gather(
        one.collect_facts(seconds=seconds, sections=SECTIONS),
        count_pending(one.transport, str(one), seconds=seconds),  # apt can be slow; nothing else waits for it
    )
    disk, share = _fullest(facts.filesystems or ())
    memory, failed = facts.memory, facts.services.failed if facts.services else ()
    worries = [
        "disk" if share >= FULL else "",
        "heat" if (facts.temperature or 0) >= HOT else "",
        "units" if failed else "",
        "reboot" if updates and updates.restart else "",
        "security" if updates and updates.security else "",
        "load" if _overloaded(facts) else "",
    ]
    used = memory.total - memory.available if memory and memory.total and memory.available is not None else None
    return [
        [
            ", ".join(filter(None, worries)),
            duration(facts.uptime.seconds) if facts.uptime and facts.uptime.seconds is not None else "",
            f"{facts.uptime.load[0]:g}" if facts.uptime and facts.uptime.load else "",
            used_of(used, memory.total) if memory and memory.total and used is not None else "",
            disk,
            f"{facts.temperature:.0f}C" if facts.temperature is not None else "",
            shortlist(failed, 5),
            updates.restart if updates else "",
            _updates(updates),
            (facts.system.name or facts.system.id or "") if facts.system else "",
        ]
    ]


def _fullest(filesystems: tuple[of.Filesystem, ...]) -> tuple[str, float]:
    shares = [
        (one.share, one)
        for one in filesystems
        if one.share is not None and not one.mount.startswith(_NOT_DISKS) and one.type != "squashfs"
    ]
    if not shares:
        return "", 0.0
    share, fullest = max(shares, key=lambda pair: pair[0])
    return f"{fullest.mount} {percent(share)} of {used_of(0, fullest.size or 0).partition('/')[2]}", share


def _overloaded(facts: of.Facts) -> bool:
    """A five-minute load above twice the number of processors."""
    threads = facts.cpu.threads if facts.cpu and facts.cpu.threads else None
    return bool(threads and facts.uptime and len(facts.uptime.load) > 1 and facts.uptime.load[1] > 2 * threads)


def _updates(updates: of.Updates | None) -> str:
    """`12 (3 security), lists 9d old`; empty where no package manager is known."""
    if updates is None or updates.pending is None:
        return ""
    security = f" ({updates.security} security)" if updates.security else ""
    age = f", lists {duration(updates.age)} old" if updates.age and updates.age > 86_400 else ""
    return f"{updates.pending}{security}{age}"
