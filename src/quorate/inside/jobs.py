"""Commands that run in the background on guests and hosts, so that the caller who started them can find them again.

A command that the machine keeps, or a guest agent, is recorded in the shared state: any server can follow it, also
after a restart. One that only this server follows over its connection is known to this server alone.
"""

from __future__ import annotations

import contextlib
import re
import secrets
import shlex
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import msgspec

from quorate.command_rules import CommandRules
from quorate.hints import Advice, see, tools
from quorate.inside.transport import Command, Job, Output, Transport
from quorate.problems import NotFound, Problem, Refused
from quorate.pve.connection import Clock
from quorate.ssh.launcher import KILL_TREE, SCRIPT_FROM_INPUT, kill_argv, script_line
from quorate.ssh.settings import SshAccess

MAX_JOBS = 32
KEPT_SECONDS = 900.0
"""How long an ended job can still be polled."""
ABANDONED_SECONDS = 7 * 86_400.0
"""How long a job stays listed if its end is never seen."""


class JobRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A job as it is stored."""

    handle: str
    site: str
    """The cluster, or `homelab`, whose tool started it."""
    machine: str
    """`vm 102 docker01`, `host nas`"""
    line: str
    transport: str
    begun: float
    owner: str = ""
    """The subject of the caller's credentials; empty for the operator at this machine."""
    ref: str = ""
    """How to find the machine again."""
    cluster: str | None = None
    """The cluster of the machine, for a command of the homelab."""
    user: str | None = None
    """The user it runs as, if not the login."""
    keep: int = 0
    kept: bool = False
    """Whether its machine keeps it, so that any server can follow it."""
    back: dict[str, Any] = {}
    """Arguments of the snapshot_rollback that undoes it, if it was begun with a snapshot."""
    ended: float | None = None
    transport_name: str = ""
    """agent, pct or ssh"""
    target_kind: str = ""
    """vm, ct, node or host"""
    target_id: str = ""
    """The vmid, or the name of the host or node."""
    target_name: str = ""
    """The name of the guest."""
    timeout: float | None = None
    """Its time limit in seconds."""

    def __post_init__(self) -> None:
        """Derive the fields that records of older versions have only in words."""
        if self.transport_name:
            return
        kind, key, name, *_ = (*self.machine.split(" "), "", "")
        by_pct = self.transport.startswith("pct")
        transport = "agent" if self.handle.startswith("agent:") else "pct" if by_pct else "ssh"
        values = {"transport_name": transport, "target_kind": kind, "target_id": key, "target_name": name}
        for attribute, value in values.items():
            msgspec.structs.force_setattr(self, attribute, value)


class JobStore(Protocol):
    """The jobs in the state that all servers share."""

    async def all(self) -> dict[str, JobRecord]: ...

    async def find(self, name: str) -> JobRecord | None: ...

    async def keep(self, name: str, entry: JobRecord) -> None: ...

    async def forget(self, name: str) -> None: ...


@dataclass(slots=True)
class BackgroundJob:
    record: JobRecord
    job: Job | None = None
    """The running command, if this server itself follows it."""


@dataclass(frozen=True, slots=True)
class JobBook:
    """Where the jobs of one cluster or the homelab are noted, shared by every view of it, filtered or not."""

    store: JobStore
    """Jobs that any server can follow."""
    here: dict[str, BackgroundJob] = field(default_factory=dict)
    """Jobs that this server has started, by handle."""


class JobKeeper(Protocol):
    """Where commands continue in the background: a cluster or the homelab."""

    @property
    def name(self) -> str: ...

    @property
    def clock(self) -> Clock: ...

    @property
    def ssh(self) -> SshAccess: ...

    @property
    def command_rules(self) -> CommandRules: ...


