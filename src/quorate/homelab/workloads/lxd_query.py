"""The API of LXD and Incus by their own command, where nothing leads to their socket."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

import msgspec

from quorate.homelab.machines import Machine
from quorate.homelab.workloads.unix_http import Answer
from quorate.inside.way import Command
from quorate.problems import Refused, ServerFailed

MOST = 1024 * 1024


class LxdQuery:
    """Calls as a UnixSocket does; what it sends stands on a command line, so it takes nothing that may be a secret."""

    def __init__(self, machine: Machine, program: str) -> None:
        self._machine = machine
        self._program = program
        self.path = f"the command {program}"
        self.by = "query"

    async def call(self, method: str, path: str, body: Any = None, *, seconds: float = 30.0) -> Answer:
        data = () if body is None else ("--data", msgspec.json.encode(body).decode())
        if any('"environment.' in one for one in data):
            raise Refused(
                "The environment would stand on a command line over there, for everybody to read",
                next_step="Install curl there, or leave env out",
            )
        argv = (self._program, "query", "--raw", "--request", method, *data, path)
        if path.endswith("/console"):  # no JSON, and `query` shows nothing else
            argv = (self._program, "console", unquote(path.split("/")[-2]), "--show-log")
        output = await self._machine.way.run(self._machine.as_root(Command(argv)), seconds=seconds + 5.0, keep=MOST)
        if output.exit_code == 0 and argv[1] == "console":
            return Answer(200, output.stdout.partition(b"Console log:")[2].strip())
        if output.exit_code == 0:
            return Answer(200, output.stdout, output.stdout_cut)
        said = output.stderr.decode("utf-8", "replace").strip().removeprefix("Error: ")[-500:]
        if not said:
            raise ServerFailed(f"{self._program} query failed", why=f"It ended with exit code {output.exit_code}")
        status = 404 if "not found" in said.lower() else 409 if "already exists" in said else 500
        return Answer(status, msgspec.json.encode({"type": "error", "error": said}))
