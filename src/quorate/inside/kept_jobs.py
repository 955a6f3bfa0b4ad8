"""Commands that the machine itself keeps: they outlive our connection and our process, and any server can follow them.

A supervisor on the machine, detached from the session that started it, runs the command and stores its output, process
id and exit code in a folder that only its user can read. It stores the beginning of each output and drops the rest, so
an endless command cannot fill a disk. The folder is in memory where that is possible. The next command there removes
what ended an hour ago, and what lost its supervisor: a kill of everything, or the power. Where root runs systemd, the
supervisor gets a scope of its own, so that neither the end of the session nor a restart of the SSH server ends it.
"""

from __future__ import annotations

import contextlib
import re
import secrets
from dataclasses import dataclass, replace

from quorate.inside.transport import Command, Job, Output, Transport
from quorate.problems import NotFound, Problem
from quorate.ssh.launcher import KILL_TREE, kill_argv

PREFIX = "kept"
KEPT_BYTES = 1024 * 1024
"""Of each output."""
START_SECONDS = 30.0
ASK_SECONDS = 20.0
GRACE_SECONDS = 3.0
_CANNOT, _GONE = 120, 121
_SIGNALS = {143: "TERM", 137: "KILL"}
_ID = re.compile(r"[0-9a-f]{16}")
_STARTED = b"@quorate-job@\n"
_PAUSE = 0.05
"""Between two looks at whether the supervisor runs."""
_HEAD = re.compile(rb"@quorate-job@ (running|ended|lost) (-?\d+) (\d+) (\d+) (\d+) (\d+) (\d)(\d)\n")

