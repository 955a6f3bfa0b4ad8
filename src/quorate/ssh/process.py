"""A command or a terminal on another machine: bounded output, waiting for its end, and stopping it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from quorate.problems import OutcomeUnknown, Problem
from quorate.ssh.launcher import SUDO_ACCEPTED, SUDO_PROMPT, Launch, Stream, command_line, kill_argv
from quorate.ssh.pool import Channel, Pool, Screen
from quorate.ssh.target import SshTarget

if TYPE_CHECKING:
    import asyncssh

CHUNK = 64 * 1024
GRACE_SECONDS = 3.0
"""Between TERM and KILL, and for a command to report its process id."""
ENDING_SECONDS = 10.0
SUDO_SECONDS = 20.0
"""For sudo to accept the password; a different prompt would wait forever."""


@dataclass(frozen=True, slots=True)
class ExecutionTarget:
    """Where commands run: on the SSH target, or in what a prefix enters there (`pct exec 101 --`)."""

    pool: Pool
    ssh: SshTarget
    enter: tuple[str, ...] = ()

    def line(self, argv: tuple[str, ...]) -> str:
        return command_line((*self.enter, *argv))


@dataclass(frozen=True, slots=True)
class ExitStatus:
    exit_code: int | None
    signal: str | None
    started: bool
    """False if the command was refused before it ran: `message` has the reason."""
    message: str
    """What was printed before the command started."""


class Process:
    """A command that was sent. Its streams fill in the background."""

    def __init__(self, target: ExecutionTarget, launch: Launch, channel: Channel, keep: int) -> None:
        self._target = target
        self._launch = launch
        self._channel = channel
        self.stdout, self.stderr = Stream(keep), Stream(keep)
        self._started = asyncio.Event()
        self._answered = asyncio.Event()
        """sudo accepted the password or asked for another one."""
        self.end: asyncio.Task[ExitStatus]

    @classmethod
    async def start(
        cls, target: ExecutionTarget, launch: Launch, stdin: bytes, *, keep: int, urgent: bool = False
    ) -> Process:
        sudo_input, lines = launch.sudo_input(), launch.lines()
        channel = await target.pool.open(target.ssh, target.line(launch.shell), urgent=urgent)
        process = cls(target, launch, channel, keep)
        process.end = asyncio.get_running_loop().create_task(process._run(sudo_input, lines + stdin))
        process.end.add_done_callback(process._forget)
        target.pool.running.add(process)
        return process

    async def wait(self) -> ExitStatus:
        """Wait for its end; canceling the wait does not stop it."""
        return await asyncio.shield(self.end)

    def mark_long_running(self) -> None:
        """It continues in the background: others do not wait for its channel."""
        self._channel.mark_long_running()

    async def stop(self) -> None:
        """Stop it with all its children: TERM, then KILL, then close the channel."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GRACE_SECONDS):
                await self._started.wait()
        for signal in ("TERM", "KILL"):
            if self.end.done() or self.stdout.pid is None:
                break
            with contextlib.suppress(Problem):
                await self._signal(self.stdout.pid, signal)
            await asyncio.wait({self.end}, timeout=GRACE_SECONDS)
        self._channel.close()
        await asyncio.wait({self.end}, timeout=GRACE_SECONDS)

    def stop_in_background(self) -> None:
        """Stop it without waiting, for a caller that is being canceled."""
        self._target.pool.in_background(self.stop())

    async def _signal(self, pid: int, signal: str) -> None:
        if self._launch.user:  # the login may not signal what sudo started
            ender = await Process.start(self._target, self._launch.to_kill(pid, signal), b"", keep=0, urgent=True)
            await asyncio.wait({ender.end}, timeout=ENDING_SECONDS)
        if not self.end.done():
            await self._run_kill(self._target.line(kill_argv(pid, signal)))

    async def _run_kill(self, line: str) -> None:
        channel = await self._target.pool.open(self._target.ssh, line, urgent=True)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ENDING_SECONDS):
                await channel.process.stdout.read()
                await channel.wait()
        channel.close()

    async def _run(self, sudo_input: bytes, data: bytes) -> ExitStatus:
        process = self._channel.process
        sending = asyncio.get_running_loop().create_task(self._send(sudo_input, data))
        try:
            await asyncio.gather(self._collect(self.stdout, process.stdout), self._collect(self.stderr, process.stderr))
            await self._channel.wait()
        finally:
            sending.cancel()
            self._started.set()
            self._channel.close()
        signal = process.exit_signal[0] if process.exit_signal else None
        if signal is None and process.exit_status is None:
            raise OutcomeUnknown(
                f"The connection to {self._target.ssh.address} broke while a command ran",
                why="It may have ended or may still be running; it was not sent again",
                next_step="Check its effect before you repeat it",
            )
        noise = bytes(self.stderr.noise or self.stdout.noise).replace(SUDO_PROMPT, b"").replace(SUDO_ACCEPTED, b"")
        words = noise.decode("utf-8", "replace").strip()
        started = self.stdout.pid is not None or self.stderr.pid is not None
        return ExitStatus(None if signal else process.exit_status, signal, started, words)

    async def _send(self, sudo_input: bytes, data: bytes) -> None:
        stdin = self._channel.process.stdin
        with contextlib.suppress(OSError):  # the command need not read all of it
            if sudo_input and not await self._answer_sudo(sudo_input):
                data = b""  # sudo would read it as more passwords and lock the account
            for at in range(0, len(data), CHUNK):
                stdin.write(data[at : at + CHUNK])
                await stdin.drain()
            stdin.write_eof()

    async def _answer_sudo(self, sudo_input: bytes) -> bool:
        self._channel.process.stdin.write(sudo_input)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SUDO_SECONDS):
                await self._answered.wait()
        return SUDO_ACCEPTED in self.stderr.noise

    async def _collect(self, stream: Stream, reader: asyncssh.SSHReader[bytes]) -> None:
        import asyncssh

        with contextlib.suppress(asyncssh.Error, OSError):
            while data := await reader.read(CHUNK):
                stream.feed(data)
                if stream.pid is not None:
                    self._started.set()
                elif SUDO_ACCEPTED in stream.noise or stream.noise.count(SUDO_PROMPT) > 1:
                    self._answered.set()

    def _forget(self, end: asyncio.Task[ExitStatus]) -> None:
        self._target.pool.running.discard(self)
        if not end.cancelled():
            end.exception()  # marks it as retrieved, even if nobody waits


