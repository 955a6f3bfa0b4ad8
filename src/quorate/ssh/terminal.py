"""A terminal on another machine: what a person types goes there, what its screen shows comes back."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from quorate.ssh.launching import command_line
from quorate.ssh.pool import Channel, Screen
from quorate.ssh.process import Place

CHUNK = 32 * 1024


class Terminal:
    def __init__(self, place: Place, channel: Channel) -> None:
        self._place = place
        self._channel = channel

    @classmethod
    async def open(cls, place: Place, argv: Sequence[str], screen: Screen) -> Terminal:
        """With no `argv`, the login shell."""
        line = command_line((*place.enter, *argv)) if argv or place.enter else None
        channel = await place.pool.open(place.target, line, screen=screen)
        channel.outlast()  # others do not wait for a person
        terminal = cls(place, channel)
        place.pool.running.add(terminal)
        return terminal

    async def read(self) -> bytes:
        """What came; nothing at its end."""
        import asyncssh

        with contextlib.suppress(asyncssh.Error, OSError):
            return await self._channel.process.stdout.read(CHUNK)
        return b""

    async def write(self, data: bytes) -> None:
        with contextlib.suppress(OSError):  # its end is told by read
            self._channel.process.stdin.write(data)
            await self._channel.process.stdin.drain()

    def resize(self, screen: Screen) -> None:
        with contextlib.suppress(OSError):
            self._channel.process.change_terminal_size(*screen.size)

    async def stop(self) -> None:
        """Hang up: the other side ends what runs in the terminal."""
        self._place.pool.running.discard(self)
        self._channel.close()
