"""An event loop for calls that never leave the process."""

from __future__ import annotations

import asyncio
import selectors
import socket
from typing import Any


class _Selector(selectors.DefaultSelector):
    """Asks the kernel only when there is nothing else to do: a driven clock makes a thousand turns for every call."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return [] if timeout is not None and timeout <= 0 else super().select(timeout)


class InnerLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        super().__init__(_Selector())

    async def getaddrinfo(self, host: Any, port: Any, **more: Any) -> Any:
        """No name is looked up, whatever a caller writes."""
        return await super().getaddrinfo(host, port, **{**more, "flags": socket.AI_NUMERICHOST})