class JobRegistry:
    """The jobs of one cluster or the homelab: a bounded number, ended ones for a while. A caller sees its own.

    `owner` is the subject of the caller's credentials; empty for the operator at this machine, who sees all.
    """

    def __init__(self, keeper: JobKeeper, book: JobBook, owner: str) -> None:
        self.keeper = keeper
        self._owner = owner
        self._site = keeper.name
        self._clock = keeper.clock
        self._here, self._store = book.here, book.store

    async def ensure_room(self) -> None:
        if sum(known.record.ended is None for known in await self._everything()) < MAX_JOBS:
            return
        for known in await self._everything():  # some may have ended since anyone asked
            with contextlib.suppress(Problem):
                if known.job is not None and known.record.ended is None and await known.job.wait(0) is not None:
                    await self.note_end(known)
        if sum(known.record.ended is None for known in await self._everything()) >= MAX_JOBS:
            raise Refused(
                f"{MAX_JOBS} commands already run in the background",
                next_step=Advice("Stop some of them or wait until they end", tools.guest_job, tools.host_job),
            )

    def new(self, handle: str, **fields: Any) -> JobRecord:
        return JobRecord(handle, self._site, begun=self._clock.time(), owner=self._owner, **fields)

    async def remember(self, record: JobRecord, job: Job) -> None:
        self._here[record.handle] = BackgroundJob(record, job)
        if record.kept:
            await self._store.keep(record.handle, record)

    async def forget(self, handle: str) -> None:
        """Nothing more can be learned about it, or the caller has its result."""
        self._here.pop(handle, None)
        await self._store.forget(handle)

    async def find(self, handle: str) -> BackgroundJob | None:
        """The caller's job with this handle; None if there is none, or if it belongs to someone else."""
        return next((known for known in await self.list_jobs() if known.record.handle == handle), None)

    async def is_taken(self, handle: str) -> bool:
        """Whether the handle is that of another caller's job."""
        return any(
            known.record.handle == handle and not self._is_own(known.record) for known in await self._everything()
        )

    async def list_jobs(self) -> list[BackgroundJob]:
        return [known for known in await self._everything() if self._is_own(known.record)]

    async def note_end(self, known: BackgroundJob) -> None:
        if known.record.ended is not None:
            return
        known.record = msgspec.structs.replace(known.record, ended=self._clock.time())
        if known.record.kept:
            await self._store.keep(known.record.handle, known.record)

    async def _everything(self) -> list[BackgroundJob]:
        for known in list(self._here.values()):
            if known.job is not None and known.job.ended:
                await self.note_end(known)
        stored = await self._store.all()
        others = (record for record in stored.values() if record.site == self._site and record.handle not in self._here)
        known_jobs = [*self._here.values(), *(BackgroundJob(record) for record in others)]
        for known in [known for known in known_jobs if self._is_old(known.record)]:
            await self.forget(known.record.handle)
            known_jobs.remove(known)
        return known_jobs

    def _is_old(self, record: JobRecord) -> bool:
        now = self._clock.time()
        return now - record.ended > KEPT_SECONDS if record.ended is not None else now - record.begun > ABANDONED_SECONDS

    def _is_own(self, record: JobRecord) -> bool:
        return self._owner in ("", record.owner)


def parse_agent_handle(handle: str) -> tuple[str, int, int]:
    """Node, vmid and process id of a command that an agent started for any server."""
    kind, *rest = handle.split(":")
    if kind == "agent" and len(rest) == 3 and all(number.isascii() and number.isdecimal() for number in rest[1:]):
        return rest[0], int(rest[1]), int(rest[2])
    raise no_job(handle)


def no_job(handle: str) -> NotFound:
    return NotFound(
        f"There is no job {handle!r}",
        why="A job belongs to the caller who started it, and is forgotten some time after it ends; one that its "
        "machine could not keep ended with the server that started it",
        next_step=see(
            "List the jobs of hosts or of guests", tools.host_job(action="list"), tools.guest_job(action="list")
        ),
    )


PREFIX = "kept"
KEPT_BYTES = 1024 * 1024
"""The most that is kept of each output stream."""
START_SECONDS = 30.0
ASK_SECONDS = 20.0
GRACE_SECONDS = 3.0
_CANNOT, _GONE = 120, 121
_SIGNALS = {143: "TERM", 137: "KILL"}
_ID = re.compile(r"[0-9a-f]{16}")
_STARTED = b"@quorate-job@\n"
_PAUSE = 0.05
"""Seconds between two checks whether the supervisor runs."""
_HEAD = re.compile(rb"@quorate-job@ (running|ended|lost) (-?\d+) (\d+) (\d+) (\d+) (\d+) (\d)(\d)\n")

