"""A cluster in a thread of its own, for tests and clients that block: the pytest fixture `pve` is one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self, TypeVar

from pve_simulator.clock import ManualClock, RealClock
from pve_simulator.faults import Fault
from pve_simulator.http.certificates import shared_identity
from pve_simulator.simulator import SimulatedCluster
from pve_simulator.world import World

_PATIENCE = 60.0
"""Real seconds within which the cluster's thread must answer."""

T = TypeVar("T")


class ClusterThread:
    """A cluster in a thread: what both kinds of fixtures have in common."""

    def __init__(self, *, speed: float | None = None, **options: Any) -> None:
        if speed is not None and "clock" in options:
            raise ValueError("a cluster has either a speed or a clock")
        clock = ManualClock() if speed is None else RealClock(speed)
        self.cluster = SimulatedCluster(**{"clock": clock, "auth_delay": 0.0, "identity": shared_identity, **options})
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        return self.cluster.url

    @property
    def host(self) -> str:
        """HOST:PORT, for clients that take no URL."""
        return self.cluster.url.removeprefix("https://")

    @property
    def ca_file(self) -> str:
        return self.cluster.ca_file

    @property
    def fingerprint(self) -> str:
        return self.cluster.fingerprint

    @property
    def token_id(self) -> str:
        """The id of a token with all privileges, such as user@realm!name."""
        return self.cluster.token_id

    @property
    def token_secret(self) -> str:
        return self.cluster.token_secret

    @property
    def authorization(self) -> str:
        """The value of the header `Authorization` for this token."""
        return f"PVEAPIToken={self.token_id}={self.token_secret}"

    @property
    def world(self) -> World:
        """Everything the cluster consists of. Change it with `call`, between two requests."""
        return self.cluster.world

    @property
    def requests(self) -> list[tuple[str, str]]:
        """Method and path of every request so far."""
        return list(self.cluster.requests)

    def _manual_clock(self) -> ManualClock:
        clock = self.cluster.clock
        if not isinstance(clock, ManualClock):
            raise TypeError("this cluster's time passes on its own; start it without `speed` to turn the clock")
        return clock

    def _submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        assert self._loop is not None, "the cluster runs in a `with` block"
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def _await(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._submit(coroutine).result(_PATIENCE)

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="pve-simulator", daemon=True)
        self._thread.start()
        try:
            self._await(self.cluster.__aenter__())
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._await(self.cluster.__aexit__(kind, error, trace))
        finally:
            self._end()

    def _end(self) -> None:
        assert self._loop is not None
        assert self._thread is not None
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_PATIENCE)
        self._loop.close()


class BackgroundCluster(ClusterThread):
    """Starts a cluster, and stops it at the end of a `with` block.

    Its time does not move until `advance`; with `speed`, it passes on its own instead, that many times as fast as real
    time. The other options are those of `SimulatedCluster`, here without the delay of refused logins.
    """

    def add_fault(self, text: str) -> Fault:
        """Inject a fault, such as `no-quorum`, `595:GET:/nodes/*` or `task-fails:vzdump:job errors`."""
        return self.call(self.cluster.faults.add, text)

    def remove_fault(self, fault: Fault) -> None:
        self.call(self.cluster.faults.remove, fault)

    def advance(self, seconds: float) -> None:
        """Turn the clock: everything that is due by then has happened afterwards."""
        self._await(self._manual_clock().advance(seconds))

    def reset(self, build: Callable[[World], None] | None = None) -> None:
        """Start over at the same address, with the first world or another one."""
        self._await(self.cluster.reset(build))

    def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function in the cluster's thread, where nothing else runs in the meantime."""
        return self._await(_call(function, *arguments))


class AsyncBackgroundCluster(ClusterThread):
    """The same for tests on an event loop of asyncio: what changes the cluster is awaited and never blocks the loop."""

    async def add_fault(self, text: str) -> Fault:
        return await self.call(self.cluster.faults.add, text)

    async def remove_fault(self, fault: Fault) -> None:
        await self.call(self.cluster.faults.remove, fault)

    async def advance(self, seconds: float) -> None:
        await asyncio.wrap_future(self._submit(self._manual_clock().advance(seconds)))

    async def reset(self, build: Callable[[World], None] | None = None) -> None:
        await asyncio.wrap_future(self._submit(self.cluster.reset(build)))

    async def call(self, function: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.wrap_future(self._submit(_call(function, *arguments)))


async def _call(function: Callable[..., T], *arguments: Any) -> T:
    return function(*arguments)
