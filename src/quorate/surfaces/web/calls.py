"""Every tool call passes here: counted, and timed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mcp.server import ServerRequestContext

from quorate.pve.clock import Clock
from quorate.surfaces.web.metrics import Metrics


class CountedCalls:
    """A middleware of the SDK."""

    def __init__(self, metrics: Metrics, clock: Clock, knows: Callable[[str], bool]) -> None:
        self._metrics = metrics
        self._clock = clock
        self._knows = knows

    async def __call__(self, ctx: ServerRequestContext[Any], call_next: Any) -> Any:
        if ctx.method != "tools/call":
            return await call_next(ctx)
        begun = self._clock.monotonic()
        outcome = "interrupted"
        self._metrics.running += 1
        try:
            result = await call_next(ctx)
            outcome = _outcome(result)
            return result
        except Exception:
            outcome = "refused"
            raise
        finally:
            self._metrics.running -= 1
            self._metrics.called(self._tool(ctx), outcome, self._clock.monotonic() - begun)

    def _tool(self, ctx: ServerRequestContext[Any]) -> str:
        """Names come from callers: only known ones become labels, or anyone could fill the memory."""
        name = str((ctx.params or {}).get("name"))
        return name if self._knows(name) else "unknown"


def _outcome(result: Any) -> str:
    """From the wire form of the answer."""
    if isinstance(result, dict) and result.get("resultType") == "input_required":
        return "asked"
    return "error" if isinstance(result, dict) and result.get("isError") else "ok"
