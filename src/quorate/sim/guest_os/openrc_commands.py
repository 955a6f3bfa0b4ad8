"""Services where OpenRC runs the machine: rc-service, rc-status, rc-update."""

from __future__ import annotations

from quorate.sim.guest_os.installation import Unit
from quorate.sim.guest_os.options import split_options
from quorate.sim.guest_os.running import Io, command

_STOPPED = 3


@command("rc-service")
async def rc_service(io: Io, args: list[str]) -> int:
    options, words = split_options(args)
    units = io.machine.services
    if "l" in options or "list" in options:
        for name in sorted(units):
            io.say(name)
        return 0
    name = words[0] if words else ""
    unit = units.get(name)
    if "e" in options or "exists" in options:
        return int(unit is None)
    if unit is None:
        io.complain(f" * rc-service: service `{name}' does not exist")
        return 1
    return await _act(io, unit, words[1] if len(words) > 1 else "status")


async def _act(io: Io, unit: Unit, action: str) -> int:
    match action:
        case "status":
            io.say(f" * status: {'started' if unit.active else 'crashed' if unit.failed else 'stopped'}")
            return 0 if unit.active else 32 if unit.failed else _STOPPED
        case "start" if unit.active:
            io.complain(f" * WARNING: {unit.name} has already been started")
        case "stop" if not unit.active:
            io.complain(f" * WARNING: {unit.name} is already stopped")
        case "start":
            return await _start(io, unit)
        case "stop":
            _stop(io, unit)
        case "restart":
            if unit.active:
                _stop(io, unit)
            return await _start(io, unit)
        case _:
            io.complain(f" * {unit.name}: unknown function `{action}'")
            return 1
    return 0


async def _start(io: Io, unit: Unit) -> int:
    await io.machine.world.clock.sleep(unit.takes)
    if unit.fails_with:
        io.say(f" * Starting {unit.name} ...")
        io.complain(unit.fails_with)
        io.complain(f" * ERROR: {unit.name} failed to start")
        return 1
    unit.active, unit.pid = True, io.machine.next_pid()
    io.say(f" * Starting {unit.name} ... [ ok ]")
    return 0


def _stop(io: Io, unit: Unit) -> None:
    unit.active, unit.pid = False, 0
    io.say(f" * Stopping {unit.name} ... [ ok ]")


@command("rc-status")
def rc_status(io: Io, args: list[str]) -> int:
    options, _ = split_options(args)
    if "s" not in options and "servicelist" not in options:
        io.say("Runlevel: default")
    for unit in io.machine.services.values():
        if unit.enabled or "s" in options or "servicelist" in options:
            io.say(f" {unit.name:<65} [  {'started' if unit.active else 'stopped'}  ]")
    return 0


@command("rc-update")
def rc_update(io: Io, args: list[str]) -> int:
    options, words = split_options(args)
    action, name = (words[0] if words else "show"), (words[1] if len(words) > 1 else "")
    units = io.machine.services
    if action == "show":
        for each in units.values():
            if each.enabled or "v" in options:
                io.say(f" {each.name:>20} | {'default' if each.enabled else '':>12}{' ' * 40}")
        return 0
    unit = units.get(name)
    if unit is None:
        io.complain(f" * rc-update: service `{name}' does not exist")
        return 1
    if action == "add":
        said = f"{name} already installed in runlevel `default'; skipping" if unit.enabled else None
        io.say(f" * rc-update: {said}" if said else f" * service {name} added to runlevel default")
        unit.enabled = True
        return 0
    if not unit.enabled:
        io.complain(f" * rc-update: service `{name}' is not in the runlevel `default'")
        return 1
    unit.enabled = False
    io.say(f" * service {name} removed from runlevel default")
    if "a" in options or "all" in options:
        io.complain(f" * rc-update: service `{name}' is not in the runlevel `boot'")
        return 1
    return 0
