"""An event loop that reads and writes the state of a server itself instead of handing each line to a thread."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

from quorate.state import trail_file

_QUICK = {trail_file.TrailFile._ensure_room.__qualname__, trail_file._append.__qualname__}
"""What never waits for a lock."""


class QuickStateLoop(asyncio.SelectorEventLoop):
    """Files in memory answer at once, and threads that take turns are a seventh of a test.

    The answer still comes in the next turn of the loop, so that others run in between. tests/state and tests/journal
    use threads as the product does.
    """

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        if not _is_state(executor, func):
            return super().run_in_executor(executor, func, *args)
        future: asyncio.Future[Any] = self.create_future()
        try:
            answer = func(*args)
        except Exception as error:  # noqa: BLE001 (it is passed on)
            self.call_soon(_deliver, future, future.set_exception, error)
        else:
            self.call_soon(_deliver, future, future.set_result, answer)
        return future


def _is_state(executor: Executor | None, func: Callable[..., Any]) -> bool:
    if isinstance(executor, ThreadPoolExecutor):
        return executor._thread_name_prefix == "quorate-state"
    if not isinstance(func, functools.partial) or len(func.args) == 0:  # what asyncio.to_thread makes
        return False
    called = func.args[0]
    return getattr(called, "__module__", "") == trail_file.__name__ and called.__qualname__ in _QUICK


def _deliver(future: asyncio.Future[Any], deliver: Callable[[Any], None], what: Any) -> None:
    if not future.done():  # not canceled in the meantime
        deliver(what)
