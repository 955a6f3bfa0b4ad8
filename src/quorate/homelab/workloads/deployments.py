"""Deployments that outlast their call, so that any replica can report their state."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

from quorate.command_secrets import HIDDEN, without_secrets
from quorate.problems import Problem
from quorate.pve.tasks import Report
from quorate.ssh.pool import Pool
from quorate.state.records import Records
from quorate.state.store import Store

SHORTEST_HIDDEN = 5
"""Shorter texts appear in every log."""
_KIND = "deployment"

T = TypeVar("T")


class Deployment:
    """The deployment of one workload on one machine. Stored while it runs, or after an unreported failure."""

    def __init__(self, store: Store, host: str, name: str, hidden: Iterable[str] = ()) -> None:
        """`hidden` are texts that must not be stored: a workload may print its environment before it fails."""
        self._records = Records(store, _KIND, dict[str, Any])
        self._hidden = [text for text in hidden if len(text) >= SHORTEST_HIDDEN]
        self._id = f"{host} {name}"

    async def state(self) -> dict[str, Any]:
        return await self._records.find(self._id) or {}

    async def follow(
        self, begin: Callable[[Report], Awaitable[T]], wait: float, report: Report | None, pool: Pool
    ) -> T | None:
        """The result within `wait`; None if it continues in the background. Canceling the caller does not stop it."""
        progress = _Progress(report)
        work = asyncio.ensure_future(begin(progress.tell))
        try:
            done, _ = await asyncio.wait({work}, timeout=wait)
        except asyncio.CancelledError:
            progress.report = None
            pool.in_background(self._finish(work))
            raise
        progress.report = None
        if done:
            await self.forget()
            return work.result()
        await self._keep({"state": "going on"})
        pool.in_background(self._finish(work))
        return None

    async def _finish(self, work: asyncio.Future[T]) -> None:
        try:
            await work
        except Problem as problem:
            said = [self._redact(str(line)) for line in problem.facts.get("log", ())]
            await self._keep({"state": "failed", "why": self._redact(str(problem)), **({"log": said} if said else {})})
        except asyncio.CancelledError:
            await self._keep({"state": "failed", "why": "The server ended before it was finished."})
            raise
        except Exception:  # a bug: it must not look as if it continued forever
            await self._keep({"state": "failed", "why": "An internal error occurred; see Quorate's log."})
            raise
        else:
            await self.forget()

    def _redact(self, text: str) -> str:
        for secret in self._hidden:
            text = text.replace(secret, HIDDEN)
        return without_secrets(text)

    async def _keep(self, entry: dict[str, Any]) -> None:
        await self._records.keep(self._id, entry)

    async def forget(self) -> None:
        await self._records.forget(self._id)


class _Progress:
    """Progress reports, for as long as the caller waits."""

    def __init__(self, report: Report | None) -> None:
        self.report = report

    async def tell(self, done: float, whole: float | None, line: str) -> None:
        if self.report is not None:
            await self.report(done, whole, line)
