"""The way to a machine as root, for what is written for ways: by sudo where the login is not root."""

from __future__ import annotations

from quorate.homelab.machines import Machine
from quorate.inside.over_ssh import content_of, file_refused, read_command
from quorate.inside.posix_script import script
from quorate.inside.way import KEPT_BYTES, Command, Job, Output

FILE_SECONDS = 120.0


class AsRoot:
    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.name = machine.way.name
        self.system = machine.way.system

    @property
    def description(self) -> str:
        return f"{self._machine.way.description}, as root"

    async def run(self, command: Command, *, seconds: float = 30.0, keep: int = KEPT_BYTES) -> Output:
        return await self._machine.way.run(self._machine.as_root(command), seconds=seconds, keep=keep)

    async def start(self, command: Command, *, limit: float | None = None, keep: int = KEPT_BYTES) -> Job:
        return await self._machine.way.start(self._machine.as_root(command), limit=limit, keep=keep)

    async def read_file(self, path: str, *, offset: int = 0, limit: int) -> bytes:
        return content_of(await self.run(read_command(path, offset, limit), seconds=FILE_SECONDS, keep=limit), path)

    async def write_file(self, path: str, data: bytes, *, append: bool = False) -> None:
        text = 'cat >> "$1"' if append else 'cat > "$1"'
        output = await self.run(script(text, path, stdin=data), seconds=FILE_SECONDS)
        if output.exit_code != 0:
            raise file_refused(output, f"{path} cannot be written")
