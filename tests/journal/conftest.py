"""A real PostgreSQL for replicas, where its binaries are there."""

import pytest

from tests.rigs.postgres import postgres, postgres_server

__all__ = ["postgres", "postgres_server"]


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """With threads, as the product uses them."""
    return "asyncio"
