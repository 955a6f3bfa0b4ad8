"""Every tool call as its result shows it: one line in the log, and a count for those who observe."""

from __future__ import annotations

from typing import Any, Protocol

from mcp.server import ServerRequestContext

from quorate.log import CallRecord, record_call
from quorate.pve.connection import Clock


class CallObserver(Protocol):
    """Is notified of each call, such as metrics."""

    def start_call(self) -> None: ...

    def end_call(self, call: CallRecord) -> None: ...


class CallLog:
    """Middleware of the SDK that times tool calls and classifies their results."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.observers: list[CallObserver] = []

    async def __call__(self, ctx: ServerRequestContext[Any], call_next: Any) -> Any:
        if ctx.method != "tools/call":
            return await call_next(ctx)
        for observer in self.observers:
            observer.start_call()
        call = CallRecord(str((ctx.params or {}).get("name")))
        try:
            with record_call(call, self._clock.monotonic):
                try:
                    result = await call_next(ctx)
                except Exception:
                    call.outcome = "refused"
                    raise
                call.outcome = _outcome(result)
                return result
        finally:
            for observer in self.observers:
                observer.end_call(call)


def _outcome(result: Any) -> str:
    """The outcome, from the wire form of the result."""
    if isinstance(result, dict) and result.get("resultType") == "input_required":
        return "asked"
    return "error" if isinstance(result, dict) and result.get("isError") else "ok"
