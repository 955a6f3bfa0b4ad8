"""Commands and files of a POSIX machine over SSH, directly or through its node."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable

from quorate.hints import NAMED, Advice, either, see, tools
from quorate.inside.posix_files import shell_script
from quorate.inside.transport import KEPT_BYTES, Command, Job, Output
from quorate.problems import BadArgument, GuestRefused, NotFound, Problem, SudoRefused, TimedOut, Unreachable
from quorate.ssh.launcher import NO_SUDO, NOT_STARTED, Launch
from quorate.ssh.pool import SocketStream
from quorate.ssh.process import ExecutionTarget, ExitStatus, Process

SHOWN_ON_TIMEOUT = 2000
FILE_SECONDS = 120.0
START_SECONDS = 30.0

_NOT_THERE, _A_FOLDER = 44, 45
# $1 path, $2 the first byte, counted from one, $3 the number of bytes
_READ = (
    f'[ -e "$1" ] || exit {_NOT_THERE}; [ ! -d "$1" ] || exit {_A_FOLDER}; exec < "$1" || exit 1; '
    'tail -c "+$2" | head -c "$3"'
)
_WRITE = 'cat > "$1"'
_APPEND = 'cat >> "$1"'


def read_command(path: str, offset: int, limit: int) -> Command:
    return shell_script(_READ, path, str(offset + 1), str(limit))


def content_of(output: Output, path: str) -> bytes:
    """The output of a read command. Raises a Problem if it failed."""
    if output.exit_code == 0 and not (output.stderr and not output.stdout):
        return output.stdout
    if output.exit_code == _NOT_THERE:
        raise missing_file_problem(path)
    if output.exit_code == _A_FOLDER:
        raise GuestRefused(f"{path} is a folder", next_step=see("List its contents", tools.guest_dir_list(path=path)))
    raise file_problem(output, f"{path} could not be read")


def missing_file_problem(path: str) -> NotFound:
    return NotFound(f"There is no file {path} in the guest", next_step=see("See what exists", tools.guest_dir_list))


def file_problem(output: Output, what: str) -> Problem:
    message = output.stderr.decode("utf-8", "replace").strip()[-SHOWN_ON_TIMEOUT:]
    return (NotFound if "No such file" in message or "nonexistent" in message else GuestRefused)(
        what, why=f"It said: {message}"
    )


def start_problem(guest: object, code: int | None, words: str) -> Problem:
    """Why the command did not start, from what was printed instead."""
    if code == NOT_STARTED:
        return BadArgument(f"The command could not be started in {guest}", why=f"It said: {words}")
    if code == NO_SUDO:
        return SudoRefused(f"The command could not be started in {guest}", why=f"It said: {words}")
    if "sudo" in words:
        return SudoRefused(
            f"sudo does not allow the command in {guest}",
            why=f"It said: {words}",
            next_step=either(
                Advice("Set the right {sudo_password} for the registered host", sudo_password=NAMED),
                "allow the login to use sudo",
            ),
        )
    return GuestRefused(
        f"The command did not start in {guest}",
        why=f"It said: {words}" if words else f"Its shell ended with exit code {code}",
        next_step="Check that it has a working shell",
    )


class SshTransport:
    system = "posix"

    def __init__(
        self,
        name: str,
        description: str,
        target: ExecutionTarget,
        explain: Callable[[ExitStatus], Problem],
        *,
        max_output: int,
        adapt: Callable[[Command], Command] | None = None,
    ) -> None:
        self.name = name
        self._description = description
        self._target = target
        self._explain = explain
        self._max_output = max_output
        self._adapt = adapt

    def with_adapter(self, adapt: Callable[[Command], Command]) -> SshTransport:
        """The same transport, whose commands, also those for files, are changed before they are sent."""
        return SshTransport(
            self.name, self._description, self._target, self._explain, max_output=self._max_output, adapt=adapt
        )

    @property
    def description(self) -> str:
        return self._description

    @property
    def target(self) -> ExecutionTarget:
        return self._target

    async def run(self, command: Command, *, seconds: float = 30.0, keep: int = KEPT_BYTES) -> Output:
        started: list[Process] = []
        try:
            async with asyncio.timeout(seconds):
                started.append(await self._begin(command, None, keep))
                return _output(started[0], await started[0].wait(), self._explain)
        except TimeoutError:
            if not started:
                raise _no_channel(seconds) from None
            await started[0].stop()
            raise timed_out(seconds, *_so_far(started[0])) from None
        except asyncio.CancelledError:
            for process in started:
                process.stop_in_background()
            raise

    async def start(self, command: Command, *, limit: float | None = None, keep: int = KEPT_BYTES) -> Job:
        try:
            async with asyncio.timeout(START_SECONDS):
                return SshJob(self, await self._begin(command, limit, keep), self._explain)
        except TimeoutError:
            raise _no_channel(START_SECONDS) from None

    async def read_file(self, path: str, *, offset: int = 0, limit: int) -> bytes:
        output = await self.run(read_command(path, offset, limit), seconds=FILE_SECONDS, keep=limit)
        return content_of(output, path)

    async def write_file(self, path: str, data: bytes, *, append: bool = False) -> None:
        command = shell_script(_APPEND if append else _WRITE, path, stdin=data)
        output = await self.run(command, seconds=FILE_SECONDS)
        if output.exit_code != 0:
            raise file_problem(output, f"{path} could not be written")

    async def open_socket(self, socket: str) -> SocketStream:
        """A stream to a Unix socket of the machine. Raises Unreachable unless SSH connects to the machine itself."""
        if self._target.enter:
            raise Unreachable(f"{self._description} cannot open sockets")
        return await self._target.pool.open_socket(self._target.ssh, socket)

    async def _begin(self, command: Command, limit: float | None, keep: int) -> Process:
        command = self._adapt(command) if self._adapt else command
        launch = Launch(command.argv, command.env, command.cwd, command.user, limit, password=command.password)
        return await Process.start(self._target, launch, command.stdin, keep=min(keep, self._max_output))


class SshJob:
    """A command that this server follows: its output is here, and it ends with the server."""

    def __init__(self, transport: SshTransport, process: Process, explain: Callable[[ExitStatus], Problem]) -> None:
        self.handle = f"{transport.name}:{secrets.token_hex(6)}"
        self._process = process
        self._explain = explain

    @property
    def ended(self) -> bool:
        return self._process.end.done()

    async def wait(self, seconds: float) -> Output | None:
        done, _ = await asyncio.wait({self._process.end}, timeout=None if seconds == float("inf") else seconds)
        return _output(self._process, self._process.end.result(), self._explain) if done else None

    async def partial_output(self) -> Output:
        stdout, stderr = _so_far(self._process)
        return Output(None, stdout, stderr, self._process.stdout.cut, self._process.stderr.cut)

    def leave(self) -> None:
        self._process.mark_long_running()

    async def stop(self) -> None:
        await self._process.stop()


def timed_out(seconds: float, stdout: bytes, stderr: bytes) -> TimedOut:
    shown = {
        name: data[:SHOWN_ON_TIMEOUT].decode("utf-8", "replace")
        for name, data in (("stdout", stdout), ("stderr", stderr))
        if data
    }
    return TimedOut(
        f"The command did not end within {seconds:g} s",
        why="It was killed, with all its children",
        next_step="Give it more time, or run it in the background",
        facts=shown,
    )


def _no_channel(seconds: float) -> TimedOut:
    return TimedOut(
        f"The command could not be started within {seconds:g} s",
        why="Other commands occupy the connection, or connecting is slow",
        next_step=Advice("Wait for them, or stop commands in the background", tools.guest_job, tools.host_job),
    )


def _so_far(process: Process) -> tuple[bytes, bytes]:
    return bytes(process.stdout.kept), bytes(process.stderr.kept)


def _output(process: Process, ended: ExitStatus, explain: Callable[[ExitStatus], Problem]) -> Output:
    if not ended.started and ended.signal is None:
        raise explain(ended)
    return Output(
        ended.exit_code,
        *_so_far(process),
        stdout_cut=process.stdout.cut,
        stderr_cut=process.stderr.cut,
        signal=ended.signal,
    )