_PLACES = '/run /dev/shm "$HOME" /var/tmp /tmp'
# $1 folder, $2 time limit or nothing, $3 bytes to keep of each output, $4 the login's umask; the command is the next
# line of its input. File descriptor 9 is open for writing as long as this runs: a follower sees the end of it at once.
# Its only line says that this process is on record: anyone who looked earlier would take it for lost. dd passes on
# what it reads immediately.
_SUPERVISE = (
    KILL_TREE
    + """
q_d=$1; q_limit=$2; q_keep=$3; q_mask=$4; trap "" HUP; umask 077
IFS= read -r q_argv; exec < /dev/null 9> "$q_d/follow"
q_born=$(cat /proc/$$/stat 2>/dev/null); q_born=${q_born##*") "}
eval "set -- $(printf %b "$q_argv")"
echo "$$ $(q_nth 20 $q_born)" > "$q_d/supervisor"; echo >&9
q_drain() { q_n=0
while [ "$q_n" -lt "$q_keep" ]; do dd bs=65536 count=16 2>/dev/null >> "$q_d/$1"
q_m=$(($(wc -c < "$q_d/$1"))); [ "$q_m" -gt "$q_n" ] || break; q_n=$q_m; done
cat > /dev/null; }
q_drain 1 9>&- < "$q_d/p1" & q_o=$!
q_drain 2 9>&- < "$q_d/p2" & q_e=$!
q_setsid=$(command -v setsid)
( umask "$q_mask"; exec $q_setsid "$@" ) 9>&- < "$q_d/in" > "$q_d/p1" 2> "$q_d/p2" & q_c=$!
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
_SUPERVISOR_LINE = script_line(_NTH + _SUPERVISE).decode().rstrip("\n")
assert "'" not in _SUPERVISOR_LINE
# Any shell can read this much: whether the machine has what the script in the next line needs.
_PROBE = f"""for q_x in setsid mkfifo dd head wc find; do command -v "$q_x" >/dev/null || exit {_CANNOT}; done
{SCRIPT_FROM_INPUT}
"""
# $1 id, $2 time limit or nothing, $3 bytes to keep; the command is the next line of its input, and the rest is for it.
# The supervisor reads its script and the command from a file: a search of the processes for the command finds that
# alone.
_START = f"""{_NTH}{_REPORT}
q_id=$1; q_limit=$2; q_keep=$3; q_mask=$(umask); umask 077; IFS= read -r q_argv
q_old() {{ [ -n "$(find "$1" -prune -mmin +60 2>/dev/null)" ]; }}
for q_at in {_PLACES}; do
[ -d "$q_at" ] && [ -w "$q_at" ] || continue
for q_d in "$q_at"/.quorate-job-*; do
[ -O "$q_d" ] && [ ! -L "$q_d" ] && q_old "$q_d" || continue
if [ -e "$q_d/code" ]; then q_old "$q_d/code"; else ! q_alive 2>/dev/null; fi && rm -rf "$q_d"; done; q_d=
q_try=$q_at/.quorate-job-$q_id
if mkdir "$q_try" 2>/dev/null && mkfifo "$q_try/p1" "$q_try/p2" "$q_try/follow" 2>/dev/null &&
head -c 65536 /dev/zero > "$q_try/in" 2>/dev/null && cat > "$q_try/in" &&
printf "%s\\n" '{_SUPERVISOR_LINE}' "$q_argv" > "$q_try/run" 2>/dev/null; then q_d=$q_try; break; fi
rm -rf "$q_try"; done
[ -n "$q_d" ] || exit {_CANNOT}
q_scope=
if [ "$(id -u)" = 0 ] && [ -d /run/systemd/system ] && systemd-run -q --scope --collect true >/dev/null 2>&1; then
q_scope="systemd-run -q --scope --collect --unit=quorate-job-$q_id --description=quorate-job"; fi
( $q_scope setsid /bin/sh -c '{SCRIPT_FROM_INPUT}' quorate "$q_d" "$q_limit" "$q_keep" "$q_mask" \
< "$q_d/run" >/dev/null 2>&1 & )
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


def _script_from_input(script: str, *arguments: str, stdin: bytes = b"") -> Command:
    return Command(("/bin/sh", "-c", SCRIPT_FROM_INPUT, "quorate", *arguments), script_line(script) + stdin)


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
        own_input = script_line(_START) + script_line(shlex.join(command.argv)) + command.stdin
        wrapped = replace(
            _script_from_input(_PROBE, self._id, limit_text, str(max(self._keep, 1)), stdin=own_input),
            env=command.env,
            cwd=command.cwd,
            user=command.user,
            password=command.password,
        )
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
        follow = _script_from_input(_FOLLOW, self._id, str(self._keep), mode)
        return replace(self._identity, argv=follow.argv, stdin=follow.stdin)

    def _read(self, output: Output) -> Report:
        head = _HEAD.match(output.stdout)
        if output.exit_code == _GONE or head is None:
            raise NotFound(
                "The machine no longer has this command",
                why="It was restarted since, or an hour has passed since the command ended",
            )
        state, code, pid, first, second, late, cut_out, cut_err = head.groups()
        body = output.stdout[head.end() :]
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
    head = _HEAD.match(text)
    return head is not None and len(text) - head.end() == int(head[4]) + int(head[5])


def new_id() -> str:
    return secrets.token_hex(8)


def id_of(handle: str) -> str | None:
    """The id in the handle of a kept job; None for another kind of job."""
    kind, _, own = handle.partition(":")
    return own if kind == PREFIX and _ID.fullmatch(own) else None
