"""Server-sent events: the names of what has changed, so that a page fetches those parts again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import StreamingResponse

from quorate.problems import Problem
from quorate.state.runs import RunState
from quorate.state.store import StateUnavailable
from quorate.surfaces.web.console.person import Person
from quorate.surfaces.web.console.templates import HEADERS

if TYPE_CHECKING:
    from quorate.surfaces.web.console.console import Console

MOST_RUNS = 20
INTERVAL = 1.0
"""Seconds between looks at the store, each of which is a few short queries."""
LONGEST = 15 * 60.0
"""How long a stream lasts. Then the browser reconnects, and its session is checked from the start."""
CHECK_EVERY = 5
"""Looks between two checks that the session still exists and its token is valid."""


class Events:
    def __init__(self, console: Console) -> None:
        self._console = console

    async def stream(self, request: Request) -> StreamingResponse:
        person = self._console.person(request)
        return StreamingResponse(self._lines(request, person), media_type="text/event-stream", headers=HEADERS)

    async def _lines(self, request: Request, person: Person) -> AsyncIterator[str]:
        known: dict[str, str] = {}
        yield "retry: 3000\n\n"
        for turn in range(int(LONGEST / INTERVAL)):
            if turn % CHECK_EVERY == 0 and not await self._still_valid(request):
                yield "event: ended\ndata: log in again\n\n"
                return
            found = await self._states(person)
            for name, state in found.items():
                if known.get(name, state) != state:
                    yield f"event: {name}\ndata: changed\n\n"
            known |= found
            await asyncio.sleep(INTERVAL)

    async def _still_valid(self, request: Request) -> bool:
        try:
            session = await self._console.session_of(request)
            return session is not None and await self._console.is_valid(session)
        except StateUnavailable:
            return True  # then changes cannot be seen either; every part is checked when the page fetches it

    async def _states(self, person: Person) -> dict[str, str]:
        """A text for each part that differs when the part does."""
        services = self._console.services
        found: dict[str, str] = {}
        with contextlib.suppress(Problem):
            runs = await services.runs.list(tuple(RunState), limit=MOST_RUNS)
            found["activity"] = " ".join(f"{run.id}@{run.changed}" for run in runs if person.reaches(run.cluster))
            findings = await services.findings.open()
            found["findings"] = " ".join(
                f"{one.id}@{one.severity}@{one.acknowledged_at}@{one.silenced_until}" for one in findings
            )
            found["freeze"] = str(await services.freeze.state())
            if person.is_operator:
                rows = await services.approvals.list()
                found["approvals"] = " ".join(row.id for row in rows if person.reaches(row.cluster))
        return found
