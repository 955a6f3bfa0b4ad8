"""Servers that can die at any await, and the store and trail that outlive them."""

from __future__ import annotations

import asyncio
import contextvars
import random
import sqlite3
from collections.abc import AsyncIterator, Coroutine, Generator, Iterable, Mapping
from functools import cache
from typing import Any

import aiohttp
import yarl
from aiohttp.web import StreamResponse

from pve_simulator.api_client import Request
from quorate.app import LOOPBACK, App, build
from quorate.config import Access, Approval, ClusterSettings, Settings
from quorate.config.homelab import HomelabSettings
from quorate.pve.connection import Connection, Secret, Token, Trust
from quorate.ssh.settings import Login, SshSettings
from quorate.state.chain import Link, first_link, link_entry
from quorate.state.schema import statements_since
from quorate.state.store import Row, Store
from quorate.state.trail import AuditTrail
from tests.rigs.in_memory_wire import Handler, _Response
from tests.simulation.faultiness import Faultiness
from tests.simulation.lab import HOST, TOKEN, Lab
from tests.simulation.loop import LoopClock
from tests.simulation.shells import MemoryPool

CURRENT: contextvars.ContextVar[Replica | None] = contextvars.ContextVar("replica", default=None)


@cache
def _empty_tables() -> bytes:
    """The image of a new database, which is copied a hundred times faster than created."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    for statement in statements_since(0, "memory"):
        connection.execute(statement)
    return connection.serialize()


class Disk:
    """What survives a crash: the tables and the trail."""

    def __init__(self) -> None:
        self.connection = sqlite3.connect(":memory:", isolation_level=None)
        self.connection.row_factory = sqlite3.Row
        self.connection.deserialize(_empty_tables())
        self.lines: list[bytes] = []
        self.head: Link = first_link()
        self.holders: dict[str, Replica] = {}


class Replica:
    """One server process. `left` awaits from now it dies, and nothing of it runs again."""

    def __init__(self, name: str, disk: Disk) -> None:
        self.name = name
        self.disk = disk
        self.dead = False
        self.left: int | None = None
        self.asleep: list[Any] = []

    def pass_await(self) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left <= 0:
                self.dead = True

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        context = contextvars.copy_context()
        context.run(CURRENT.set, self)
        return asyncio.get_running_loop().create_task(work, context=context)


class _Mortal(Coroutine[Any, Any, Any]):
    """A coroutine of a replica: its every suspension is a moment at which the replica may die."""

    def __init__(self, work: Coroutine[Any, Any, Any] | Generator[Any, Any, Any], replica: Replica) -> None:
        self._work = work
        self._replica = replica

    def send(self, value: Any) -> Any:
        if self._replica.dead:
            return self._never()
        yielded = self._work.send(value)
        self._replica.pass_await()
        return yielded

    def throw(self, *error: Any) -> Any:
        if self._replica.dead:
            return self._never()
        yielded = self._work.throw(*error)
        self._replica.pass_await()
        return yielded

    def _never(self) -> Any:
        self._replica.asleep.append(self._work)  # its `finally` must not run
        never = asyncio.get_running_loop().create_future()
        never._asyncio_future_blocking = True
        return never

    def close(self) -> None: ...

    def __await__(self) -> Any:
        return self._work.__await__()  # type: ignore[union-attr]


def task_factory(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
    context = options.get("context")
    replica = context.get(CURRENT) if context is not None else CURRENT.get()
    task = asyncio.Task(work if replica is None else _Mortal(work, replica), loop=loop, **options)
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    return task


class MemoryDatabase:
    """The tables as one replica reaches them; a crash before or after a statement is possible, not within one."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._disk = replica.disk

    async def execute(self, statement: str, *values: Any) -> int:
        await asyncio.sleep(0)
        changed = self._disk.connection.execute(statement, _by_name(values)).rowcount
        await asyncio.sleep(0)
        return changed

    async def fetch(self, statement: str, *values: Any) -> list[Row]:
        await asyncio.sleep(0)
        return [dict(row) for row in self._disk.connection.execute(statement, _by_name(values)).fetchall()]

    async def hold(self, name: str) -> None:
        self._disk.holders[name] = self._replica

    async def is_held(self, name: str) -> bool:
        holder = self._disk.holders.get(name)
        return holder is not None and not holder.dead

    async def close(self) -> None: ...