_PLACES = '/run /dev/shm "$HOME" /var/tmp /tmp'
# $1 folder, $2 time limit or nothing, $3 bytes to keep of each output; then the command. File descriptor 9 is open for
# writing as long as this runs, so that a follower sees the end of it at once. Its only line says that this process is
# on record: anyone who looked earlier would take it for lost. dd passes on what it reads immediately.
_SUPERVISE = (
    KILL_TREE
    + """
q_d=$1; q_limit=$2; q_keep=$3; shift 3; trap "" HUP; umask 077
exec 9> "$q_d/follow"
set -- "$(cat /proc/$$/stat 2>/dev/null)" "$@"; q_born=${1##*") "}; shift
echo "$$ $(q_nth 20 $q_born)" > "$q_d/supervisor"; echo >&9
q_drain() { q_n=0
while [ "$q_n" -lt "$q_keep" ]; do dd bs=65536 count=16 2>/dev/null >> "$q_d/$1"
q_m=$(($(wc -c < "$q_d/$1"))); [ "$q_m" -gt "$q_n" ] || break; q_n=$q_m; done
cat > /dev/null; }
q_drain 1 9>&- < "$q_d/p1" & q_o=$!
q_drain 2 9>&- < "$q_d/p2" & q_e=$!
q_setsid=$(command -v setsid)
$q_setsid "$@" 9>&- < "$q_d/in" > "$q_d/p1" 2> "$q_d/p2" & q_c=$!
echo "$q_c" > "$q_d/pid"; q_t=
q_limited() { exec 9>&-; sleep "$q_limit"; q_me=; : > "$q_d/late"; q_kill TERM "$q_c"; sleep 3; q_kill KILL "$q_c"; }
[ -z "$q_limit" ] || { ( q_limited ) & q_t=$!; }
wait "$q_c"; q_code=$?
rm -f "$q_d/in"; [ -z "$q_t" ] || [ -e "$q_d/late" ] || q_kill KILL "$q_t"
( exec 9>&-; sleep 2; kill "$q_o" "$q_e" ) & q_t=$!
wait "$q_o" "$q_e"; kill "$q_t"
echo "$q_code" > "$q_d/code.new"; mv "$q_d/code.new" "$q_d/code"
"""
)
_NTH = 'q_nth() { shift "$1"; echo "$1"; }; '
# Prints what is known. $q_d is the folder, $q_keep how much of each output to show. A supervisor is not alive as a
# zombie, which is what remains where the first process of a container does not look after orphans. Before it ends it
# writes the exit code, so only one that is dead and has written none is lost.
_REPORT = """
q_size() { if [ -e "$q_d/$1" ]; then echo $(($(wc -c < "$q_d/$1"))); else echo 0; fi; }
q_alive() { read -r q_s q_b < "$q_d/supervisor" || return 1; kill -0 "$q_s" 2>/dev/null || return 1
[ -n "$q_b" ] || return 0; q_x=$(cat "/proc/$q_s/stat" 2>/dev/null); q_x=${q_x##*") "}
case $q_x in Z*) return 1;; esac; [ "$(q_nth 20 $q_x)" = "$q_b" ]; }
q_report() { q_state=running; q_code=-1; q_cut1=0; q_cut2=0; q_p=0
[ -e "$q_d/code" ] || q_alive || q_state=lost
[ ! -e "$q_d/code" ] || { q_state=ended; read -r q_code < "$q_d/code"; }
[ ! -e "$q_d/pid" ] || read -r q_p < "$q_d/pid"
q_n1=$(q_size 1); q_n2=$(q_size 2); q_max=$q_keep
[ "$q_n1" -le "$q_max" ] || { q_n1=$q_max; q_cut1=1; }; [ "$q_n2" -le "$q_max" ] || { q_n2=$q_max; q_cut2=1; }
q_late=0; [ ! -e "$q_d/late" ] || q_late=1
set -- "$q_state" "$q_code" "$q_p" "$q_n1" "$q_n2" "$q_late" "$q_cut1" "$q_cut2"
printf "@quorate-job@ %s %s %s %s %s %s %s%s\\n" "$@"
[ "$q_n1" = 0 ] || head -c "$q_n1" "$q_d/1"; [ "$q_n2" = 0 ] || head -c "$q_n2" "$q_d/2"; }
"""
# Any shell can read this much: whether the machine has what the rest needs. $0 is the rest.
_PROBE = f"""for q_x in setsid mkfifo dd head wc find; do command -v "$q_x" >/dev/null || exit {_CANNOT}; done
exec /bin/sh -c "$0" "$@"
"""
# $1 id, $2 time limit or nothing, $3 bytes to keep, $4 the supervisor's script; then the command. Our input is for it.
_START = f"""{_NTH}{_REPORT}
q_id=$1; q_limit=$2; q_keep=$3; q_super=$4; shift 4; umask 077
q_old() {{ [ -n "$(find "$1" -prune -mmin +60 2>/dev/null)" ]; }}
for q_at in {_PLACES}; do
[ -d "$q_at" ] && [ -w "$q_at" ] || continue
for q_d in "$q_at"/.quorate-job-*; do
[ -O "$q_d" ] && [ ! -L "$q_d" ] && q_old "$q_d" || continue
if [ -e "$q_d/code" ]; then q_old "$q_d/code"; else ! q_alive 2>/dev/null; fi && rm -rf "$q_d"; done; q_d=
q_try=$q_at/.quorate-job-$q_id
if mkdir "$q_try" 2>/dev/null && mkfifo "$q_try/p1" "$q_try/p2" "$q_try/follow" 2>/dev/null &&
head -c 65536 /dev/zero > "$q_try/in" 2>/dev/null && cat > "$q_try/in"; then q_d=$q_try; break; fi
rm -rf "$q_try"; done
[ -n "$q_d" ] || exit {_CANNOT}
q_scope=
if [ "$(id -u)" = 0 ] && [ -d /run/systemd/system ] && systemd-run -q --scope --collect true >/dev/null 2>&1; then
q_scope="systemd-run -q --scope --collect --unit=quorate-job-$q_id"; fi
( $q_scope setsid /bin/sh -c "$q_super" quorate "$q_d" "$q_limit" "$q_keep" "$@" </dev/null >/dev/null 2>&1 & )
exec 8< "$q_d/follow"; read -r q_x <&8; echo @quorate-job@; read -r q_x <&8; q_report
[ ! -e "$q_d/code" ] || rm -rf "$q_d"
"""
# $1 id, $2 bytes to show, $3 "wait" or nothing. To open a pipe for reading waits for a writer, and the supervisor may
# just have ended: file descriptor 7 is one until it is open.
_FOLLOW = f"""{_NTH}{_REPORT}
q_keep=$2; q_d=
for q_at in {_PLACES}; do [ ! -O "$q_at/.quorate-job-$1" ] || q_d=$q_at/.quorate-job-$1; done
[ -n "$q_d" ] || exit {_GONE}
if [ "$3" = wait ] && [ ! -e "$q_d/code" ] && q_alive; then
exec 7<> "$q_d/follow"; exec 8< "$q_d/follow"; exec 7>&-; read -r q_x <&8; fi
q_report
"""


class CannotKeep(Exception):
    """The machine lacks a required program or a writable folder. Nothing was started."""


@dataclass(frozen=True, slots=True)
class Report:
    state: str
    """running, ended or lost (its supervisor is gone without an exit code)"""
    pid: int
    output: Output
    late: bool
    """Whether the time limit ended it."""


