"""Commands on nodes without sockets: in place of the SSH connections of a server."""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pve_simulator.guest_os.machine import Machine
from pve_simulator.nodes.shell import NodeShells
from pve_simulator.world import World
from quorate.problems import Unreachable
from quorate.ssh.host_keys import HostKeys
from quorate.ssh.pool import Pool
from quorate.ssh.target import SshTarget
from tests.simulation.faultiness import Faultiness


class MemoryPool(Pool):
    """A command runs on its node even if the server dies while it waits, or the connection breaks."""

    def __init__(self, world: World, hosts: Mapping[str, str], chance: random.Random, faults: Faultiness) -> None:
        super().__init__(HostKeys((), Path("/nowhere")))
        self._world = world
        self._nodes = {address: name for name, address in hosts.items()}
        self._chance = chance
        self._faults = faults

    async def open(self, target: SshTarget, command: str | None, **_: Any) -> Any:
        fate = self._chance.random() if self._faults.active else 1.0
        await asyncio.sleep(self._chance.random() * 0.05)
        node = self._world.nodes[self._nodes[f"{target.host}:{target.port}"]]
        if fate < self._faults.before or not node.online:
            raise Unreachable(f"{target.address} cannot be reached over SSH")
        machine = self._world.part(NodeShells).of(node)
        return _Channel(machine, command or "sh", breaks=fate < self._faults.before + self._faults.after)

    async def close(self) -> None: ...


class _Channel:
    """As much of a channel and its process as the product uses."""

    exit_signal = None

    def __init__(self, machine: Machine, command: str, *, breaks: bool) -> None:
        self._machine = machine
        self._command = command
        self._breaks = breaks
        self._given = bytearray()
        self._end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.process = self.stdin = self
        self.stdout, self.stderr = _Output(self._end), _Output(self._end)
        self.exit_status: int | None = None

    def write(self, data: bytes) -> None:
        self._given += data

    async def drain(self) -> None:
        await asyncio.sleep(0)

    def write_eof(self) -> None:
        asyncio.get_running_loop().create_task(self._execute(), context=contextvars.Context())

    async def _execute(self) -> None:
        argv = ["/bin/sh", "-c", self._command]
        if self._breaks:
            asyncio.get_running_loop().call_soon(self._hang_up)
        done = await self._machine.execute(argv, bytes(self._given), self.stdout.data, self.stderr.data)
        if not self._breaks:
            assert done is not None
            self.exit_status = done.exitcode
            self._hang_up()

    def _hang_up(self) -> None:
        if not self._end.done():
            self._end.set_result(None)

    async def wait(self) -> None:
        await asyncio.shield(self._end)

    def close(self) -> None: ...


class _Output:
    def __init__(self, end: asyncio.Future[None]) -> None:
        self.data = bytearray()
        self._end = end
        self._read = 0

    async def read(self, _: int) -> bytes:
        """Everything, when the command has ended; then the end of the stream."""
        await asyncio.shield(self._end)
        unread, self._read = bytes(self.data[self._read :]), len(self.data)
        return unread
