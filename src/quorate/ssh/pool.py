"""One connection to each target, shared by all commands: kept alive, closed when idle, reopened when dead."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from quorate.problems import Problem, Unreachable
from quorate.ssh.connection import connect
from quorate.ssh.host_keys import HostKeys
from quorate.ssh.target import SshTarget

if TYPE_CHECKING:
    import asyncssh

T = TypeVar("T")

IDLE_SECONDS = 300.0
MAX_CHANNELS = 10
"""OpenSSH's default for MaxSessions; a server that allows fewer lowers this by refusing one."""
LONG_RUNNING_SECONDS = 5.0
"""A command that has run this long may run for much longer: others do not wait for its channel."""
CLOSE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Screen:
    """The terminal that a command is given."""

    columns: int = 80
    rows: int = 24
    kind: str = "xterm-256color"

    @property
    def size(self) -> tuple[int, int]:
        return self.columns, self.rows


class Stoppable(Protocol):
    async def stop(self) -> None: ...


class Pool:
    def __init__(self, host_keys: HostKeys, *, idle_seconds: float = IDLE_SECONDS) -> None:
        self.host_keys = host_keys
        self._idle_seconds = idle_seconds
        self._connections: dict[SshTarget, PooledConnection] = {}
        self._crowded: set[PooledConnection] = set()
        """Connections reserved for the long-running commands on them."""
        self._connecting: dict[SshTarget, asyncio.Task[PooledConnection]] = {}
        self._knocking: dict[SshTarget, asyncio.Task[Any]] = {}
        self._background: set[asyncio.Task[Any]] = set()
        self.running: set[Stoppable] = set()
        """Commands that are stopped when the pool closes."""

    async def open(
        self, target: SshTarget, command: str | None, *, urgent: bool = False, screen: Screen | None = None
    ) -> Channel:
        """A channel that runs `command`; None is the login shell, `screen` gives it a terminal.

        A dead connection is reopened once: a command that waits for its input has done nothing yet. `urgent` is for
        commands that kill others and must not wait for them.
        """
        pooled = await self._acquire_connection(target)
        try:
            return await pooled.open(command, urgent=urgent, screen=screen)
        except _Crowded:
            return await self.open(target, command, screen=screen)
        except _ConnectionLost:
            pooled = await self._acquire_connection(target)
        except _NoFreeChannel:
            pooled = await self._connect(target, for_once=True)
        try:
            return await pooled.open(command, urgent=urgent, screen=screen)
        except (_ConnectionLost, _NoFreeChannel) as error:
            raise Unreachable(
                f"The connection to {target.address} breaks as soon as it is used",
                why=str(error),
                next_step="Try again; if it happens again, check the log of the SSH server there",
            ) from None

    async def open_socket(self, target: SshTarget, socket: str) -> SocketStream:
        """A stream to a Unix socket of the target, opened by its SSH server as the login user."""
        try:
            return await (await self._acquire_connection(target)).open_socket(socket)
        except _ConnectionLost:
            pooled = await self._acquire_connection(target)
        try:
            return await pooled.open_socket(socket)
        except _ConnectionLost as error:
            raise Unreachable(
                f"The connection to {target.address} breaks as soon as it is used", why=str(error)
            ) from None

    async def knock(self, target: SshTarget, probe: Callable[[], Coroutine[Any, Any, T]]) -> T | None:
        """What the probe says of the target's port; None if a connection is open or being opened.

        Concurrent callers share one probe: an SSH server drops connections at random if too many have not logged in.
        """
        pooled = self._connections.get(target)
        if target in self._connecting or (pooled is not None and pooled.alive):
            return None
        knocking = self._knocking.get(target)
        if knocking is None:
            knocking = self._knocking[target] = asyncio.get_running_loop().create_task(probe())
            knocking.add_done_callback(lambda _: self._knocking.pop(target, None))
        return await asyncio.shield(knocking)

    def in_background(self, work: Coroutine[Any, Any, object]) -> None:
        """Run it in the background; closing the pool waits for it briefly."""
        task = asyncio.get_running_loop().create_task(_suppress_problems(work))
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def disconnect(self, target: SshTarget) -> None:
        """Close the connection to it, if there is one, with everything that runs over it."""
        if pooled := self._connections.get(target):
            pooled.close()

    @property
    def connections(self) -> int:
        return len(self._connections) + len(self._crowded)

    async def close(self) -> None:
        for attempt in (*self._connecting.values(), *self._knocking.values()):
            attempt.cancel()
        for command in self.running:
            self.in_background(command.stop())
        if self._background:
            await asyncio.wait(self._background, timeout=CLOSE_SECONDS)
        for task in self._background:
            task.cancel()
        connections = [*self._connections.values(), *self._crowded]
        for pooled in connections:
            pooled.close()
        await asyncio.gather(*(pooled.wait_closed() for pooled in connections))

    async def _acquire_connection(self, target: SshTarget) -> PooledConnection:
        """The connection to the target; concurrent callers share one connection attempt."""
        if (pooled := self._connections.get(target)) is not None and pooled.alive:
            if not pooled.crowded:
                return pooled
            self._crowded.add(self._connections.pop(target))
        attempt = self._connecting.get(target)
        if attempt is None:
            attempt = asyncio.get_running_loop().create_task(self._connect(target))
            self._connecting[target] = attempt
            attempt.add_done_callback(lambda done: self._forget_attempt(target, done))
        return await asyncio.shield(attempt)  # one caller's cancellation must not fail the others

    def _forget_attempt(self, target: SshTarget, attempt: asyncio.Task[PooledConnection]) -> None:
        self._connecting.pop(target, None)
        if not attempt.cancelled():
            attempt.exception()  # marks it as retrieved, even if all callers are gone

    async def _connect(self, target: SshTarget, *, for_once: bool = False) -> PooledConnection:
        jump = await self._acquire_connection(target.jump) if target.jump else None
        pooled = PooledConnection(0.0 if for_once else self._idle_seconds, jump)
        pooled.ssh = await connect(
            target,
            self.host_keys,
            through=jump.ssh if jump else None,
            lost=lambda: self._drop_connection(target, pooled),
        )
        if not for_once:
            self._connections[target] = pooled
            pooled.schedule_close()
        return pooled

    def _drop_connection(self, target: SshTarget, pooled: PooledConnection) -> None:
        pooled.mark_lost()
        self._crowded.discard(pooled)
        if self._connections.get(target) is pooled:
            del self._connections[target]


