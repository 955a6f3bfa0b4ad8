"""Systemd units from callers: installed and started as root, or rolled back."""

from __future__ import annotations

from typing import Any

from quorate.homelab.machines import Machine
from quorate.inside import names, services
from quorate.inside.posix_script import failure, shell_script
from quorate.problems import BadArgument, NotConfigured, Problem
from quorate.pve.clock import Clock

FOLDER = "/etc/systemd/system"
LONGEST = 64 * 1024
_NO_SYSTEMD, _ABSENT = 40, 41

_READ = f'[ -d /run/systemd/system ] || exit {_NO_SYSTEMD}; [ -f "$1" ] || exit {_ABSENT}; cat -- "$1"'
# $1 is the file; standard input is its content. Atomic.
_WRITE = """
new=$(mktemp "${1%/*}/.quorate.XXXXXX") || exit
cat > "$new" && chmod 644 "$new" && mv -f -- "$new" "$1" || { rm -f -- "$new"; exit 1; }
systemctl daemon-reload
"""
_DROP = 'rm -f -- "$1" && systemctl daemon-reload'


def file_of(name: str) -> str:
    return f"{FOLDER}/{names.unit_name(name)}"


def require_unit_text(name: str, content: str) -> str:
    """The text of a unit file. Raises BadArgument before anything is sent."""
    if len(content) > LONGEST or "\0" in content or "[Service]" not in content:
        raise BadArgument(
            f"The unit of {name} cannot be used", next_step="Give the text of a unit file, with [Unit] and [Service]"
        )
    return content if content.endswith("\n") else f"{content}\n"


async def read_unit(machine: Machine, name: str) -> str | None:
    """The current file; None if there is none."""
    output = await machine.transport.run(machine.as_root(shell_script(_READ, file_of(name))))
    if output.exit_code == _NO_SYSTEMD:
        raise NotConfigured(
            f"{machine} does not run systemd, so it has no units", next_step="Deploy it as a container instead"
        )
    if output.exit_code == _ABSENT:
        return None
    if output.exit_code != 0:
        raise failure(output, f"Reading {file_of(name)} of {machine}")
    return output.stdout.decode("utf-8", "replace")


async def install_unit(machine: Machine, clock: Clock, name: str, text: str, *, wait: float) -> dict[str, Any]:
    """Write it, enable it and start it. If it does not run, the previous unit is restored and started."""
    wanted = require_unit_text(name, text)
    before = await read_unit(machine, name)
    transport = machine.with_root().transport
    await _write(machine, name, wanted)
    try:
        await services.control(transport, clock, name, "enable", wait=wait)
        _, after = await services.control(transport, clock, name, "restart", wait=wait)
    except Problem as problem:
        problem.next_step = f"{problem.next_step or ''} {await _put_back(machine, clock, name, before, wait)}".strip()
        raise
    return {"unit": file_of(name), "replaced": before is not None, "now": after.summary, "enabled": after.enabled}


async def remove_unit(machine: Machine, clock: Clock, name: str, *, wait: float) -> dict[str, Any]:
    """Stop it, disable it and remove its file."""
    if await read_unit(machine, name) is None:
        return {"note": f"{file_of(name)} does not exist"}
    for action in ("stop", "disable"):
        await services.control(machine.with_root().transport, clock, name, action, wait=wait)
    await _delete(machine, name)
    return {"removed": file_of(name)}


async def _put_back(machine: Machine, clock: Clock, name: str, before: str | None, wait: float) -> str:
    try:
        if before is None:
            for action in ("stop", "disable"):
                await services.control(machine.with_root().transport, clock, name, action, wait=wait)
            await _delete(machine, name)
            return "Its file was removed again"
        await _write(machine, name, before)
        await services.control(machine.with_root().transport, clock, name, "restart", wait=wait)
    except Problem as problem:
        return f"The previous unit could not be restored: {problem}"
    return "The previous unit is restored and running"


async def _write(machine: Machine, name: str, text: str) -> None:
    output = await machine.transport.run(machine.as_root(shell_script(_WRITE, file_of(name), stdin=text.encode())))
    if output.exit_code != 0:
        raise failure(output, f"Writing {file_of(name)} on {machine}")


async def _delete(machine: Machine, name: str) -> None:
    output = await machine.transport.run(machine.as_root(shell_script(_DROP, file_of(name))))
    if output.exit_code != 0:
        raise failure(output, f"Removing {file_of(name)} from {machine}")
