"""HTTP to a Unix socket of another machine, such as Docker's.

The SSH server itself opens the socket where it can: that takes no program over there. Where it cannot (the login has no
right to the socket, forwarding is off, the way is pct or the guest agent), curl does it over there, as root. A body
goes over standard input, so that nothing of it shows up in a list of processes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from quorate.homelab.machines import Machine
from quorate.homelab.workloads.http_reading import Response
from quorate.inside.over_ssh import SshWay
from quorate.inside.way import Command, Output
from quorate.problems import NotConfigured, NotFound, OutcomeUnknown, Problem, ServerFailed, TimedOut, Unreachable
from quorate.ssh.pool import Dialled

MOST = 8 * 1024 * 1024
SECONDS = 30.0
GLANCE_SECONDS = 0.5
"""How often it is looked at what curl has brought."""
CHUNK = 64 * 1024
_NO_CURL, _NO_SOCKET = 127, 7
_BROKE_OFF = (18, 28, 52, 55, 56, None)
"""What curl ends with once the request may have been sent; None is a signal."""

Part = Callable[[bytes], Awaitable[None]]
"""Gets the body of an answer piece by piece, as it comes."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes
    cut: bool = False

    def json(self) -> Any:
        if self.cut:
            raise ServerFailed("The answer is too long to be read", why=f"It is longer than {len(self.body)} bytes")
        try:
            return msgspec.json.decode(self.body) if self.body.strip() else None
        except (msgspec.DecodeError, RecursionError):
            raise ServerFailed("The answer is no JSON", why=self.body[:200].decode("utf-8", "replace")) from None


class UnixSocket:
    """A service behind a socket of a machine. Which way leads to it is found out by the first call."""

    def __init__(self, machine: Machine, path: str, *, root: bool = True) -> None:
        self.machine = machine
        self.path = path
        self._root = root
        """Whether curl has to be root; the socket of a user's own engine is that user's."""
        self._direct: bool | None = None if isinstance(machine.way, SshWay) else False

    @property
    def by(self) -> str:
        return "socket" if self._direct else "curl"

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        seconds: float = SECONDS,
        most: int = MOST,
        part: Part | None = None,
    ) -> Answer:
        data = b"" if body is None else body if isinstance(body, bytes) else msgspec.json.encode(body)
        reading = _Reading(Response(most), part)
        try:
            async with asyncio.timeout(seconds):
                stream = await self._dial()
                if stream is not None:
                    await _over(stream, _request(method, path, data), reading, method)
                else:
                    await self._by_curl(method, path, data, seconds, reading)
        except TimeoutError:
            raise _no_answer(f"{self.path} on {self.machine} did not answer within {seconds:g} s", method) from None
        response = reading.response
        return Answer(response.status, bytes(response.body), response.cut)

    async def _dial(self) -> Dialled | None:
        if self._direct is False or not isinstance(self.machine.way, SshWay):
            return None
        try:
            stream = await self.machine.way.dial(self.path)
        except Unreachable:
            if self._direct:
                raise
            self._direct = False
            return None
        self._direct = True
        return stream

    async def _by_curl(self, method: str, path: str, data: bytes, seconds: float, reading: _Reading) -> None:
        argv = ("curl", "--silent", "--show-error", "--include", "--raw", "--http1.1", "--unix-socket", self.path,
                "--max-time", str(int(seconds) + 1), "--request", method, "--header", "Expect:", "--noproxy", "*",
                "--header", "Content-Type: application/json", *(("--data-binary", "@-") if data else ()),
                "--globoff", f"http://localhost{path}")  # fmt: skip
        command = Command(argv, stdin=data)
        if self._root:
            command = self.machine.as_root(command)
        job = await self.machine.way.start(command, limit=seconds + 2, keep=MOST)
        try:
            output = None
            while output is None:
                output = await job.wait(GLANCE_SECONDS)
                if output is None:
                    await reading.catch_up((await job.so_far()).stdout)
            await reading.catch_up(output.stdout)
        except BaseException:
            await job.stop()
            raise
        response = reading.response
        if response.done:
            return
        if output.stdout_cut:
            response.cut = True
        elif output.exit_code == 0 and response.status:
            response.hang_up()
        else:
            raise self._curl_failed(output, method)

    def _curl_failed(self, output: Output, method: str) -> Problem:
        said = output.stderr.decode("utf-8", "replace").strip()[-500:]
        if output.exit_code in _BROKE_OFF:
            return _no_answer(f"The answer of {self.path} on {self.machine} was lost", method, said)
        if output.exit_code == _NO_CURL or "curl: not found" in said or "curl: command not found" in said:
            return NotConfigured(
                f"There is no way to {self.path} on {self.machine}",
                why="The SSH server does not open it for this login, and there is no curl over there",
                next_step="Install curl there, or log in as a user who may open the socket",
            )
        if output.exit_code == _NO_SOCKET:
            return NotFound(
                f"Nobody listens on {self.path} of {self.machine}", next_step="Is the service started there?"
            )
        return Unreachable(
            f"{self.path} on {self.machine} cannot be opened",
            why=f"It said: {said}" if said else f"curl ended with exit code {output.exit_code}",
            next_step="It takes root, or a sudo_password of the host",
        )


class _Reading:
    """Takes the raw bytes of an answer, whether they come piece by piece or as all that there is so far."""

    def __init__(self, response: Response, part: Part | None) -> None:
        self.response = response
        self._part = part
        self._seen = 0

    async def catch_up(self, so_far: bytes) -> None:
        fresh = so_far[self._seen :]
        self._seen = len(so_far)
        await self.take(fresh)

    async def take(self, data: bytes) -> None:
        body = self.response.feed(data)
        if body and self._part is not None and self.response.status < 400:
            await self._part(body)


async def _over(stream: Dialled, request: bytes, reading: _Reading, method: str) -> None:
    try:
        await stream.write(request)
        while not reading.response.done:
            data = await stream.read(CHUNK)
            if data:
                await reading.take(data)
                continue
            try:
                reading.response.hang_up()
            except ServerFailed as problem:
                raise _no_answer("The answer was lost", method, problem.why) from None
    finally:
        stream.close()


def _no_answer(what: str, method: str, why: str | None = None) -> Problem:
    """A change of which nothing was heard may have happened."""
    if method == "GET":
        return TimedOut(what, why=why)
    return OutcomeUnknown(what, why=why, next_step="Whether it was done is not known: look before you repeat it")


def _request(method: str, path: str, data: bytes) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", "Connection: close"]
    if data or method != "GET":
        lines += ["Content-Type: application/json", f"Content-Length: {len(data)}"]
    return "\r\n".join([*lines, "", ""]).encode("ascii") + data
