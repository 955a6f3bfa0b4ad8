"""Programs around services and power: systemctl, journalctl, poweroff, reboot."""

from __future__ import annotations

from quorate.sim.guest_os.installation import Unit
from quorate.sim.guest_os.options import split_options
from quorate.sim.guest_os.running import Io, command


@command("systemctl")
def systemctl(io: Io, args: list[str]) -> int:
    options, words = split_options(args, with_value=("type", "t", "n", "lines"))
    action, names = (words[0] if words else "list-units"), words[1:]
    if action in ("poweroff", "reboot", "halt"):
        return _power(io, reboot=action == "reboot")
    if action in ("list-units", "list-unit-files"):
        return _list_units(io)
    if action == "daemon-reload":
        return 0
    if action == "is-system-running":
        io.say("running")
        return 0
    if not names:
        io.complain("Too few arguments.")
        return 1
    code = 0
    for name in names:
        quiet = bool({"q", "quiet"} & options.keys())
        code = _unit_action(io, action, name.removesuffix(".service"), quiet=quiet) or code
    return code


def _list_units(io: Io) -> int:
    io.say("  UNIT                         LOAD   ACTIVE   SUB     DESCRIPTION")
    for unit in io.machine.services.values():
        state = "active   running" if unit.active else "inactive dead   "
        io.say(f"  {unit.name + '.service':<28} loaded {state} {unit.description}")
    return 0


def _unit_action(io: Io, action: str, name: str, *, quiet: bool) -> int:
    unit = io.machine.services.get(name)
    if action in ("is-active", "is-enabled", "is-failed"):
        return _unit_question(io, action, unit, quiet=quiet)
    if unit is None:
        if action == "status":
            io.complain(f"Unit {name}.service could not be found.")
            return 4
        io.complain(f"Failed to {action} {name}.service: Unit {name}.service not found.")
        return 5
    match action:
        case "status":
            return _unit_status(io, unit)
        case "start" | "restart" | "reload-or-restart":
            unit.active, unit.pid = True, io.machine.next_pid()
        case "reload" if not unit.active:
            io.complain(f"{name}.service is not active, cannot reload.")
            return 1
        case "reload":
            pass
        case "stop":
            unit.active = False
        case "enable" | "disable":
            unit.enabled = action == "enable"
        case _:
            io.complain(f"Unknown command verb '{action}'.")
            return 1
    return 0


def _unit_question(io: Io, action: str, unit: Unit | None, *, quiet: bool) -> int:
    if action == "is-enabled":
        answer = "not-found" if unit is None else "enabled" if unit.enabled else "disabled"
        code = 4 if unit is None else int(not unit.enabled)
    elif action == "is-failed":
        answer, code = ("active" if unit is not None and unit.active else "inactive"), 1
    else:
        running = unit is not None and unit.active
        answer, code = ("active", 0) if running else ("inactive", 4 if unit is None else 3)
    if not quiet:
        io.say(answer)
    return code


def _unit_status(io: Io, unit: Unit) -> int:
    state = "active (running)" if unit.active else "inactive (dead)"
    enabled = "enabled" if unit.enabled else "disabled"
    io.say(f"{'●' if unit.active else '○'} {unit.name}.service - {unit.description}")
    io.say(f"     Loaded: loaded (/usr/lib/systemd/system/{unit.name}.service; {enabled}; preset: enabled)")
    io.say(f"     Active: {state}")
    if unit.active:
        io.say(f"   Main PID: {unit.pid} ({unit.name})")
    return 0 if unit.active else 3


@command("poweroff", "halt", "shutdown")
def poweroff(io: Io, args: list[str]) -> int:
    return _power(io, reboot="-r" in args)


@command("reboot")
def reboot(io: Io, _args: list[str]) -> int:
    return _power(io, reboot=True)


def _power(io: Io, *, reboot: bool) -> int:
    """Go down from the inside, a moment after the command has answered."""
    machine = io.machine
    guest, world = machine.guest, machine.world
    started = guest.started_at

    async def go_down() -> None:
        await world.clock.sleep(2.0)
        if guest.running and guest.started_at == started:
            pid = guest.pid
            if reboot:
                guest.started_at = world.clock.now()
                guest.pid = pid
                guest.touch()
            else:
                guest.stop_running()

    world.tasks.in_background(go_down())
    return 0


@command("journalctl")
def journalctl(io: Io, _args: list[str]) -> int:
    for unit in io.machine.services.values():
        if unit.active:
            io.say(f"{io.machine.hostname} systemd[1]: Started {unit.name}.service - {unit.description}.")
    return 0
