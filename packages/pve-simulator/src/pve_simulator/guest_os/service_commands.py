"""Service managers inside guests: systemd and OpenRC."""

from __future__ import annotations

from datetime import UTC, datetime

from pve_simulator.guest_os.execution import Io, command, split_options
from pve_simulator.guest_os.machine import Unit

_LINES = 10


@command("systemctl")
async def systemctl(io: Io, args: list[str]) -> int:
    options, words = split_options(args, with_value=("type", "t", "n", "lines", "p", "property"))
    action, names = (words[0] if words else "list-units"), words[1:]
    if action in ("poweroff", "reboot", "halt"):
        return _shut_down(io, reboot=action == "reboot")
    if action == "list-units":
        return _list_units(io, bare="no-legend" in options)
    if action == "list-unit-files":
        return _list_unit_files(io, bare="no-legend" in options)
    if not names:
        return io.fail("Too few arguments.")
    code = 0
    for name in names:
        code = await _unit_action(io, action, name.removesuffix(".service"), options) or code
    return code


def _state(unit: Unit) -> tuple[str, str]:
    """systemd's ActiveState and SubState."""
    if unit.starting:
        return "activating", "start"
    return ("failed", "failed") if unit.failed else ("active", "running") if unit.active else ("inactive", "dead")


def _list_units(io: Io, *, bare: bool) -> int:
    if not bare:
        io.say("  UNIT                         LOAD   ACTIVE   SUB     DESCRIPTION")
    for unit in io.machine.services.values():
        active, sub = _state(unit)
        io.say(f"{'' if bare else '  '}{unit.name + '.service':<28} loaded {active:<8} {sub:<7} {unit.description}")
    return 0


def _list_unit_files(io: Io, *, bare: bool) -> int:
    if not bare:
        io.say(f"{'UNIT FILE':<28} {'STATE':<15} PRESET")
    for unit in io.machine.services.values():
        io.say(f"{unit.name + '.service':<28} {'enabled' if unit.enabled else 'disabled':<15} enabled")
    return 0


async def _unit_action(io: Io, action: str, name: str, options: dict[str, str]) -> int:
    unit = io.machine.services.get(name)
    if action in ("is-active", "is-enabled"):
        return _query_unit(io, action, unit, quiet=bool({"q", "quiet"} & options.keys()))
    if action == "show":
        return _show(io, name, unit, options.get("p") or options.get("property"))
    if unit is None:
        if action == "status":
            return io.fail(f"Unit {name}.service could not be found.", 4)
        if action in ("enable", "disable"):
            return io.fail(f"Failed to {action} unit: Unit file {name}.service does not exist.")
        return io.fail(f"Failed to {action} {name}.service: Unit {name}.service not found.", 5)
    match action:
        case "status":
            return _unit_status(io, unit)
        case "start" if unit.active:
            return 0
        case "start" | "restart" | "reload-or-restart":
            return await _start(io, unit, wait="no-block" not in options)
        case "reload" if not unit.active:
            return io.fail(f"{name}.service is not active, cannot reload.")
        case "reload":
            _log(io, unit, f"Reloaded {name}.service - {unit.description}.")
        case "stop":
            unit.active = unit.starting = unit.failed = False
            unit.pid = 0
            _log(io, unit, f"Stopped {name}.service - {unit.description}.")
        case "enable" | "disable":
            unit.enabled = action == "enable"
        case _:
            return io.fail(f"Unknown command verb '{action}'.")
    return 0


async def _start(io: Io, unit: Unit, *, wait: bool) -> int:
    unit.active, unit.failed, unit.starting = False, False, unit.start_seconds > 0
    _log(io, unit, f"Starting {unit.name}.service - {unit.description}...")

    async def finish_start() -> None:
        await io.machine.world.clock.sleep(unit.start_seconds)
        if unit.starting:
            _finish_start(io, unit)

    if not unit.starting:
        _finish_start(io, unit)
    elif wait:
        await finish_start()
    else:
        io.machine.world.tasks.in_background(finish_start())
    if unit.failed:
        io.complain(f"Job for {unit.name}.service failed because the control process exited with error code.")
        full = f"{unit.name}.service"
        io.complain(f'See "systemctl status {full}" and "journalctl -xeu {full}" for details.')
    return int(unit.failed and wait)


