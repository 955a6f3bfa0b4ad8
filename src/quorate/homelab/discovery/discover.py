"""Asking a machine what it is made of."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec

from quorate.homelab.discovery import devices, machine, network, running, storage
from quorate.homelab.discovery.asking import Told, asked_for, question, taken_apart
from quorate.homelab.discovery.facts import SECTIONS, Facts
from quorate.homelab.machines import Machine
from quorate.inside.way import Command, Job
from quorate.problems import GuestRefused, Problem, TimedOut

KEPT = 2 * 1024 * 1024
MOST = 500
"""Rows of one section."""
LONGEST = 1000
"""Characters of one text."""
SHARE = 6
"""Of the whole time a program gets this part."""
STOP_SECONDS = 2.0

_READERS: Mapping[str, Callable[[Told], Any]] = {
    "hardware": machine.hardware,
    "system": machine.system,
    "cpu": machine.cpu,
    "memory": machine.memory,
    "disks": storage.disks,
    "filesystems": storage.filesystems,
    "network": network.network,
    "usb": devices.usb,
    "pci": devices.pci,
    "gpus": devices.gpus,
    "containers": running.containers,
    "vms": running.vms,
    "ports": network.ports,
    "services": running.services,
    "uptime": machine.uptime,
    "users": machine.users,
    "time": machine.time,
}
assert tuple(_READERS) == SECTIONS

_stops: set[asyncio.Task[None]] = set()


async def discover(
    found: Machine, *, seconds: float = 30, sections: Collection[str] = SECTIONS, sudo: bool = False
) -> Facts:
    """What can be found out about the machine in that time. A Problem if it cannot be asked at all."""
    if found.way.system != "posix":
        raise GuestRefused(f"{found} is not asked: it has no POSIX shell", next_step="guest_info tells about Windows")
    mark = secrets.token_hex(12)
    each = str(max(1, round(seconds / SHARE)))
    command = Command(("/bin/sh", "-c", question(sections), "sh", each), stdin=f"{mark}\n".encode())
    told = taken_apart(await _answer(found, found.as_root(command) if sudo else command, seconds), mark)
    if told is None:
        raise GuestRefused(f"{found} does not answer as a POSIX system does", next_step="host_exec shows what it says")
    return facts_of(told, sections)


def facts_of(told: Told, sections: Collection[str] = SECTIONS) -> Facts:
    """What the answers mean. Nothing is guessed: what nobody told is named, with the reason."""
    found: dict[str, Any] = {}
    not_known: dict[str, str] = {}
    for section in SECTIONS:
        if section not in sections:
            continue
        value = _bounded(_READERS[section](told))
        if _is_empty_for_want_of_answers(section, value, told):
            value = None
        found[section] = value
        if reason := _reason(section, value, told):
            not_known[section] = reason
    return Facts(**found, not_known=not_known)


async def _answer(found: Machine, command: Command, seconds: float) -> str:
    """What it says, or has said when the time is up."""
    job: Job | None = None
    try:
        async with asyncio.timeout(seconds):
            job = await found.way.start(command, keep=KEPT)
            output = await job.wait(seconds)
    except TimeoutError:
        output = None
    except asyncio.CancelledError:
        if job is not None:
            _stop(job)
        raise
    if job is None:
        raise TimedOut(
            f"{found} did not take a command within {seconds:g} s", next_step="It may be overloaded, or not there"
        )
    if output is None:
        output = await job.so_far()
        await asyncio.wait({_stop(job)}, timeout=STOP_SECONDS)
    return output.stdout.decode("utf-8", "replace")


def _stop(job: Job) -> asyncio.Task[None]:
    """It may take longer than the caller waits."""
    task = asyncio.get_running_loop().create_task(_stopped(job))
    _stops.add(task)
    task.add_done_callback(_stops.discard)
    return task


async def _stopped(job: Job) -> None:
    with contextlib.suppress(Problem):
        await job.stop()


def _bounded(value: Any) -> Any:
    """A host may say anything, and at any length."""
    if isinstance(value, str):
        return value[:LONGEST]
    if isinstance(value, tuple):
        return tuple(_bounded(one) for one in value[:MOST])
    if isinstance(value, msgspec.Struct):
        parts = {name: getattr(value, name) for name in value.__struct_fields__}
        return msgspec.structs.replace(value, **{name: _bounded(one) for name, one in parts.items()})
    return value


def _is_empty_for_want_of_answers(section: str, value: Any, told: Told) -> bool:
    """No container was told: because there is none, or because nobody could tell?"""
    if section not in ("containers", "vms") or value:
        return False
    asked = running.ENGINES if section == "containers" else running.MANAGERS
    return not told.complete or running.refusals(told, asked) is not None


def _reason(section: str, value: Any, told: Told) -> str | None:
    if section == "containers" and (refused := running.refusals(told, running.ENGINES)):
        return refused
    if section == "vms" and (refused := running.refusals(told, running.MANAGERS)):
        return refused
    if section == "filesystems" and value is not None and storage.only_local(told):
        return "df of all did not end in time, as with a file server that is gone: only local ones are told"
    if section == "network" and value is not None and not value.interfaces:
        return "Its interfaces are not told"
    if value is not None:
        return None
    if late := [one for one in asked_for(section) if one in told.late]:
        return f"{', '.join(late)} did not end in time"
    return "No program or file there tells it" if told.complete else "The answer broke off before it"
