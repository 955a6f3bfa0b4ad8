"""Services of POSIX guests: systemd, OpenRC, runit, s6, or init scripts (SysV, BusyBox)."""

from __future__ import annotations

import re

from quorate.hints import Advice, tools
from quorate.inside.posix_files import error_message, failure, shell_script
from quorate.inside.service_state import Service, no_service
from quorate.inside.transport import Output, Transport, unit_name
from quorate.problems import GuestRefused, NotConfigured

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
    output = await transport.run(shell_script(_STATUS, unit_name(name), short, str(log_lines)))
    if output.exit_code == _NO_MANAGER:
        return await _small_status(transport, short)
    manager, *parts = _parts(output, f"Reading the service {name}")
    if manager == "openrc":
        if output.exit_code == _NO_SERVICE:
            raise no_service(name)
        return _of_openrc(short, parts)
    if output.exit_code != 0:
        raise failure(output, f"Reading the service {name}")
    return _of_systemd(name, parts)


async def list_services(transport: Transport) -> list[Service]:
    output = await transport.run(shell_script(_LIST), keep=_LISTED_BYTES)
    if output.exit_code == _NO_MANAGER:
        return await _list_small_services(transport)
    manager, *parts = _parts(output, "Listing the services")
    if output.exit_code != 0:
        raise failure(output, "Listing the services")
    return _openrc_rows(*parts) if manager == "openrc" else _systemd_rows(*parts)


async def act(transport: Transport, service: Service, action: str, *, seconds: float) -> None:
    """Send the action to the manager. systemd continues in the background; OpenRC is done when this returns."""
    if service.manager in _SMALL_MANAGERS:
        await _act_small(transport, service, action, seconds=seconds)
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


def _of_systemd(name: str, parts: list[str]) -> Service:
    shown = dict(line.split("=", 1) for line in parts[0].splitlines() if "=" in line)
    if shown.get("LoadState") == "not-found":
        raise no_service(name)
    ended = shown.get("Result", "success")
    code = shown.get("ExecMainStatus", "0")
    return Service(
        name=shown.get("Id") or unit_name(name),
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


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0


def _systemd_rows(units: str, files: str = "") -> list[Service]:
    starts = {words[0]: words[1] for line in files.splitlines() if len(words := line.split()) > 1}
    loaded: dict[str, Service] = {}
    for name, _, active, sub, description in (_columns(line, 5) for line in units.splitlines()):
        loaded[name] = Service(name, "systemd", active, sub, starts.get(name, ""), description)
    asleep = {name: Service(name, "systemd", "inactive", "dead", state) for name, state in starts.items()}
    return list((asleep | loaded).values())


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
    rows = (line.partition("|") for line in text.splitlines())
    return {name.strip() for name, _, levels in rows if levels.strip()}


def _last_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]


# -- runit, s6 and init scripts ----------------------------------------------------------------------------------------

_SMALL_MANAGERS = ("runit", "s6", "init")
_NOT_HERE = 22
_SMALL_STATES = {"run": "active", "up": "active", "running": "active"}