class KeptJob:
    """A command in a folder of the machine, found by its id."""

    def __init__(self, transport: Transport, id: str, identity: Command, keep: int) -> None:
        """`identity`: a command with the user it runs as, and the password to become that user."""
        self.handle = f"{PREFIX}:{id}"
        self._transport = transport
        self._id = id
        self._identity = Command((), user=identity.user, password=identity.password)
        self._keep = keep
        self._final_report: Report | None = None
        self._follower: Job | None = None
        self._stopped = False

    @property
    def ended(self) -> bool:
        return self._final_report is not None

    @property
    def late(self) -> bool:
        return self._final_report is not None and self._final_report.late

    async def begin(self, command: Command, limit: float | None, seconds: float) -> Output | None:
        """Start it and wait; None if it is still running then. Raises CannotKeep before anything was started."""
        if not command.argv or not command.argv[0] or command.argv[0].startswith("-"):
            raise CannotKeep  # what runs it directly refuses it with the reason
        limit_text = "" if limit is None else str(max(1, round(limit)))
        argv = (
            _PROBE,
            _START,
            "quorate",
            self._id,
            limit_text,
            str(max(self._keep, 1)),
            _NTH + _SUPERVISE,
            *command.argv,
        )
        wrapped = replace(command, argv=("/bin/sh", "-c", *argv))
        follower = self._follower = await self._transport.start(wrapped, keep=2 * self._keep + 1024)
        waited = 0.0
        output = await follower.wait(0)
        while (
            output is None
            and not (await follower.partial_output()).stdout.startswith(_STARTED)
            and waited < START_SECONDS
        ):
            output = await follower.wait(_PAUSE)
            waited += _PAUSE
        if output is None:
            output = await follower.wait(max(0.0, seconds - waited))
        if output is None:
            await follower.stop()
            with contextlib.suppress(Problem):
                output = await follower.wait(0)
            if output is None or not _is_complete(output):
                return None  # otherwise it has ended since then, and its machine no longer has it
        if output.exit_code == _CANNOT:
            raise CannotKeep
        if not output.stdout.startswith(_STARTED):  # it could not start, for example because of an overlong argument
            self._final_report = Report("ended", 0, output, late=False)
            return output
        try:
            report = self._read(replace(output, stdout=output.stdout.removeprefix(_STARTED)))
        except NotFound:  # the connection ended, not the command: ask the machine
            report = await self._look()
        return None if report.state == "running" else report.output

    async def wait(self, seconds: float) -> Output | None:
        if self._final_report is None and seconds > 0:
            await self._follow(self._command("wait"), seconds)
        report = self._final_report or await self._look()
        return None if report.state == "running" else report.output

    async def partial_output(self) -> Output:
        return (self._final_report or await self._look()).output

    def leave(self) -> None:
        """Its machine keeps it; it uses no resources here."""

    async def stop(self) -> None:
        if self._follower is not None:  # the caller that waited for it was interrupted
            await self._follower.stop()
        self._stopped = True
        for signal in ("TERM", "KILL"):
            report = await self._look()
            if report.state != "running" or report.pid < 2:
                return
            killer = replace(self._identity, argv=kill_argv(report.pid, signal))
            with contextlib.suppress(Problem):
                await self._transport.run(killer, seconds=ASK_SECONDS)
            await self._follow(self._command("wait"), GRACE_SECONDS)
            if self._final_report is not None:
                return

    async def _follow(self, command: Command, seconds: float) -> None:
        """Wait for its end with a follower on the machine. Ending the follower does not end the command."""
        follower = self._follower = await self._transport.start(command, keep=2 * self._keep + 1024)
        output = await follower.wait(seconds)
        if output is None:
            await follower.stop()
        else:
            self._read(output)
        self._follower = None

    async def _look(self) -> Report:
        return self._read(await self._transport.run(self._command(""), seconds=ASK_SECONDS, keep=2 * self._keep + 1024))

    def _command(self, mode: str) -> Command:
        return replace(self._identity, argv=("/bin/sh", "-c", _FOLLOW, "quorate", self._id, str(self._keep), mode))

    def _read(self, output: Output) -> Report:
        found = _HEAD.match(output.stdout)
        if output.exit_code == _GONE or found is None:
            raise NotFound(
                "The machine no longer has this command",
                why="It was restarted since, or an hour has passed since the command ended",
            )
        state, code, pid, first, second, late, cut_out, cut_err = found.groups()
        body = output.stdout[found.end() :]
        out, err = body[: int(first)], body[int(first) : int(first) + int(second)]
        ended = int(code) if state == b"ended" else None
        # A shell cannot tell a signal from such an exit code: it is a signal if we sent one.
        signal = _SIGNALS.get(ended or 0) if self._stopped or late == b"1" else None
        result = Output(None if signal else ended, out, err, cut_out == b"1", cut_err == b"1", signal)
        report = Report(state.decode(), int(pid), result, late == b"1")
        if state != b"running":
            self._final_report = report
        return report


def _is_complete(output: Output) -> bool:
    """Whether the follower could report everything before it was stopped."""
    text = output.stdout.removeprefix(_STARTED)
    found = _HEAD.match(text)
    return found is not None and len(text) - found.end() == int(found[4]) + int(found[5])


def new_id() -> str:
    return secrets.token_hex(8)


def id_of(handle: str) -> str | None:
    """None for the handle of another kind of job."""
    kind, _, own = handle.partition(":")
    return own if kind == PREFIX and _ID.fullmatch(own) else None