def _finish_start(io: Io, unit: Unit) -> None:
    unit.starting, unit.failed, unit.active = False, bool(unit.fails_with), not unit.fails_with
    unit.pid = 0 if unit.failed else io.machine.next_pid()
    unit.changed_at = io.machine.now()
    if unit.failed:
        unit.log.append(
            f"{_timestamp(io)} {io.machine.hostname} {unit.name}[{io.machine.next_pid()}]: {unit.fails_with}"
        )
        _log(io, unit, f"{unit.name}.service: Failed with result 'exit-code'.")
    else:
        _log(io, unit, f"Started {unit.name}.service - {unit.description}.")


def _log(io: Io, unit: Unit, text: str) -> None:
    unit.changed_at = io.machine.now()
    unit.log.append(f"{_timestamp(io)} {io.machine.hostname} systemd[1]: {text}")


def _timestamp(io: Io) -> str:
    return datetime.fromtimestamp(io.machine.now(), UTC).strftime("%Y-%m-%dT%H:%M:%S+00:00")


def _show(io: Io, name: str, unit: Unit | None, keys: str | None) -> int:
    """Show the properties of a unit; a missing unit has some, too."""
    active, sub = ("inactive", "dead") if unit is None else _state(unit)
    changed = 0.0 if unit is None else unit.changed_at
    properties = {
        "Id": f"{name}.service",
        "Description": f"{name}.service" if unit is None else unit.description,
        "LoadState": "not-found" if unit is None else "loaded",
        "ActiveState": active,
        "SubState": sub,
        "UnitFileState": "" if unit is None else "enabled" if unit.enabled else "disabled",
        "MainPID": str(unit.pid if unit is not None and unit.active else 0),
        "Result": "exit-code" if unit is not None and unit.failed else "success",
        "ExecMainStatus": "1" if unit is not None and unit.failed else "0",
        "StateChangeTimestamp": datetime.fromtimestamp(changed, UTC).strftime("%a %Y-%m-%d %H:%M:%S UTC"),
    }
    if unit is not None and unit.starting:
        properties["Job"] = "4127"
    for key in keys.split(",") if keys else properties:
        if key in properties:
            io.say(f"{key}={properties[key]}")
    return 0


def _query_unit(io: Io, action: str, unit: Unit | None, *, quiet: bool) -> int:
    if action == "is-enabled":
        answer = "not-found" if unit is None else "enabled" if unit.enabled else "disabled"
        code = 4 if unit is None else int(not unit.enabled)
    else:
        answer = "inactive" if unit is None else _state(unit)[0]
        code = 0 if answer == "active" else 4 if unit is None else 3
    if not quiet:
        io.say(answer)
    return code


def _unit_status(io: Io, unit: Unit) -> int:
    active, sub = _state(unit)
    result = " (Result: exit-code)" if unit.failed else f" ({sub})"
    enabled = "enabled" if unit.enabled else "disabled"
    mark = "●" if unit.active else "\N{MULTIPLICATION SIGN}" if unit.failed else "○"
    io.say(f"{mark} {unit.name}.service - {unit.description}")
    io.say(f"     Loaded: loaded (/usr/lib/systemd/system/{unit.name}.service; {enabled}; preset: enabled)")
    io.say(f"     Active: {active}{result}")
    if unit.active:
        io.say(f"   Main PID: {unit.pid} ({unit.name})")
    return 0 if unit.active else 3


@command("poweroff", "halt", "shutdown")
def poweroff(io: Io, args: list[str]) -> int:
    return _shut_down(io, reboot="-r" in args)


@command("reboot")
def reboot(io: Io, _args: list[str]) -> int:
    return _shut_down(io, reboot=True)


