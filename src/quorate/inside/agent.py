"""The QEMU guest agent of a VM, by PVE's API: commands and files.

PVE hands bytes from inside on as characters, one for each byte, and takes texts to the agent apart in the same way: so
bytes are got back whole, and only ASCII is sent.
"""

from __future__ import annotations

import asyncio
import base64
import re
from typing import Any

from quorate.inside.over_ssh import FILE_SECONDS, content_of, file_refused, not_started, read_command, timed_out
from quorate.inside.way import KEPT_BYTES, Command, Job, Output
from quorate.inside.windows_launch import ending_command, launched, write_command
from quorate.problems import BadArgument, GuestRefused, NodeOffline, NotFound, Problem, ServerFailed
from quorate.pve.clock import Clock
from quorate.pve.cluster import Cluster, Guest
from quorate.ssh.launching import Launch, Stream, ending

FIRST_LOOK, LONGEST_LOOK, SLOWER = 0.1, 2.0, 1.5
"""Seconds between two looks whether a command has ended."""
GRACE_SECONDS = 3.0
MOST_INPUT = 65536
MOST_WRITTEN = 61440 // 4 * 3
"""Bytes that one write takes, as base64."""
MOST_READ = 768 * 1024
"""Bytes of one read: what PVE asks the agent for at once comes as one piece of base64."""
_PIECE = 36 * 1024

_MAKE, _ADD = 'base64 -d > "$1"', 'base64 -d >> "$1"'
_SAFE_FILE = ("/bin/sh", "-c", "umask 077; mktemp")
_SIGNALS = {1: "HUP", 2: "INT", 3: "QUIT", 6: "ABRT", 9: "KILL", 11: "SEGV", 13: "PIPE", 15: "TERM"}


