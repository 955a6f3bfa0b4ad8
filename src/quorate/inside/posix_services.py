"""Services of POSIX guests: systemd, OpenRC, or one of the small service managers."""

from __future__ import annotations

import re
from collections.abc import Mapping

from quorate.hints import GUEST_SERVICE, HOST_SERVICE, see
from quorate.inside import names, small_services
from quorate.inside.posix_script import error_message, failure, shell_script
from quorate.inside.service_state import Service
from quorate.inside.transport import Output, Transport
from quorate.problems import GuestRefused, NotFound, Problem

_PROPERTIES = (
    "Id,Description,LoadState,ActiveState,SubState,UnitFileState,MainPID,Result,StateChangeTimestamp,Job,ExecMainStatus"
)
_NO_MANAGER = 20
_NO_SERVICE = 21
_LISTED_BYTES = 1024 * 1024

# The scripts detect which of the two runs the machine; the parts of their output are separated by NUL.
# $1 the unit's full name, $2 the name as given, $3 the number of log lines
_STATUS = f"""test ! -d /run/systemd/system || {{
printf 'systemd\\0'
systemctl show --no-pager -p {_PROPERTIES} -- "$1" || exit
printf '\\0'
test "$3" -eq 0 || journalctl -q --no-pager -o short-iso -n "$3" -u "$1"
exit 0
}}
command -v rc-service >/dev/null || exit {_NO_MANAGER}
printf 'openrc\\0'
rc-service -e "$2" || exit {_NO_SERVICE}
rc-service "$2" status
printf '\\0%s\\0' "$?"
rc-update show
printf '\\0'
test "$3" -eq 0 || grep -F -- "$2" /var/log/messages | tail -n "$3"
exit 0"""
_LIST = f"""test ! -d /run/systemd/system || {{
printf 'systemd\\0'
systemctl list-units --type=service --all --no-legend --no-pager --plain --full || exit
printf '\\0'
systemctl list-unit-files --type=service --no-legend --no-pager --full
exit 0
}}
command -v rc-service >/dev/null || exit {_NO_MANAGER}
printf 'openrc\\0'
rc-status -C -s || exit
printf '\\0'
rc-update show"""
_SYSTEMD_ACT = 'systemctl --no-ask-password --no-block "$1" -- "$2"'
_OPENRC_ACT = {
    **dict.fromkeys(("start", "stop", "restart", "reload"), 'rc-service "$2" "$1"'),
    "enable": 'rc-update add "$2" default',
    # It fails for runlevels that do not have the service; the state afterwards is what counts.
    "disable": 'rc-update -a del "$2" >/dev/null 2>&1 || exit 0',
}
_STATES = {
    "started": "active", "stopped": "inactive", "crashed": "failed", "starting": "activating",
    "stopping": "deactivating", "inactive": "inactive",
}  # fmt: skip
_OPENRC_STATUS = re.compile(r"status: *(\w+)")
_OPENRC_ROW = re.compile(r"^ *(\S+) +\[ *(\w+).*\]$")


async def status(transport: Transport, name: str, *, log_lines: int = 0) -> Service:
    short = name.removesuffix(".service")
    output = await transport.run(shell_script(_STATUS, names.unit_name(name), short, str(log_lines)))
    if output.exit_code == _NO_MANAGER:
        return await small_services.status(transport, short)
    manager, *parts = _parts(output, f"Reading the service {name}")
    if manager == "openrc":
        if output.exit_code == _NO_SERVICE:
            raise _unknown(name)
        return _of_openrc(short, parts)
    if output.exit_code != 0:
        raise failure(output, f"Reading the service {name}")
    return _of_systemd(name, parts)


async def list_services(transport: Transport) -> list[Service]:
    output = await transport.run(shell_script(_LIST), keep=_LISTED_BYTES)
    if output.exit_code == _NO_MANAGER:
        return await small_services.list_services(transport)
    manager, *parts = _parts(output, "Listing the services")
    if output.exit_code != 0:
        raise failure(output, "Listing the services")
    return _openrc_rows(*parts) if manager == "openrc" else _systemd_rows(*parts)