def _by_name(values: tuple[Any, ...]) -> dict[str, Any]:
    return {str(number): value for number, value in enumerate(values, 1)}


class MemoryStore(Store):
    def __init__(self, replica: Replica) -> None:
        super().__init__(":memory:", clock=LoopClock())
        self._database = MemoryDatabase(replica)

    @property
    def exists(self) -> bool:
        return True


class MemoryTrail:
    place = name = "memory"

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    async def ensure_writable(self) -> None: ...

    async def append(self, entry: Mapping[str, Any]) -> None:
        await asyncio.sleep(0)
        line, self._disk.head = link_entry(entry, self._disk.head)
        self._disk.lines.append(line)
        await asyncio.sleep(0)

    async def read_all(self) -> tuple[AsyncIterator[bytes], Link | None]:
        return _each(self._disk.lines), self._disk.head

    def newest_first(self) -> AsyncIterator[bytes]:
        return _each(self._disk.lines[::-1])


async def _each(lines: list[bytes]) -> AsyncIterator[bytes]:
    for line in lines:
        yield line


class FaultyWire:
    """Takes the place of the client's HTTP session. The cluster answers even if the replica dies while it waits."""

    def __init__(self, handler: Handler, chance: random.Random, faults: Faultiness) -> None:
        self._handler = handler
        self._chance = chance
        self._faults = faults

    def request(
        self, method: str, url: yarl.URL, *, data: bytes | None, headers: Mapping[str, str], **_: Any
    ) -> _Exchange:
        return _Exchange(self, Request(method, url.raw_path_qs, headers, data or b""))

    async def send(self, request: Request) -> _Response:
        fate = self._chance.random() if self._faults.active else 1.0
        await asyncio.sleep(self._chance.random() * 0.05)
        if fate < self._faults.before:
            raise aiohttp.ClientConnectorError(None, OSError(111, "Connection refused"))  # type: ignore[arg-type]
        answering = asyncio.get_running_loop().create_task(self._answer(request), context=contextvars.Context())
        response = await asyncio.shield(answering)
        await asyncio.sleep(self._chance.random() * 0.05)
        if fate < self._faults.before + self._faults.after:
            raise aiohttp.ServerDisconnectedError
        return _Response(request.method, response)

    async def _answer(self, request: Request) -> StreamResponse:
        return await self._handler(request)

    async def ws_connect(self, *_: Any, **__: Any) -> Any:
        await asyncio.sleep(0)
        raise aiohttp.ClientConnectionError("consoles are not carried in memory")

    async def close(self) -> None: ...


class _Exchange:
    """One request and its answer, as the client's `async with`."""

    def __init__(self, wire: FaultyWire, request: Request) -> None:
        self._wire = wire
        self._request = request

    async def __aenter__(self) -> _Response:
        return await self._wire.send(self._request)

    async def __aexit__(self, *_: object) -> None: ...


def start(replica: Replica, labs: Iterable[Lab], chance: random.Random, faults: Faultiness) -> App:
    """The app of a replica. Call it within the replica's context."""
    nowhere = SshSettings(networks=LOOPBACK)
    settings = Settings(
        clusters=tuple(_cluster(lab) for lab in labs),
        access=Access.ADMIN,
        approval=Approval.NONE,
        toolsets=("all",),
        homelab=HomelabSettings(ssh=nowhere, networks=LOOPBACK),
    )
    app = build(settings, clock=LoopClock(), store=MemoryStore(replica), audit=AuditTrail(MemoryTrail(replica.disk)))
    for lab, site in zip(labs, app.pipeline.sites, strict=True):
        site.cluster.client._session = FaultyWire(lab.handler, chance, faults)  # type: ignore[assignment]
        site.cluster.ssh.pool = MemoryPool(lab.world, lab.ssh_hosts, chance, faults)
    return app


def _cluster(lab: Lab) -> ClusterSettings:
    connection = Connection((f"https://{HOST}:{lab.port}",), Token(TOKEN[0], Secret(TOKEN[1])), Trust())
    ssh = SshSettings(Login(user="root"), lab.ssh_hosts, networks=LOOPBACK)
    return ClusterSettings(lab.name, connection, ssh=ssh)