def _shut_down(io: Io, *, reboot: bool) -> int:
    """Shut down or reboot from inside, a moment after the command has returned."""
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
def journalctl(io: Io, args: list[str]) -> None:
    """As of systemd 252, which counts from the oldest line if --since is given."""
    with_value = ("u", "unit", "n", "lines", "o", "output", "p", "S", "since", "U", "until")
    options, _ = split_options(args, with_value=with_value)
    name = (options.get("u") or options.get("unit") or "").removesuffix(".service")
    lines: list[str] = []
    for unit in io.machine.services.values():
        if name in ("", unit.name):
            begun = f"{io.machine.hostname} systemd[1]: Started {unit.name}.service - {unit.description}."
            lines += unit.log or ([begun] if unit.active else [])
    count = options.get("n") or options.get("lines") or str(_LINES if name else len(lines))
    most = int(count) if count.isdecimal() else 0
    if {"r", "reverse"} & options.keys():
        shown = lines[::-1][:most]
    elif {"S", "since"} & options.keys():
        shown = lines[:most]
    else:
        shown = lines[-most:] if most else []
    for line in shown:
        io.say(line)
    if name and not lines and not {"q", "quiet"} & options.keys():
        io.say("-- No entries --")


_STOPPED = 3


@command("rc-service")
async def rc_service(io: Io, args: list[str]) -> int:
    options, words = split_options(args)
    units = io.machine.services
    name = words[0] if words else ""
    unit = units.get(name)
    if "e" in options:
        return int(unit is None)
    if unit is None:
        return io.fail(f" * rc-service: service `{name}' does not exist")
    return await _run_openrc_action(io, unit, words[1] if len(words) > 1 else "status")


async def _run_openrc_action(io: Io, unit: Unit, action: str) -> int:
    match action:
        case "status":
            io.say(f" * status: {'started' if unit.active else 'crashed' if unit.failed else 'stopped'}")
            return 0 if unit.active else 32 if unit.failed else _STOPPED
        case "start" if unit.active:
            io.complain(f" * WARNING: {unit.name} has already been started")
        case "stop" if not unit.active:
            io.complain(f" * WARNING: {unit.name} is already stopped")
        case "start":
            return await _start_openrc(io, unit)
        case "stop":
            _stop(io, unit)
        case "restart":
            if unit.active:
                _stop(io, unit)
            return await _start_openrc(io, unit)
        case _:
            return io.fail(f" * {unit.name}: unknown function `{action}'")
    return 0


async def _start_openrc(io: Io, unit: Unit) -> int:
    await io.machine.world.clock.sleep(unit.start_seconds)
    if unit.fails_with:
        io.say(f" * Starting {unit.name} ...")
        io.complain(unit.fails_with)
        return io.fail(f" * ERROR: {unit.name} failed to start")
    unit.active, unit.pid = True, io.machine.next_pid()
    io.say(f" * Starting {unit.name} ... [ ok ]")
    return 0


def _stop(io: Io, unit: Unit) -> None:
    unit.active, unit.pid = False, 0
    io.say(f" * Stopping {unit.name} ... [ ok ]")


@command("rc-status")
def rc_status(io: Io, args: list[str]) -> None:
    options, _ = split_options(args)
    if "s" not in options and "servicelist" not in options:
        io.say("Runlevel: default")
    for unit in io.machine.services.values():
        if unit.enabled or "s" in options or "servicelist" in options:
            io.say(f" {unit.name:<65} [  {'started' if unit.active else 'stopped'}  ]")


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
        return io.fail(f" * rc-update: service `{name}' does not exist")
    if action == "add":
        notice = f"{name} already installed in runlevel `default'; skipping" if unit.enabled else None
        io.say(f" * rc-update: {notice}" if notice else f" * service {name} added to runlevel default")
        unit.enabled = True
        return 0
    if not unit.enabled:
        return io.fail(f" * rc-update: service `{name}' is not in the runlevel `default'")
    unit.enabled = False
    io.say(f" * service {name} removed from runlevel default")
    if "a" in options or "all" in options:
        return io.fail(f" * rc-update: service `{name}' is not in the runlevel `boot'")
    return 0