class AgentWay:
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
        """A command that was started before, by this server or another."""
        return AgentJob(self, self._guest, pid, keep)

    # -- commands --------------------------------------------------------------------------------------------------

    async def _begin(self, command: Command, limit: float | None, keep: int) -> AgentJob:
        if self.system == "windows":
            argv, given = launched(command, limit)
        else:
            argv, given = await self._launch(command, limit)
        return AgentJob(self, self._guest, await self.execute(argv, given), keep)

    async def _launch(self, command: Command, limit: float | None) -> tuple[tuple[str, ...], str]:
        launch = Launch(command.argv, command.env, command.cwd, command.user, limit)
        given = launch.lines() + command.stdin
        if command.stdin and (len(given) > MOST_INPUT or not command.stdin.isascii()):
            file = await self._parked(command.stdin)
            launch = Launch(command.argv, command.env, command.cwd, command.user, limit, stdin_file=file)
            given = launch.lines()
        if len(given) > MOST_INPUT:
            raise BadArgument(
                "The command is too long for the guest agent",
                why=f"It takes {MOST_INPUT // 1024} KiB",
                next_step="Write a script with guest_file_write and run that, or give data as stdin",
            )
        return launch.shell, given.decode("ascii")

    async def _parked(self, data: bytes) -> str:
        """A file inside, for the eyes of root alone, with input that does not fit or may not be sent as it is."""
        made = await self.run(Command(_SAFE_FILE))
        if made.exit_code != 0:
            raise GuestRefused("The guest takes no input of this size", why=f"mktemp said: {_words(made.stderr)}")
        file = made.stdout.decode().strip()
        await self._write_pieces(file, data, append=True)
        return file

    async def execute(self, argv: tuple[str, ...], given: str = "") -> int:
        """The number of the process that was started. Sent once: if the answer is lost, its fate is unknown."""
        params: dict[str, Any] = {"command": list(argv)}
        if given:
            params["input-data"] = given
        try:
            answer = await self._cluster.client.request("POST", self._guest.path("agent/exec"), params)
        except NodeOffline as problem:
            if "596" not in str(problem):
                raise
            raise GuestRefused(  # PVE cannot put the agent's words into its answer and breaks off
                f"The guest agent of {self._guest} could not start {argv[0]}",
                why="There is no such program in the guest",
                next_step="A guest without a shell takes no commands",
            ) from None
        except ServerFailed as problem:
            raise _disabled(self._guest, problem) or problem from None
        return int(answer.data["pid"])

    # -- files -----------------------------------------------------------------------------------------------------

    async def read_file(self, path: str, *, offset: int = 0, limit: int) -> bytes:
        table = await self._cluster.facts()
        endpoint = table.endpoint("GET", "/nodes/{node}/qemu/{vmid}/agent/file-read")
        if "offset" in endpoint.parameters and path.isascii():
            return await self._read_pieces(path, offset, limit)
        if self.system == "posix":
            output = await self.run(read_command(path, offset, limit), seconds=FILE_SECONDS, keep=limit)
            return content_of(output, path)
        whole = await self._ask_file(path)  # PVE 8 knows no offset
        return as_bytes(str(whole["content"]))[offset : offset + limit]

    async def _read_pieces(self, path: str, offset: int, limit: int) -> bytes:
        found = bytearray()
        while len(found) < limit:
            count = min(MOST_READ, limit - len(found))
            piece = await self._ask_file(path, offset=offset + len(found), count=count, decode=False)
            data = _from_base64(str(piece["content"]))
            found += data
            if len(data) < count:
                break
        return bytes(found)

    async def _ask_file(self, path: str, **how: Any) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = await self._guest.get("agent/file-read", file=path, **how)
        except NotFound:
            raise NotFound(
                f"There is no file {path} in the guest", next_step="guest_dir_list shows what is in a folder"
            ) from None
        except ServerFailed as problem:
            raise _disabled(self._guest, problem) or _file_problem(f"{path} cannot be read", problem) from None
        return answer

    async def write_file(self, path: str, data: bytes, *, append: bool = False) -> None:
        if not append and path.isascii():
            await self._store(path, data[:MOST_WRITTEN])
            data, append = data[MOST_WRITTEN:], True
            if not data:
                return
        await self._write_pieces(path, data, append=append)

    async def _store(self, path: str, data: bytes) -> None:
        params = {"file": path, "content": base64.b64encode(data).decode(), "encode": False}
        try:
            await self._cluster.client.request("POST", self._guest.path("agent/file-write"), params)
        except NotFound as problem:
            raise _file_problem(f"{path} cannot be written", problem, NotFound) from None
        except ServerFailed as problem:
            raise _disabled(self._guest, problem) or _file_problem(f"{path} cannot be written", problem) from None

    async def _write_pieces(self, path: str, data: bytes, *, append: bool) -> None:
        """By commands, for what the agent's own write cannot do: long files, names beyond ASCII, adding to a file."""
        for at in range(0, max(1, len(data)), _PIECE):
            piece = base64.b64encode(data[at : at + _PIECE])
            if self.system == "windows":
                command = write_command(path, piece.decode(), append=append or at > 0)
            else:
                script = _ADD if append or at > 0 else _MAKE
                command = Command(("/bin/sh", "-c", script, "sh", path), stdin=piece, env={"LC_ALL": "C"})
            output = await self.run(command, seconds=FILE_SECONDS)
            if output.exit_code != 0:
                raise file_refused(output, f"{path} cannot be written")