async def act(transport: Transport, service: Service, action: str, *, seconds: float) -> None:
    """Send the action to the manager. systemd continues in the background; OpenRC is done when this returns."""
    if service.manager in small_services.MANAGERS:
        await small_services.act(transport, service, action, seconds=seconds)
        return
    text = _SYSTEMD_ACT if service.manager == "systemd" else _OPENRC_ACT[action]
    output = await transport.run(shell_script(text, action, service.name), seconds=seconds)
    if output.exit_code != 0:
        raise GuestRefused(f"{service.name} was not {_past_tense(action)}", why=f"It said: {error_message(output)}")


def _past_tense(action: str) -> str:
    return {"stop": "stopped", "enable": "enabled", "disable": "disabled"}.get(action, f"{action}ed")


def _parts(output: Output, doing: str) -> list[str]:
    parts = output.stdout.decode("utf-8", "replace").split("\0")
    if parts[0] not in ("systemd", "openrc"):
        raise failure(output, doing)
    return parts


def _unknown(name: str) -> Problem:
    return NotFound(f"There is no service {name!r}", next_step=see("List the services", HOST_SERVICE, GUEST_SERVICE))


def _of_systemd(name: str, parts: list[str]) -> Service:
    shown = _properties(parts[0])
    if shown.get("LoadState") == "not-found":
        raise _unknown(name)
    ended = shown.get("Result", "success")
    code = shown.get("ExecMainStatus", "0")
    return Service(
        name=shown.get("Id") or names.unit_name(name),
        manager="systemd",
        state=shown.get("ActiveState", "unknown"),
        detail=shown.get("SubState", ""),
        enabled=shown.get("UnitFileState", "") or ("masked" if shown.get("LoadState") == "masked" else ""),
        description=shown.get("Description", ""),
        pid=_number(shown.get("MainPID", "")),
        since=shown.get("StateChangeTimestamp", ""),
        result="" if ended == "success" else ended + (f", status {code}" if code not in ("0", "") else ""),
        busy=_number(shown.get("Job", "")) != 0,
        log=_last_lines(parts[1]) if len(parts) > 1 else [],
    )


def _properties(text: str) -> Mapping[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0


def _systemd_rows(units: str, files: str = "") -> list[Service]:
    starts = {words[0]: words[1] for line in files.splitlines() if len(words := line.split()) > 1}
    found: dict[str, Service] = {}
    for name, _, active, sub, description in (_columns(line, 5) for line in units.splitlines()):
        found[name] = Service(name, "systemd", active, sub, starts.get(name, ""), description)
    asleep = {name: Service(name, "systemd", "inactive", "dead", state) for name, state in starts.items()}
    return list((asleep | found).values())


def _columns(line: str, count: int) -> list[str]:
    words = line.split(None, count - 1)
    return words + [""] * (count - len(words))


def _of_openrc(name: str, parts: list[str]) -> Service:
    status, code, levels = parts[0], parts[1], parts[2]
    match = _OPENRC_STATUS.search(status)
    # A service may print its own status text; then the code decides: 0 is running, 3 is stopped.
    word = match[1] if match else {"0": "started", "3": "stopped", "32": "crashed"}.get(code, "unknown")
    log = _last_lines(parts[3]) if len(parts) > 3 else []
    enabled = "enabled" if name in _runlevels(levels) else "disabled"
    return Service(name, "openrc", _STATES.get(word, word), word, enabled, log=log)


def _openrc_rows(services: str, levels: str = "") -> list[Service]:
    starts = _runlevels(levels)
    rows = [match for line in services.splitlines() if (match := _OPENRC_ROW.match(line))]
    return [
        Service(row[1], "openrc", _STATES.get(row[2], row[2]), row[2], "enabled" if row[1] in starts else "disabled")
        for row in rows
    ]


def _runlevels(text: str) -> set[str]:
    """The services that are in a runlevel."""
    rows = (line.partition("|") for line in text.splitlines())
    return {name.strip() for name, _, levels in rows if levels.strip()}


def _last_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]
