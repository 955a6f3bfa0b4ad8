"""A real QEMU guest agent behind the socket of its virtio port, queried as PVE does."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pve_simulator.guest_os.agents import AgentError, AgentSilent

# PVE's timeouts per command, in seconds.
_PING = 3.0
_DEFAULT_TIMEOUT = 5.0
_TIMEOUTS = {
    "guest-ping": _PING,
    "guest-fsfreeze-freeze": 3600.0,
    "guest-fsfreeze-thaw": 180.0,
    "guest-fstrim": 600.0,
    "guest-shutdown": 600.0,
}
_RETRY_SECONDS = 0.1
# These succeed without an answer: the machine goes down, and the socket with it.
_WITHOUT_ANSWER = frozenset({"guest-shutdown", "guest-suspend-disk", "guest-suspend-hybrid", "guest-suspend-ram"})
# Everything before this byte is the late answer to an earlier command.
_DELIMITER = b"\xff"
_LONGEST_ANSWER = 64 * 1024**2


class SocketAgent:
    """A new connection for every command: the port serves one client at a time, and the next one waits."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._ids = itertools.count(os.getpid() * 1000 + 1)

    async def ask(self, command: str, arguments: Mapping[str, Any]) -> Any:
        try:
            async with asyncio.timeout(_TIMEOUTS.get(command, _DEFAULT_TIMEOUT)):
                return await self._ask(command, arguments)
        except TimeoutError as error:
            raise AgentSilent("got timeout") from error
        except (OSError, asyncio.IncompleteReadError) as error:
            raise AgentSilent("client closed connection") from error

    async def _ask(self, command: str, arguments: Mapping[str, Any]) -> Any:
        number = next(self._ids)
        line = await self._connect()
        reader, writer = await asyncio.open_unix_connection(sock=line, limit=_LONGEST_ANSWER)
        try:
            writer.write(_line("guest-sync-delimited", {"id": number}) + _line(command, arguments))
            await writer.drain()
            await self._synchronize(reader, number)
            reply = await reader.readline()
            if not reply and command in _WITHOUT_ANSWER:
                return None
            if not reply:
                raise asyncio.IncompleteReadError(b"", None)
            return _answer(json.loads(reply))
        finally:
            writer.close()

    async def _connect(self) -> socket.socket:
        """Connect; a full queue refuses at once, so try again until the timeout."""
        while True:
            line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                line.setblocking(False)
                line.connect(str(self._path))
                return line
            except BaseException as error:
                line.close()
                if not isinstance(error, BlockingIOError):
                    raise
            await asyncio.sleep(_RETRY_SECONDS)

    async def _synchronize(self, reader: asyncio.StreamReader, number: int) -> None:
        """Read up to the answer of this synchronization, skipping older ones."""
        while True:
            await reader.readuntil(_DELIMITER)
            if json.loads(await reader.readline()).get("return") == number:
                return


def _line(command: str, arguments: Mapping[str, Any]) -> bytes:
    """One command as PVE writes it: a line of JSON in UTF-8."""
    return json.dumps({"execute": command, "arguments": dict(arguments)}, ensure_ascii=False).encode() + b"\n"


def _answer(reply: dict[str, Any]) -> Any:
    error = reply.get("error")
    if error is not None:
        raise AgentError(error.get("desc", ""), error.get("class", "GenericError"))
    return reply["return"]
