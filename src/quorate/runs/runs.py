"""The runs of a server: control them, and continue them in the background."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from quorate.config import Access
from quorate.operations.registry import find_operation
from quorate.pipeline.caller import ALL_TOOLSETS, Exchange
from quorate.pipeline.pipeline import Pipeline, Result
from quorate.problems import Problem
from quorate.runs.start import is_within
from quorate.runs.store import NOBODY, WORKABLE, Run, RunState, RunStore
from quorate.runs.worker import Worker
from quorate.state.tokens import Tokens

LOOK_SECONDS = 2.0
AT_ONCE = 20
"""Runs that one process continues at the same time."""
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MissingRequirement:
    """What a run needs and this process lacks: an access level, or its cluster if `needed` is None."""

    needed: Access | None
    cluster: str
    """The cluster that is not configured, or whose own level it is; empty if it is the general one."""


class Runs:
    def __init__(self, pipeline: Pipeline, store: RunStore, tokens: Tokens) -> None:
        self._pipeline = pipeline
        self.store = store
        self._tokens = tokens
        self._driving: dict[str, asyncio.Task[None]] = {}

    # -- for surfaces ----------------------------------------------------------------------------------------------

    async def get(self, id: str) -> Run:
        return await self.store.get(id)

    async def control(self, id: str, action: Literal["pause", "resume", "abort"], exchange: Exchange) -> Result:
        run = await self.store.get(id)
        cluster = {"cluster": run.cluster} if self._pipeline.sites.several else {}
        return await self._pipeline.run(
            "run_control", {"run": id, "action": action, **cluster}, exchange.with_exposure(ALL_TOOLSETS)
        )

    # -- continuing them -------------------------------------------------------------------------------------------

    async def due(self) -> Sequence[Run]:
        """Runs that this process may continue now and that no other does."""
        return [run for run in await self._find_unattended() if self._lacks(run) is None]

    async def blocked_runs(self) -> Mapping[str, MissingRequirement]:
        """Runs that are due but need something that this process does not have, by id."""
        return {run.id: lack for run in await self._find_unattended() if (lack := self._lacks(run)) is not None}

    async def _find_unattended(self) -> Sequence[Run]:
        now = self.store.clock.time()
        ours = (NOBODY, self.store.owner)
        due = [
            run
            for run in await self.store.list(WORKABLE, limit=1000)
            if run.id not in self._driving and _is_due(run, now)
        ]
        return [run for run in due if run.owner in ours or not await self.store.is_worked_on(run)]

    def _lacks(self, run: Run) -> MissingRequirement | None:
        operation = find_operation(run.tool)
        sites = (
            candidate for candidate in self._pipeline.sites if run.is_of(candidate.name, candidate.backend.endpoints)
        )
        candidate = next(sites, None)
        if candidate is None:
            return MissingRequirement(None, run.cluster)
        if operation is None:
            return None
        gate = candidate.gate(self._pipeline.sites.general)
        needed = gate.access_for(operation.risk)
        return (
            None if gate.access.allows(needed) else MissingRequirement(needed, candidate.name if gate.own_level else "")
        )

    async def work(self) -> Sequence[Run]:
        """Continue everything that is due, until it ends, pauses or has to wait for its time."""
        worked = [run.id for run in await self.due() if await self._start_worker(run)]
        await asyncio.gather(
            *(self._driving[run_id] for run_id in worked if run_id in self._driving), return_exceptions=True
        )
        return [await self.store.get(run_id) for run_id in worked]

    @contextlib.asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """While the server runs, continue what is due. When it ends, steps in progress continue in PVE."""
        looking = asyncio.create_task(self._keep_working())
        try:
            yield
        finally:
            tasks = [looking, *self._driving.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep_working(self) -> None:
        changed = asyncio.Event()
        self.store.on_change = changed.set
        while True:
            changed.clear()
            try:
                for run in sorted(await self.due(), key=lambda run: run.created)[: AT_ONCE - len(self._driving)]:
                    await self._start_worker(run)
            except Problem as problem:
                _LOG.warning("Runs cannot be continued now: %s", problem)
            except Exception as error:  # noqa: BLE001 (an internal defect must not end the loop)
                _LOG.error("%s", self._pipeline.trace_of(error, {}))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await changed.wait()

    async def _start_worker(self, run: Run) -> bool:
        claimed = await self.store.claim(run)
        if claimed is None:
            return False
        worker = Worker(self._pipeline, self.store, self._tokens, claimed.id)
        task = asyncio.create_task(self._drive(worker))
        self._driving[claimed.id] = task
        task.add_done_callback(lambda _: self._driving.pop(claimed.id, None))
        return True

    async def _drive(self, worker: Worker) -> None:
        try:
            await worker.drive()
        except Problem as problem:
            _LOG.warning("The run %s stops here: %s", worker.id, problem)
        except Exception as error:  # noqa: BLE001 (an internal defect pauses this run, not the others)
            trace = self._pipeline.trace_of(error, {})
            _LOG.error("%s", trace)
            with contextlib.suppress(Problem):
                await worker.pause(f"An internal error: {type(error).__name__}: {error}")


def _is_due(run: Run, now: float) -> bool:
    if run.state is not RunState.WAITING:
        return True
    return now >= run.starts and is_within(run.window, now)
