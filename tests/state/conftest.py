"""Stores for the tests of the state: each test runs with SQLite and with PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from quorate.state.store import Store, open_store
from tests.rigs.manual_clock import HandClock
from tests.rigs.postgres import postgres, postgres_server

__all__ = ["postgres", "postgres_server"]


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture(params=["sqlite", "postgres"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "state" / "quorate.db")
    location: str = request.getfixturevalue("postgres")
    return location


@pytest.fixture
async def store(anyio_backend: str, location: str, clock: HandClock) -> AsyncIterator[Store]:
    async with open_store(location, clock=clock) as opened:
        yield opened


@pytest.fixture
async def replica(anyio_backend: str, location: str, clock: HandClock) -> AsyncIterator[Store]:
    """Another server on the same state."""
    async with open_store(location, clock=clock) as opened:
        yield opened
