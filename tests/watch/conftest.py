"""A server that watches a simulated cluster, all in memory and on one manual clock."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from quorate.config.watch import WatchSettings
from quorate.watch.watch import Watch
from tests.rigs.mcp_session import Rig, rig


class Watched:
    """A rig and its watch."""

    def __init__(self, quorate: Rig) -> None:
        self.quorate = quorate
        assert quorate.app.watch is not None
        self.watch: Watch = quorate.app.watch

    async def cycle(self, count: int = 1, every: float = 60.0) -> None:
        """Let time pass, then look, as often as wanted."""
        for _ in range(count):
            await self.quorate.clock.advance(every)
            await self.watch.cycle()

    async def kinds(self) -> set[str]:
        return {finding.kind for finding in await self.watch.findings()}

    async def rows(self, **arguments: Any) -> list[dict[str, Any]]:
        return await self.quorate.rows("finding_list", **arguments)


@asynccontextmanager
async def watching(tmp_path: Path, settings: WatchSettings | None = None, **options: Any) -> AsyncIterator[Watched]:
    usual = {"toolsets": ("all", "homelab"), "in_memory": True}
    more = {"watch": settings or WatchSettings(), **options.pop("more", {})}
    async with rig(tmp_path, more=more, **{**usual, **options}) as quorate:
        yield Watched(quorate)


@pytest.fixture
async def watched(tmp_path) -> AsyncIterator[Watched]:
    async with watching(tmp_path) as session:
        yield session
