"""Services of POSIX machines without systemd or OpenRC: runit, s6, and init scripts (SysV, BusyBox)."""

from __future__ import annotations

from quorate.hints import GUEST_EXEC, GUEST_SERVICE, HOST_EXEC, HOST_SERVICE, Advice, see
from quorate.inside.posix_script import error_message, shell_script
from quorate.inside.service_state import Service
from quorate.inside.transport import Transport
from quorate.problems import GuestRefused, NotConfigured, NotFound

MANAGERS = ("runit", "s6", "init")
_NO_MANAGER, _NO_SERVICE, _NOT_HERE = 20, 21, 22
_STATES = {"run": "active", "up": "active", "running": "active"}

# One row for each service: manager, name, state, process id, whether it starts at boot.
_LOOK = r"""
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
_ONE = f"""{_LOOK}
of_runit "$1" || of_s6 "$1" || of_init "$1" && exit 0
[ -n "$runit$s6" ] || [ -d /etc/init.d ] || exit {_NO_MANAGER}
exit {_NO_SERVICE}
"""
_ALL = f"""{_LOOK}
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
_ACT = f"""{_LOOK}
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


async def status(transport: Transport, name: str) -> Service:
    output = await transport.run(shell_script(_ONE, name))
    if output.exit_code == _NO_SERVICE:
        raise NotFound(f"There is no service {name!r}", next_step=see("List the services", HOST_SERVICE, GUEST_SERVICE))
    found = _rows(output.stdout) if output.exit_code == 0 else []
    if not found:
        raise no_manager(f"Reading the service {name}")
    return found[0]


async def list_services(transport: Transport) -> list[Service]:
    output = await transport.run(shell_script(_ALL))
    found = {one.name: one for one in reversed(_rows(output.stdout))}  # a supervisor wins over an init script
    if output.exit_code != 0 or not found:
        raise no_manager("Listing the services")
    return list(found.values())


async def act(transport: Transport, service: Service, action: str, *, seconds: float) -> None:
    output = await transport.run(shell_script(_ACT, service.name, service.manager, action), seconds=seconds)
    if output.exit_code == _NOT_HERE:
        raise NotConfigured(
            f"{service.name} cannot be {action}d there",
            why="No tool manages its init script: a script named S50NAME always starts at boot",
        )
    if output.exit_code != 0:
        raise GuestRefused(f"{service.name}: {action} failed", why=f"It said: {error_message(output)}")


def no_manager(doing: str) -> NotConfigured:
    return NotConfigured(
        f"{doing}: this machine runs neither systemd nor OpenRC",
        why="It has no runit, s6 or init scripts either",
        next_step=Advice("Run the command that starts its services", HOST_EXEC, GUEST_EXEC),
    )


def _rows(output: bytes) -> list[Service]:
    rows = [line.split("\t") for line in output.decode("utf-8", "replace").splitlines()]
    return [
        Service(name, manager, _STATES.get(word, "inactive"), word or "down", starts, pid=int(pid))
        for manager, name, word, pid, starts in (row for row in rows if len(row) == 5 and row[3].isdecimal())
        if manager in MANAGERS
    ]