async def _suppress_problems(work: Coroutine[Any, Any, object]) -> None:
    with contextlib.suppress(Problem):
        await work


class _ConnectionLost(Exception):
    """The connection is gone; nothing was sent."""


class _Crowded(Exception):
    """The connection is reserved for its long-running commands."""


class _NoFreeChannel(Exception):
    """No channel is free for an urgent command."""


class PooledConnection:
    """One connection and the number of commands on it."""

    ssh: asyncssh.SSHClientConnection

    def __init__(self, idle_seconds: float, jump: PooledConnection | None) -> None:
        self._idle_seconds = idle_seconds
        self._jump = jump
        self._max_channels = MAX_CHANNELS
        self._open = 0
        self._long_running = 0
        """How many of them are long-running."""
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self.alive = True
        if jump is not None:
            jump.hold()

    @property
    def crowded(self) -> bool:
        """Long-running commands occupy enough channels to make others wait: those get a new connection."""
        return self._long_running >= max(1, self._max_channels // 2)

    def add_long_running(self) -> None:
        """One more of its commands is long-running. If there are too many, waiting ones get another connection."""
        self._long_running += 1
        while self.crowded and self._waiting:
            self._wake()

    async def open(self, command: str | None, *, urgent: bool, screen: Screen | None = None) -> Channel:
        import asyncssh

        terminal: dict[str, Any] = {"term_type": screen.kind, "term_size": screen.size} if screen else {}
        while True:
            await self._acquire(urgent)
            opening = asyncio.ensure_future(self.ssh.create_process(command, encoding=None, **terminal))
            try:
                return Channel(self, await asyncio.shield(opening))
            except asyncssh.ChannelOpenError as error:
                self.release()
                if not self.alive or self.ssh.is_closed():
                    raise _ConnectionLost(error.reason) from None
                await self._lower_limit(error.reason, urgent)
            except (asyncssh.Error, OSError) as error:
                self.release()
                self.ssh.abort()
                raise _ConnectionLost(str(error)) from None
            except asyncio.CancelledError:
                opening.add_done_callback(self._close_unclaimed)
                raise

    async def open_socket(self, socket: str) -> SocketStream:
        import asyncssh

        self.hold()
        opening = asyncio.ensure_future(self.ssh.open_unix_connection(socket, encoding=None))
        try:
            return SocketStream(self, *await asyncio.shield(opening))
        except (asyncssh.Error, OSError) as error:
            self.release()
            if not self.alive or self.ssh.is_closed():
                raise _ConnectionLost(str(error)) from None
            raise Unreachable(f"The SSH server does not open {socket}", why=f"It said: {error}") from None
        except asyncio.CancelledError:
            opening.add_done_callback(self._close_unclaimed_stream)
            raise

    def _close_unclaimed_stream(self, opening: asyncio.Future[tuple[Any, Any]]) -> None:
        """See `_close_unclaimed`."""
        if opening.cancelled() or opening.exception() is not None:
            self.release()
        else:
            SocketStream(self, *opening.result()).close()

    def _close_unclaimed(self, opening: asyncio.Future[asyncssh.SSHClientProcess[bytes]]) -> None:
        """The caller was canceled while the channel opened: it still has to be closed."""
        if opening.cancelled() or opening.exception() is not None:
            self.release()
        else:
            Channel(self, opening.result()).close()

    async def _acquire(self, urgent: bool) -> None:
        """Wait for a free channel; the last one is reserved for urgent commands."""
        while self.alive and not urgent and not self.crowded and self._open >= max(1, self._max_channels - 1):
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done():
                    self._wake()  # pass the turn on
                raise
            finally:
                with contextlib.suppress(ValueError):
                    self._waiting.remove(turn)
        if not self.alive:
            raise _ConnectionLost("The connection was lost")
        if self.crowded and not urgent:
            raise _Crowded
        self.hold()

    async def _lower_limit(self, reason: str, urgent: bool) -> None:
        """The server accepts no more channels: remember the limit and wait for one to close."""
        if urgent and self._open > 0:
            raise _NoFreeChannel(reason)
        if self._open == 0:
            raise Unreachable(
                "The SSH server does not open a session",
                why=f"It said: {reason}",
                next_step="Its sshd_config may forbid sessions (MaxSessions, ForceCommand, PermitRootLogin)",
            )
        self._max_channels = self._open

    def hold(self) -> None:
        self._open += 1
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def release(self, *, long_running: bool = False) -> None:
        self._open -= 1
        self._long_running -= long_running
        self._wake()
        if self._open == 0:
            self.schedule_close()

    def schedule_close(self) -> None:
        """Close it after a while, unless it is used again."""
        if self.alive and self._open == 0 and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._idle_seconds, self.close)

    def close(self) -> None:
        self.ssh.close()

    async def wait_closed(self) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.ssh.wait_closed(), CLOSE_SECONDS)

    def mark_lost(self) -> None:
        if not self.alive:
            return
        self.alive = False
        if self._timer is not None:
            self._timer.cancel()
        if self._jump is not None:
            self._jump.release()
        while self._waiting:
            self._wake()

    def _wake(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return


class Channel:
    """One command's channel on a connection; released once, when both sides have closed it."""

    def __init__(self, connection: PooledConnection, process: asyncssh.SSHClientProcess[bytes]) -> None:
        self._connection = connection
        self._closing: asyncio.Task[None] | None = None
        self._long_running = False
        self._timer = asyncio.get_running_loop().call_later(LONG_RUNNING_SECONDS, self.mark_long_running)
        self.process = process

    def mark_long_running(self) -> None:
        """The command is long-running."""
        self._timer.cancel()
        if not self._long_running and not (self._closing is not None and self._closing.done()):
            self._long_running = True
            self._connection.add_long_running()

    async def wait(self) -> None:
        """Wait for the end of the command."""
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._release())
        await asyncio.shield(self._closing)

    def close(self) -> None:
        self.process.close()
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._release())

    async def _release(self) -> None:
        try:
            await self.process.wait_closed()
        finally:
            self._timer.cancel()
            self._connection.release(long_running=self._long_running)


class SocketStream:
    """A stream to a socket of the other side; keeps the connection open until it is closed."""

    def __init__(
        self, connection: PooledConnection, reader: asyncssh.SSHReader[bytes], writer: asyncssh.SSHWriter[bytes]
    ) -> None:
        self._connection: PooledConnection | None = connection
        self._reader = reader
        self._writer = writer

    async def read(self, limit: int) -> bytes:
        """The next bytes; empty at the end."""
        import asyncssh

        try:
            return await self._reader.read(limit)
        except (asyncssh.Error, OSError):
            return b""

    async def write(self, data: bytes) -> None:
        import asyncssh

        with contextlib.suppress(asyncssh.Error, OSError):  # the next read shows the end
            self._writer.write(data)
            await self._writer.drain()

    def close(self) -> None:
        if self._connection is not None:
            self._writer.close()
            self._connection.release()
            self._connection = None
