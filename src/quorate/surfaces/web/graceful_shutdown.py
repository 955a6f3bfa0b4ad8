"""Graceful shutdown: report it, accept nothing new, let running calls finish, then return their task ids."""

from __future__ import annotations

import asyncio

from starlette.types import Message, Receive


class GracefulShutdown:
    def __init__(self) -> None:
        self.leaving = False
        """Not ready any more; calls are still accepted, because load balancers need a moment to notice."""
        self._closing = asyncio.Event()

    @property
    def closing(self) -> bool:
        """Nothing new is accepted; streams on which a client only listens end."""
        return self._closing.is_set()

    def close(self) -> None:
        self.leaving = True
        self._closing.set()

    def until_closing(self, receive: Receive) -> Receive:
        """For a stream on which the client only listens: closing looks as if the client had disconnected."""

        async def either() -> Message:
            waiting = {asyncio.ensure_future(receive()), asyncio.ensure_future(self._closing.wait())}
            try:
                done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                message = next((result for task in done if isinstance(result := task.result(), dict)), None)
                return message or {"type": "http.disconnect"}
            finally:
                for task in waiting:
                    task.cancel()

        return either
