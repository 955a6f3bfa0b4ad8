"""The QEMU guest agent of a VM, through PVE's API: commands and files.

PVE maps each byte from the guest to one character, and does the same with texts to the agent. So output is converted
back to bytes, and only ASCII is sent.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import re
from typing import Any

from quorate.hints import Advice, tools
from quorate.inside.posix_files import shell_script
from quorate.inside.ssh_transport import (
    FILE_SECONDS,
    content_of,
    file_problem,
    missing_file_problem,
    read_command,
    start_problem,
    timed_out,
)
from quorate.inside.transport import KEPT_BYTES, Command, Job, Output
from quorate.inside.windows_files import launch_command, taskkill_argv, write_command
from quorate.problems import (
    BadArgument,
    Conflict,
    GuestRefused,
    NodeOffline,
    NotFound,
    OutcomeUnknown,
    Problem,
    ServerFailed,
    TimedOut,
    Unreachable,
)
from quorate.pve.cluster import Cluster, Guest
from quorate.pve.connection import Clock
from quorate.ssh.launcher import Launch, Stream, kill_argv

FIRST_PAUSE, LONGEST_PAUSE, BACKOFF = 0.1, 2.0, 1.5
"""Seconds between two polls of a command."""
GRACE_SECONDS = 3.0
MOST_INPUT = 65536
MAX_WRITE = 61440 // 4 * 3
"""Bytes that fit into one write as base64."""
MAX_READ = 256 * 1024
"""Bytes of one read: PVE allows the agent five seconds, and a busy guest is slow."""
PATIENCE_SECONDS = 15.0
"""How long the agent may be silent while a command runs: a busy guest misses a ping now and then."""
_PIECE = 36 * 1024

_MAKE, _ADD = 'base64 -d > "$1"', 'base64 -d >> "$1"'
_PUT_TOGETHER, _PUT_AFTER = (f'cat "$1"/* {into} "$2"; q=$?; rm -rf "$1"; exit $q' for into in (">", ">>"))
# The agent creates world-writable files, so they are created beforehand, or in a private folder.
_SAFE_FILE = ("/bin/sh", "-c", "umask 077; mktemp")
_SAFE_FOLDER = ("/bin/sh", "-c", "umask 077; mktemp -d")
_UNKNOWN_PROCESS = re.compile(
    r"Invalid parameter 'pid'|PID .* does not exist"
)  # before version 9.0 of the agent, and since
_BROKEN_OFF = "596 Broken pipe"  # PVE cannot encode the typographic quotes in the agent's error message
_SIGNALS = {1: "HUP", 2: "INT", 3: "QUIT", 6: "ABRT", 9: "KILL", 11: "SEGV", 13: "PIPE", 15: "TERM"}
_SILENCE = (Conflict, NodeOffline, ServerFailed, TimedOut, Unreachable)
"""What a busy or restarting agent causes; tolerated for a while."""


class AgentTransport:
    name = "agent"

    def __init__(self, cluster: Cluster, guest: Guest, system: str) -> None:
        self._cluster = cluster
        self._guest = guest
        self.system = system

    @property
    def description(self) -> str:
        return f"guest agent of {self._guest}"

    @property
    def clock(self) -> Clock:
        return self._cluster.clock

    async def run(self, command: Command, *, seconds: float = 30.0, keep: int = KEPT_BYTES) -> Output:
        job = await self._begin(command, None, keep)
        try:
            output = await job.wait(seconds)
        except asyncio.CancelledError:
            self._cluster.ssh.pool.in_background(job.stop())
            raise
        if output is None:
            await job.stop()
            raise timed_out(seconds, b"", b"")
        return output

    async def start(self, command: Command, *, limit: float | None = None, keep: int = KEPT_BYTES) -> Job:
        return await self._begin(command, limit, keep)

    def job(self, pid: int, keep: int = KEPT_BYTES) -> AgentJob:
        """A command that was started earlier, by this server or another."""
        return AgentJob(self, self._guest, pid, keep)

    # -- commands --------------------------------------------------------------------------------------------------

    async def _begin(self, command: Command, limit: float | None, keep: int) -> AgentJob:
        if self.system == "windows":
            argv, stdin = launch_command(command, limit)
        else:
            argv, stdin = await self._launch(command, limit)
        starting = asyncio.ensure_future(self.execute(argv, stdin))
        try:
            return AgentJob(self, self._guest, await asyncio.shield(starting), keep)
        except asyncio.CancelledError:  # it may have started before its process id arrives
            self._cluster.ssh.pool.in_background(self._end(starting))
            raise

    async def _end(self, starting: asyncio.Future[int]) -> None:
        with contextlib.suppress(Problem):
            await self.job(await starting).stop()

    async def _launch(self, command: Command, limit: float | None) -> tuple[tuple[str, ...], str]:
        launch = Launch(command.argv, command.env, command.cwd, command.user, limit)
        stdin = launch.lines() + command.stdin
        if command.stdin and (len(stdin) > MOST_INPUT or not command.stdin.isascii()):
            file = await self._create_temporary(_SAFE_FILE)  # input that is too long or not ASCII, for root only
            await self.write_file(file, command.stdin)
            launch = Launch(command.argv, command.env, command.cwd, command.user, limit, stdin_file=file)
            stdin = launch.lines()
        if len(stdin) > MOST_INPUT:
            raise BadArgument(
                "The command is too long for the guest agent",
                why=f"It takes {MOST_INPUT // 1024} KiB",
                next_step=Advice(
                    "Write a script to a file and run that, or pass data as stdin", tools.guest_file_write
                ),
            )
        return launch.shell, stdin.decode("ascii")

    async def _create_temporary(self, command: tuple[str, ...]) -> str:
        """The path of a new temporary file or folder."""
        output = await self.run(Command(command))
        if output.exit_code != 0:
            raise GuestRefused("The guest cannot create a temporary file", why=f"It said: {_words(output.stderr)}")
        return output.stdout.decode().strip()

    async def execute(self, argv: tuple[str, ...], stdin: str = "") -> int:
        """The id of the process. The request is sent once: if the answer is lost, the outcome is unknown."""
        params: dict[str, Any] = {"command": list(argv)}
        if stdin:
            params["input-data"] = stdin
        try:
            answer = await self._guest.tell_agent("exec", params)
        except OutcomeUnknown as problem:
            if _BROKEN_OFF not in str(problem):
                raise
            raise GuestRefused(
                f"The guest agent of {self._guest} did not start {argv[0]}",
                why="PVE broke the connection, as it does when the program does not exist in the guest",
                next_step="Give the full path of the program, or give the command as a text for the shell",
            ) from None
        except ServerFailed as problem:
            raise _blocked_command_problem(self._guest, problem) or problem from None
        return int(answer["pid"])

    # -- files -----------------------------------------------------------------------------------------------------

    async def read_file(self, path: str, *, offset: int = 0, limit: int) -> bytes:
        table = await self._cluster.facts()
        endpoint = table.endpoint("GET", "/nodes/{node}/qemu/{vmid}/agent/file-read")
        if "offset" in endpoint.parameters and path.isascii():
            return await self._read_pieces(path, offset, limit)
        if self.system == "posix":
            output = await self.run(read_command(path, offset, limit), seconds=FILE_SECONDS, keep=limit)
            return content_of(output, path)
        whole = await self._ask_file(path)  # PVE 8 has no offset
        return as_bytes(str(whole["content"]))[offset : offset + limit]

    async def _read_pieces(self, path: str, offset: int, limit: int) -> bytes:
        content = bytearray()
        while len(content) < limit:
            count = min(MAX_READ, limit - len(content))
            piece = await self._ask_file(path, offset=offset + len(content), count=count, decode=False)
            data = _from_base64(str(piece["content"]))
            content += data
            if len(data) < count:
                break
        return bytes(content)

    async def _ask_file(self, path: str, **how: Any) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = await self._guest.get("agent/file-read", file=path, **how)
        except NotFound:
            raise missing_file_problem(path) from None
        except ServerFailed as problem:
            raise _blocked_command_problem(self._guest, problem) or _file_problem(
                f"{path} could not be read", problem
            ) from None
        return answer

    async def write_file(self, path: str, data: bytes, *, append: bool = False) -> None:
        if not append and path.isascii() and len(data) <= MAX_WRITE:
            await self._store(path, data, path)
        elif self.system == "windows" or len(data) <= _PIECE:
            await self._write_by_commands(path, data, append=append)
        else:
            await self._write_together(path, data, append=append)

    async def _store(self, file: str, data: bytes, path: str) -> None:
        """`path` is the file that the caller named."""
        params = {"file": file, "content": base64.b64encode(data).decode(), "encode": False}
        try:
            await self._guest.tell_agent("file-write", params)
        except NotFound as problem:
            raise _file_problem(f"{path} could not be written", problem, NotFound) from None
        except ServerFailed as problem:
            raise _blocked_command_problem(self._guest, problem) or _file_problem(
                f"{path} could not be written", problem
            ) from None

    async def _write_by_commands(self, path: str, data: bytes, *, append: bool) -> None:
        """Write what the agent itself cannot: names beyond ASCII, appending, long files on Windows."""
        for at in range(0, max(1, len(data)), _PIECE):
            piece = base64.b64encode(data[at : at + _PIECE])
            if self.system == "windows":
                command = write_command(path, piece.decode(), append=append or at > 0)
            else:
                script = _ADD if append or at > 0 else _MAKE
                command = shell_script(script, path, stdin=piece)
            await self._run_writing(command, path)

    async def _write_together(self, path: str, data: bytes, *, append: bool) -> None:
        """Long data: the agent stores the pieces without a command for each, then one command joins them."""
        folder = await self._create_temporary(_SAFE_FOLDER)
        try:
            for number, at in enumerate(range(0, len(data), MAX_WRITE)):
                await self._store(f"{folder}/{number:06}", data[at : at + MAX_WRITE], path)
        except BaseException:
            self._cluster.ssh.pool.in_background(self.run(Command(("/bin/rm", "-rf", folder))))
            raise
        script = _PUT_AFTER if append else _PUT_TOGETHER
        await self._run_writing(shell_script(script, folder, path), path)

    async def _run_writing(self, command: Command, path: str) -> None:
        output = await self.run(command, seconds=FILE_SECONDS)
        if output.exit_code != 0:
            raise file_problem(output, f"{path} could not be written")


class AgentJob:
    """A command that the agent started; its handle contains everything needed to find it again."""

    def __init__(self, transport: AgentTransport, guest: Guest, pid: int, keep: int) -> None:
        self.handle = f"agent:{guest.row.node}:{guest.vmid}:{pid}"
        self._transport = transport
        self._guest = guest
        self._pid = pid
        self._keep = keep
        self._output: Output | None = None

    @property
    def ended(self) -> bool:
        return self._output is not None

    async def wait(self, seconds: float) -> Output | None:
        clock = self._transport.clock
        deadline, pause = clock.monotonic() + seconds, FIRST_PAUSE
        heard = clock.monotonic()
        while True:
            try:
                if await self._has_ended():
                    return self._output
                heard = clock.monotonic()
            except _SILENCE as problem:
                if clock.monotonic() >= min(deadline, heard + PATIENCE_SECONDS):
                    raise self._unknown_outcome(problem) from None
            left = deadline - clock.monotonic()
            if left <= 0:
                return None
            await clock.sleep(min(pause, left))
            pause = min(LONGEST_PAUSE, pause * BACKOFF)

    def _unknown_outcome(self, problem: Problem) -> OutcomeUnknown:
        return OutcomeUnknown(
            f"The guest agent of {self._guest} stopped answering, so the state of the command is unknown",
            why=str(problem),
            next_step=Advice(
                "The command was started and not sent again. Poll it later",
                tools.guest_job(action="poll", job=self.handle),
            ),
        )

    async def partial_output(self) -> Output:
        return Output(None)

    def leave(self) -> None:
        """Do nothing: the agent keeps the command, and it uses no resources here."""

    async def stop(self) -> None:
        """Terminate the command. The agent is asked first, because only a process that it started may be killed."""
        for signal in ("TERM", "KILL"):
            if await self._has_ended():
                return
            posix = self._transport.system != "windows"
            argv = kill_argv(self._pid, signal) if posix else taskkill_argv(self._pid)
            killer = AgentJob(self._transport, self._guest, await self._transport.execute(argv), self._keep)
            await killer._wait_for_exit()
            if await self.wait(GRACE_SECONDS) is not None:
                return

    async def _wait_for_exit(self) -> None:
        clock = self._transport.clock
        for _ in range(20):
            if (await self._status()).get("exited"):
                return
            await clock.sleep(FIRST_PAUSE)

    async def _has_ended(self) -> bool:
        """PVE returns the output only once, so it is kept."""
        if self._output is None:
            status = await self._status()
            if status.get("exited"):
                self._output = self._to_output(status)
        return self._output is not None

    async def _status(self) -> dict[str, Any]:
        try:
            status: dict[str, Any] = await self._guest.get("agent/exec-status", pid=self._pid)
        except (NotFound, ServerFailed) as problem:
            if not _UNKNOWN_PROCESS.search(str(problem)):
                raise
            raise NotFound(
                f"The guest agent of {self._guest} has no command {self._pid}",
                why="Its output was already fetched, or the guest has restarted since",
            ) from None
        return status

    def _to_output(self, status: dict[str, Any]) -> Output:
        out, err = Stream(self._keep), Stream(self._keep)
        streams = ((out, str(status.get("out-data") or "")), (err, str(status.get("err-data") or "")))
        for stream, text in streams:
            if self._transport.system == "windows":
                stream.pid = 0  # no mark there
            stream.feed(as_bytes(text))
        signal = status.get("signal")
        code = None if signal else int(status.get("exitcode") or 0)
        if out.pid is None and err.pid is None and signal is None:
            raise start_problem(self._guest, code, _words(bytes(err.noise or out.noise)))
        return Output(
            code,
            bytes(out.kept),
            bytes(err.kept),
            out.cut or bool(status.get("out-truncated")),
            err.cut or bool(status.get("err-truncated")),
            _SIGNALS.get(int(signal), str(signal)) if signal else None,
        )


def as_bytes(text: str) -> bytes:
    """The bytes behind PVE's text. A version of PVE that decodes them itself is handled, too."""
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        return text.encode()


def _words(data: bytes) -> str:
    return data.decode("utf-8", "replace").strip()[-500:]


def _from_base64(text: str) -> bytes:
    """Several pieces may follow each other, each with its own padding."""
    return b"".join(base64.b64decode(piece) for piece in re.findall(r"[^=]+={0,2}", text))


def _file_problem(what: str, problem: Problem, kind: type[Problem] = GuestRefused) -> Problem:
    return kind(what, why=f"It said: {problem.what.partition('Agent error: ')[2] or problem.what}")


def _blocked_command_problem(guest: Guest, problem: Problem) -> Problem | None:
    """Some distributions disable parts of the agent."""
    if "has been disabled" not in str(problem) and "not been found" not in str(problem):
        return None
    return GuestRefused(
        f"The guest agent of {guest} does not allow this",
        why=str(problem).partition("Agent error: ")[2] or str(problem),
        next_step="Allow it in the guest: on RHEL, Fedora and similar systems, remove guest-exec and guest-file-* from "
        "BLOCK_RPCS (or add them to ALLOW_RPCS) in /etc/sysconfig/qemu-ga and restart qemu-guest-agent. "
        "If its file systems are frozen for a backup, wait until the backup has ended",
    )
