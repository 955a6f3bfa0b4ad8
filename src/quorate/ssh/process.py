"""One command on another machine: bounded output, an end that can be waited for, and a way to end it."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from quorate.problems import OutcomeUnknown, Problem
from quorate.ssh.launching import ASKED, LET_IN, Launch, Stream, command_line, ending
from quorate.ssh.pool import Channel, Pool
from quorate.ssh.target import SshTarget

if TYPE_CHECKING:
    import asyncssh

CHUNK = 64 * 1024
GRACE_SECONDS = 3.0
"""Between a polite end and one by force, and for a command to say its number."""
ENDING_SECONDS = 10.0
SUDO_SECONDS = 20.0
"""For sudo to take the password; where it asks for something else it would wait for ever."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where commands run: on the target, or in what its prefix enters (`pct exec 101 --`)."""

    pool: Pool
    target: SshTarget
    enter: tuple[str, ...] = ()

    def line(self, argv: tuple[str, ...]) -> str:
        return command_line((*self.enter, *argv))


@dataclass(frozen=True, slots=True)
class Ended:
    exit_code: int | None
    signal: str | None
    started: bool
    """False if something on the way refused it: then `words` say why, and the command itself never ran."""
    words: str
    """What was said before the command began."""


class Process:
    """A command that was sent. Its streams fill by themselves."""

    def __init__(self, place: Place, launch: Launch, channel: Channel, keep: int) -> None:
        self._place = place
        self._launch = launch
        self._channel = channel
        self.stdout, self.stderr = Stream(keep), Stream(keep)
        self._started = asyncio.Event()
        self._answered = asyncio.Event()
        """Sudo has taken the password or wants another one."""
        self.end: asyncio.Task[Ended]

    @classmethod
    async def start(cls, place: Place, launch: Launch, stdin: bytes, *, keep: int, urgent: bool = False) -> Process:
        for_sudo, lines = launch.for_sudo(), launch.lines()
        channel = await place.pool.open(place.target, place.line(launch.shell), urgent=urgent)
        process = cls(place, launch, channel, keep)
        process.end = asyncio.get_running_loop().create_task(process._run(for_sudo, lines + stdin))
        process.end.add_done_callback(process._ended)
        place.pool.running.add(process)
        return process

    async def ended(self) -> Ended:
        """Wait for its end; giving up waiting does not end it."""
        return await asyncio.shield(self.end)

    def outlast(self) -> None:
        """It goes on although nobody waits for it: others need not wait for its place."""
        self._channel.outlast()

    async def stop(self) -> None:
        """End it with all that it has started: politely, then by force, then by hanging up."""
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
        """For whoever is being cancelled and cannot wait."""
        self._place.pool.in_background(self.stop())

    async def _signal(self, pid: int, signal: str) -> None:
        if self._launch.user:  # who logs in may not end what sudo has started
            ender = await Process.start(self._place, self._launch.ending(pid, signal), b"", keep=0, urgent=True)
            await asyncio.wait({ender.end}, timeout=ENDING_SECONDS)
        if not self.end.done():
            await self._tell(self._place.line(ending(pid, signal)))

    async def _tell(self, line: str) -> None:
        channel = await self._place.pool.open(self._place.target, line, urgent=True)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ENDING_SECONDS):
                await channel.process.stdout.read()
                await channel.finished()
        channel.close()

    async def _run(self, for_sudo: bytes, data: bytes) -> Ended:
        process = self._channel.process
        sending = asyncio.get_running_loop().create_task(self._send(for_sudo, data))
        try:
            await asyncio.gather(self._collect(self.stdout, process.stdout), self._collect(self.stderr, process.stderr))
            await self._channel.finished()
        finally:
            sending.cancel()
            self._started.set()
            self._channel.close()
        signal = process.exit_signal[0] if process.exit_signal else None
        if signal is None and process.exit_status is None:
            raise OutcomeUnknown(
                f"The connection to {self._place.target.address} broke while a command ran",
                why="Whether it has ended or still runs is not known; it was not sent again",
                next_step="Look at what it was to do before you repeat it",
            )
        noise = bytes(self.stderr.noise or self.stdout.noise).replace(ASKED, b"").replace(LET_IN, b"")
        words = noise.decode("utf-8", "replace").strip()
        started = self.stdout.pid is not None or self.stderr.pid is not None
        return Ended(None if signal else process.exit_status, signal, started, words)

    async def _send(self, for_sudo: bytes, data: bytes) -> None:
        stdin = self._channel.process.stdin
        with contextlib.suppress(OSError):  # it does not have to read all of it
            if for_sudo and not await self._let_in(for_sudo):
                data = b""  # sudo would take it for more passwords, and lock the account for so many wrong ones
            for at in range(0, len(data), CHUNK):
                stdin.write(data[at : at + CHUNK])
                await stdin.drain()
            stdin.write_eof()

    async def _let_in(self, for_sudo: bytes) -> bool:
        self._channel.process.stdin.write(for_sudo)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SUDO_SECONDS):
                await self._answered.wait()
        return LET_IN in self.stderr.noise

    async def _collect(self, stream: Stream, reader: asyncssh.SSHReader[bytes]) -> None:
        import asyncssh

        with contextlib.suppress(asyncssh.Error, OSError):
            while data := await reader.read(CHUNK):
                stream.feed(data)
                if stream.pid is not None:
                    self._started.set()
                elif LET_IN in stream.noise or stream.noise.count(ASKED) > 1:
                    self._answered.set()

    def _ended(self, end: asyncio.Task[Ended]) -> None:
        self._place.pool.running.discard(self)
        if not end.cancelled():
            end.exception()  # whoever waits is told; if nobody does, nobody needs to be
