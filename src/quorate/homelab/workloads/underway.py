"""Deployments that outlast the call that began them, so that it can be asked how they stand, in any replica."""

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
"""Shorter texts are words of every log."""
_KIND = "deployment"

T = TypeVar("T")


class Underway:
    """The deployment of one workload at one place. Only one that goes on, or has failed unheard, is kept."""

    def __init__(self, store: Store, place: str, name: str, hidden: Iterable[str] = ()) -> None:
        """`hidden` are texts that must not be kept: a workload may have printed its environment before it failed."""
        self._records = Records(store, _KIND, dict[str, Any])
        self._hidden = [text for text in hidden if len(text) >= SHORTEST_HIDDEN]
        self._id = f"{place} {name}"

    async def told(self) -> dict[str, Any]:
        return await self._records.find(self._id) or {}

    async def followed(
        self, begin: Callable[[Report], Awaitable[T]], wait: float, report: Report | None, pool: Pool
    ) -> T | None:
        """What comes of it within `wait`; None if it goes on by itself. A caller who leaves does not break it off."""
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
            await self._forget()
            return work.result()
        await self._keep({"state": "going on"})
        pool.in_background(self._finish(work))
        return None

    async def _finish(self, work: asyncio.Future[T]) -> None:
        try:
            await work
        except Problem as problem:
            said = [self._cleared(str(line)) for line in problem.facts.get("log", ())]
            await self._keep({"state": "failed", "why": self._cleared(str(problem)), **({"log": said} if said else {})})
        except asyncio.CancelledError:
            await self._keep({"state": "failed", "why": "The server ended before it was done."})
            raise
        except Exception:  # a defect of ours: it must not look as if it went on for ever
            await self._keep({"state": "failed", "why": "Something went wrong inside Quorate; see its log."})
            raise
        else:
            await self._forget()

    def _cleared(self, text: str) -> str:
        for secret in self._hidden:
            text = text.replace(secret, HIDDEN)
        return without_secrets(text)

    async def _keep(self, entry: dict[str, Any]) -> None:
        await self._records.keep(self._id, entry)

    async def _forget(self) -> None:
        await self._records.forget(self._id)


class _Progress:
    """Told as long as somebody waits."""

    def __init__(self, report: Report | None) -> None:
        self.report = report

    async def tell(self, done: float, whole: float | None, line: str) -> None:
        if self.report is not None:
            await self.report(done, whole, line)