TERMINAL_CHUNK = 32 * 1024


class Terminal:
    def __init__(self, target: ExecutionTarget, channel: Channel) -> None:
        self._target = target
        self._channel = channel

    @classmethod
    async def open(cls, target: ExecutionTarget, argv: Sequence[str], screen: Screen) -> Terminal:
        """Open a terminal that runs `argv`, or the login shell without it."""
        line = command_line((*target.enter, *argv)) if argv or target.enter else None
        channel = await target.pool.open(target.ssh, line, screen=screen)
        channel.mark_long_running()  # other commands do not wait for a person
        terminal = cls(target, channel)
        target.pool.running.add(terminal)
        return terminal

    async def read(self) -> bytes:
        """The next bytes; empty at the end."""
        import asyncssh

        with contextlib.suppress(asyncssh.Error, OSError):
            return await self._channel.process.stdout.read(TERMINAL_CHUNK)
        return b""

    async def write(self, data: bytes) -> None:
        with contextlib.suppress(OSError):  # the next read shows the end
            self._channel.process.stdin.write(data)
            await self._channel.process.stdin.drain()

    def resize(self, screen: Screen) -> None:
        with contextlib.suppress(OSError):
            self._channel.process.change_terminal_size(*screen.size)

    async def stop(self) -> None:
        """Close it: the other side ends what runs in the terminal."""
        self._target.pool.running.discard(self)
        self._channel.close()
