"""An event loop whose time jumps to the next timer, so that hours pass in milliseconds and every run is the same."""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import selectors
from collections import deque
from collections.abc import Callable
from typing import Any

EPOCH = 1_768_464_000.0


class _Handle:
    """A callback that is due; a twentieth of the work of asyncio's own, which also serves debugging."""

    __slots__ = ("_args", "_callback", "_context")

    def __init__(self, callback: Any, args: Any, context: contextvars.Context | None) -> None:
        self._callback = callback
        self._args = args
        self._context = contextvars.copy_context() if context is None else context  # an empty one counts as false

    def cancel(self) -> None:
        self._callback, self._args = None, ()

    def cancelled(self) -> bool:
        return self._callback is None


class VirtualLoop(asyncio.SelectorEventLoop):
    """Nothing is ever read or written, so there is nothing to select: what is due runs, then time jumps."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: deque[_Handle] = deque()
        self._timers: list[tuple[float, int, _Handle]] = []
        self._numbers = 0
        super().__init__(selectors.SelectSelector())

    def time(self) -> float:
        return self.now

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Any = None) -> Any:  # type: ignore[override]
        if self._closed:  # type: ignore[attr-defined]
            raise RuntimeError("Event loop is closed")
        handle = _Handle(callback, args, context)
        self._due.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any, context: Any = None) -> Any:  # type: ignore[override]
        return self.call_at(self.now + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Callable[..., object], *args: Any, context: Any = None) -> Any:  # type: ignore[override]
        handle = _Handle(callback, args, context)
        self._numbers += 1  # those of the same time run in the order in which they were set
        heapq.heappush(self._timers, (when, self._numbers, handle))
        return handle

    def _run_once(self) -> None:
        due, timers = self._due, self._timers
        while timers and timers[0][2]._callback is None:
            heapq.heappop(timers)
        if not due:
            if not timers:
                raise RuntimeError("everything waits for something that never comes")
            self.now = max(self.now, timers[0][0])
        while timers and timers[0][0] <= self.now:
            due.append(heapq.heappop(timers)[2])
        while due and not self._stopping:  # type: ignore[attr-defined]
            handle = due.popleft()
            if handle._callback is not None:
                handle._context.run(handle._callback, *handle._args)

    async def getaddrinfo(self, *_: Any, **__: Any) -> Any:
        raise OSError("no network in a simulation")


class LoopClock:
    """The loop's time as both the simulator and the product read it."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self._loop = loop

    def now(self) -> float:
        return EPOCH + self._loop.now

    time = monotonic = now

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds))
