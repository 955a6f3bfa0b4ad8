"""Collects the facts of a machine: runs the script, parses each answer, and reports what remains unknown."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec

from quorate.hints import Advice, see, tools
from quorate.inside.facts import machine, network, software
from quorate.inside.facts.model import EVERY_SECTION, SECTIONS, Facts
from quorate.inside.facts.script import Answers, build_script, sources_of, split_answers
from quorate.inside.facts.system import disks, filesystems, gpus, only_local, pci, usb
from quorate.inside.transport import Command, Job, Transport
from quorate.problems import GuestRefused, Problem, TimedOut

MAX_OUTPUT = 2 * 1024 * 1024
MAX_ROWS = 500
"""Rows of one section."""
MAX_TEXT = 1000
"""Characters of one text."""
SHARE = 6
"""Each program gets the whole time divided by this."""
STOP_SECONDS = 2.0

_READERS: Mapping[str, Callable[[Answers], Any]] = {
    "hardware": machine.hardware,
    "system": machine.system,
    "cpu": machine.cpu,
    "memory": machine.memory,
    "disks": disks,
    "filesystems": filesystems,
    "network": network.network,
    "usb": usb,
    "pci": pci,
    "gpus": gpus,
    "containers": software.containers,
    "vms": software.vms,
    "ports": network.ports,
    "services": software.services,
    "uptime": machine.uptime,
    "users": machine.users,
    "time": machine.time,
    "temperature": machine.temperature,
    "updates": software.updates,
}
assert tuple(_READERS) == EVERY_SECTION

_stops: set[asyncio.Task[None]] = set()

AsRoot = Callable[[Command], Command]


async def collect_answers(
    transport: Transport,
    label: str,
    *,
    seconds: float = 30,
    sections: Collection[str] = SECTIONS,
    as_root: AsRoot | None = None,
    each: float | None = None,
) -> Answers:
    """What the sources of these sections answer within the time. Raises a Problem if the machine cannot be asked.

    `each` is the time of one program, if not a share of the whole.
    """
    if transport.system != "posix":
        raise GuestRefused(
            f"{label} has no POSIX shell, so its facts cannot be collected",
            next_step=Advice("For a Windows guest, ask its agent", tools.guest_info),
        )
    mark = secrets.token_hex(12)
    patience = str(max(1, round(seconds / SHARE if each is None else each)))
    command = Command(("/bin/sh", "-c", build_script(sections), "sh", patience), stdin=f"{mark}\n".encode())
    output = await _output(transport, label, as_root(command) if as_root else command, seconds)
    answers = split_answers(output, mark)
    if answers is None:
        raise GuestRefused(
            f"{label} does not answer like a POSIX system", next_step=see("See what a command prints", tools.host_exec)
        )
    return answers


async def collect_facts(
    transport: Transport,
    label: str,
    *,
    seconds: float = 30,
    sections: Collection[str] = SECTIONS,
    as_root: AsRoot | None = None,
) -> Facts:
    answers = await collect_answers(transport, label, seconds=seconds, sections=sections, as_root=as_root)
    return read_facts(answers, sections)


def read_facts(answers: Answers, sections: Collection[str] = SECTIONS) -> Facts:
    """Parse the answers. Nothing is guessed: sections without an answer are listed with the reason."""
    values: dict[str, Any] = {}
    not_known: dict[str, str] = {}
    for section in EVERY_SECTION:
        if section not in sections:
            continue
        value = _truncate(_READERS[section](answers))
        if _is_empty_without_answers(section, value, answers):
            value = None
        values[section] = value
        if reason := _reason(section, value, answers):
            not_known[section] = reason
    return Facts(**values, not_known=not_known)


async def _output(transport: Transport, label: str, command: Command, seconds: float) -> str:
    """What the script prints until it ends or the time is up."""
    job: Job | None = None
    try:
        async with asyncio.timeout(seconds):
            job = await transport.start(command, keep=MAX_OUTPUT)
            output = await job.wait(seconds)
    except TimeoutError:
        output = None
    except asyncio.CancelledError:
        if job is not None:
            _stop_in_background(job)
        raise
    if job is None:
        raise TimedOut(
            f"{label} did not start a command within {seconds:g} s", next_step="It may be overloaded or unreachable"
        )
    if output is None:
        output = await job.partial_output()
        await asyncio.wait({_stop_in_background(job)}, timeout=STOP_SECONDS)
    return output.stdout.decode("utf-8", "replace")


def _stop_in_background(job: Job) -> asyncio.Task[None]:
    """Stopping may take longer than the caller waits."""
    task = asyncio.get_running_loop().create_task(_stop(job))
    _stops.add(task)
    task.add_done_callback(_stops.discard)
    return task


async def _stop(job: Job) -> None:
    with contextlib.suppress(Problem):
        await job.stop()


def _truncate(value: Any) -> Any:
    """A machine may print anything, at any length."""
    if isinstance(value, str):
        return value[:MAX_TEXT]
    if isinstance(value, tuple):
        return tuple(_truncate(item) for item in value[:MAX_ROWS])
    if isinstance(value, msgspec.Struct):
        parts = {name: getattr(value, name) for name in value.__struct_fields__}
        return msgspec.structs.replace(value, **{name: _truncate(part) for name, part in parts.items()})
    return value


def _is_empty_without_answers(section: str, value: Any, answers: Answers) -> bool:
    """An empty list counts only if an engine said that it is empty."""
    if section not in ("containers", "vms") or value:
        return False
    return not answers.complete or software.refusals(answers, section) is not None


def _reason(section: str, value: Any, answers: Answers) -> str | None:
    if section in ("containers", "vms") and (refused := software.refusals(answers, section)):
        return refused
    if section == "filesystems" and value is not None and only_local(answers):
        return "df did not end in time, perhaps because a file server is gone: only local file systems are listed"
    if section == "network" and value is not None and not value.interfaces:
        return "No source lists its interfaces"
    if value is not None:
        return None
    if late := [source for source in sources_of(section) if source in answers.late]:
        return f"{', '.join(late)} did not end in time"
    return "No program or file there provides it" if answers.complete else "The output ended before this section"