class AgentJob:
    """A command that the agent has started; all that has to be known of it stands in its handle."""

    def __init__(self, way: AgentWay, guest: Guest, pid: int, keep: int) -> None:
        self.handle = f"agent:{guest.row.node}:{guest.vmid}:{pid}"
        self._way = way
        self._guest = guest
        self._pid = pid
        self._keep = keep
        self._output: Output | None = None

    async def wait(self, seconds: float) -> Output | None:
        clock = self._way.clock
        deadline, pause = clock.monotonic() + seconds, FIRST_LOOK
        while True:
            if await self._look():
                return self._output
            left = deadline - clock.monotonic()
            if left <= 0:
                return None
            await clock.sleep(min(pause, left))
            pause = min(LONGEST_LOOK, pause * SLOWER)

    async def so_far(self) -> Output:
        return Output(None)

    async def stop(self) -> None:
        """Only what the agent itself has started can be ended so: it is asked first."""
        for signal in ("TERM", "KILL"):
            if await self._look():
                return
            posix = self._way.system != "windows"
            argv = ending(self._pid, signal) if posix else ending_command(self._pid)
            killer = AgentJob(self._way, self._guest, await self._way.execute(argv), self._keep)
            await killer._settle()
            if await self.wait(GRACE_SECONDS) is not None:
                return

    async def _settle(self) -> None:
        """Wait until it has ended, whatever it says: it prints nothing of use."""
        clock = self._way.clock
        for _ in range(20):
            if (await self._status()).get("exited"):
                return
            await clock.sleep(FIRST_LOOK)

    async def _look(self) -> bool:
        """Whether it has ended. PVE tells the output once, so it is kept."""
        if self._output is None:
            told = await self._status()
            if told.get("exited"):
                self._output = self._judged(told)
        return self._output is not None

    async def _status(self) -> dict[str, Any]:
        try:
            told: dict[str, Any] = await self._guest.get("agent/exec-status", pid=self._pid)
        except ServerFailed as problem:
            if "pid" not in str(problem):
                raise
            raise NotFound(
                f"The guest agent of {self._guest} knows no command {self._pid}",
                why="Its output was already handed over, or the guest was restarted since",
            ) from None
        return told

    def _judged(self, told: dict[str, Any]) -> Output:
        out, err = Stream(self._keep), Stream(self._keep)
        streams = ((out, str(told.get("out-data") or "")), (err, str(told.get("err-data") or "")))
        for stream, text in streams:
            if self._way.system == "windows":
                stream.pid = 0  # no mark there
            stream.feed(as_bytes(text))
        signal = told.get("signal")
        code = None if signal else int(told.get("exitcode") or 0)
        if out.pid is None and err.pid is None and signal is None:
            raise not_started(self._guest, code, _words(bytes(err.noise or out.noise)))
        return Output(
            code,
            bytes(out.kept),
            bytes(err.kept),
            out.cut or bool(told.get("out-truncated")),
            err.cut or bool(told.get("err-truncated")),
            _SIGNALS.get(int(signal), str(signal)) if signal else None,
        )


def as_bytes(text: str) -> bytes:
    """The bytes behind what PVE shows as text. A version of PVE that decodes them itself is understood as well."""
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        return text.encode()


def _words(data: bytes) -> str:
    return data.decode("utf-8", "replace").strip()[-500:]


def _from_base64(text: str) -> bytes:
    """Several pieces may stand one after the other, each with its own padding."""
    return b"".join(base64.b64decode(piece) for piece in re.findall(r"[^=]+={0,2}", text))


def _file_problem(what: str, problem: Problem, kind: type[Problem] = GuestRefused) -> Problem:
    return kind(what, why=f"The guest said: {problem.what.partition('Agent error: ')[2] or problem.what}")


def _disabled(guest: Guest, problem: Problem) -> Problem | None:
    """Some distributions switch parts of the agent off."""
    if "has been disabled" not in str(problem) and "not been found" not in str(problem):
        return None
    return GuestRefused(
        f"The guest agent of {guest} does not allow this",
        why=str(problem).partition("Agent error: ")[2] or str(problem),
        next_step="Its operator can allow it: on RHEL, Fedora and their kin take guest-exec and guest-file-* out of "
        "BLOCK_RPCS (or into ALLOW_RPCS) in /etc/sysconfig/qemu-ga and restart qemu-guest-agent; "
        "a guest whose file systems are frozen for a backup allows it again afterwards",
    )