# One row for each service: manager, name, state, process id, whether it starts at boot.
_SMALL_LOOK = r"""
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin:/command
first() { for at; do if [ -d "$at" ]; then echo "$at"; return; fi; done; }
runit=; if command -v sv >/dev/null; then runit=$(first /run/runit/service /var/service /etc/service /service); fi
s6=
if command -v s6-svstat >/dev/null; then s6=$(first /run/service /run/s6/services /var/run/s6/services /service); fi
row() { printf '%s\t%s\t%s\t%s\t%s\n' "$@"; }
pid_in() { p=${1#*(pid }; if [ "$p" != "$1" ]; then echo "${p%%)*}"; else echo 0; fi; }
of_runit() {
  [ -n "$runit" ] || return 1
  [ -d "$runit/$1" ] || [ -d "/etc/sv/$1" ] || return 1
  starts=disabled; if [ -d "$runit/$1" ] && [ ! -e "$runit/$1/down" ]; then starts=enabled; fi
  reply=$(sv status "$runit/$1" 2>/dev/null)
  row runit "$1" "${reply%%:*}" "$(pid_in "$reply")" "$starts"
}
of_s6() {
  [ -n "$s6" ] && [ -d "$s6/$1" ] || return 1
  starts=enabled; if [ -e "$s6/$1/down" ]; then starts=disabled; fi
  reply=$(s6-svstat "$s6/$1" 2>/dev/null)
  row s6 "$1" "${reply%% *}" "$(pid_in "$reply")" "$starts"
}
init_file() {
  for at in "/etc/init.d/$1" "/etc/init.d/S"[0-9][0-9]"$1"; do
    if [ -f "$at" ] && [ -x "$at" ]; then echo "$at"; return; fi
  done
  return 1
}
of_init() {
  file=$(init_file "$1") || return 1
  starts=disabled
  for at in /etc/rc[2345].d/S[0-9][0-9]"$1" "/etc/init.d/S"[0-9][0-9]"$1"; do
    if [ -e "$at" ]; then starts=enabled; fi
  done
  pid=$(pidof "$1" 2>/dev/null); pid=${pid%% *}
  state=stopped
  if grep -qw status "$file"; then if "$file" status </dev/null >/dev/null 2>&1; then state=running; fi
  elif [ -n "$pid" ]; then state=running; fi
  row init "$1" "$state" "${pid:-0}" "$starts"
}
"""
_SMALL_STATUS = f"""{_SMALL_LOOK}
of_runit "$1" || of_s6 "$1" || of_init "$1" && exit 0
[ -n "$runit$s6" ] || [ -d /etc/init.d ] || exit {_NO_MANAGER}
exit {_NO_SERVICE}
"""
_SMALL_LIST = f"""{_SMALL_LOOK}
[ -n "$runit$s6" ] || [ -d /etc/init.d ] || exit {_NO_MANAGER}
for at in ${{runit:+"$runit"/*/}}; do at=${{at%/}}; if [ -d "$at" ]; then of_runit "${{at##*/}}"; fi; done
for at in ${{s6:+"$s6"/*/}}; do at=${{at%/}}; if [ -d "$at" ]; then of_s6 "${{at##*/}}"; fi; done
for at in /etc/init.d/*; do
  name=${{at##*/}}
  case $name in
  rc|rcS|rcK|rc.*|functions|README|skeleton) continue;;
  S[0-9][0-9]*) name=${{name#S[0-9][0-9]}};;
  esac
  if [ -f "$at" ] && [ -x "$at" ]; then of_init "$name"; fi
done
exit 0
"""
# $1 service, $2 manager, $3 action. A daemon may keep the script's output open forever, so output goes to a file.
_SMALL_ACT = f"""{_SMALL_LOOK}
case $2-$3 in
runit-start|runit-stop|runit-restart|runit-reload) exec sv -w 20 "$3" "$runit/$1";;
runit-enable) rm -f "$runit/$1/down"; [ -d "$runit/$1" ] || exec ln -s "/etc/sv/$1" "$runit/$1";;
runit-disable)
  if [ -L "$runit/$1" ]; then sv -w 20 stop "$runit/$1"; exec rm -f "$runit/$1"; fi
  exec touch "$runit/$1/down";;
s6-start) exec s6-svc -u -wu -T 20000 "$s6/$1";;
s6-stop) exec s6-svc -d -wd -T 20000 "$s6/$1";;
s6-restart) exec s6-svc -r -wr -T 20000 "$s6/$1";;
s6-reload) exec s6-svc -h "$s6/$1";;
s6-enable) exec rm -f "$s6/$1/down";;
s6-disable) exec touch "$s6/$1/down";;
init-enable|init-disable)
  case $(init_file "$1") in */S[0-9][0-9]*) exit {_NOT_HERE};; esac
  word=defaults; mark=on; if [ "$3" = disable ]; then word=disable; mark=off; fi
  if command -v update-rc.d >/dev/null; then
    update-rc.d "$1" "$word" && {{ [ "$3" = disable ] || update-rc.d "$1" enable; }}
  elif command -v chkconfig >/dev/null; then exec chkconfig "$1" "$mark"
  else exit {_NOT_HERE}; fi;;
init-*) file=$(init_file "$1") || exit {_NO_SERVICE}
  set -- "$file" "$3" "$1"
  case $file in */S[0-9][0-9]*) ;; *) if command -v service >/dev/null; then set -- service "$3" "$2"; fi;; esac
  output=$(mktemp) || exit
  if [ "$1" = service ]; then service "$2" "$3" </dev/null >"$output" 2>&1
  else "$1" "$2" </dev/null >"$output" 2>&1; fi
  code=$?; cat "$output" >&2; rm -f "$output"; exit "$code";;
esac
"""


async def _small_status(transport: Transport, name: str) -> Service:
    output = await transport.run(shell_script(_SMALL_STATUS, name))
    if output.exit_code == _NO_SERVICE:
        raise no_service(name)
    services = _small_rows(output.stdout) if output.exit_code == 0 else []
    if not services:
        raise _no_manager(f"Reading the service {name}")
    return services[0]


async def _list_small_services(transport: Transport) -> list[Service]:
    output = await transport.run(shell_script(_SMALL_LIST))
    services = {
        service.name: service for service in reversed(_small_rows(output.stdout))
    }  # a supervisor wins over an init script
    if output.exit_code != 0 or not services:
        raise _no_manager("Listing the services")
    return list(services.values())


async def _act_small(transport: Transport, service: Service, action: str, *, seconds: float) -> None:
    output = await transport.run(shell_script(_SMALL_ACT, service.name, service.manager, action), seconds=seconds)
    if output.exit_code == _NOT_HERE:
        raise NotConfigured(
            f"{service.name} cannot be {action}d there",
            why="No tool manages its init script: a script named S50NAME always starts at boot",
        )
    if output.exit_code != 0:
        raise GuestRefused(f"{service.name}: {action} failed", why=f"It said: {error_message(output)}")


def _no_manager(doing: str) -> NotConfigured:
    return NotConfigured(
        f"{doing}: this machine runs neither systemd nor OpenRC",
        why="It has no runit, s6 or init scripts either",
        next_step=Advice("Run the command that starts its services", tools.host_exec, tools.guest_exec),
    )


def _small_rows(output: bytes) -> list[Service]:
    rows = [line.split("\t") for line in output.decode("utf-8", "replace").splitlines()]
    return [
        Service(name, manager, _SMALL_STATES.get(word, "inactive"), word or "down", starts, pid=int(pid))
        for manager, name, word, pid, starts in (row for row in rows if len(row) == 5 and row[3].isdecimal())
        if manager in _SMALL_MANAGERS
    ]
