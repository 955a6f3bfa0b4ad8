"""Fixtures and settings shared by the simulator's tests."""

import gc
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from pve_simulator.api_client import Api, simulated_api

# The duration of examples depends on the machine, not on the code.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

# Far more than Python's 700: collecting garbage after every few calls takes a twentieth of the time.
gc.set_threshold(50_000)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """For the whole session, so that the tests of a module can share an asynchronous fixture."""
    return "asyncio"


@pytest.fixture
async def api(request: pytest.FixtureRequest) -> AsyncIterator[Api]:
    """A client with all privileges for a cluster of its own; `@pytest.mark.api(ssh=True)` gives the cluster options."""
    marker = request.node.get_closest_marker("api")
    async with simulated_api(**(marker.kwargs if marker else {})) as api:
        yield api


Figure = Callable[[str, Sequence[Any]], None]


@pytest.fixture
def figure(record_property: Callable[[str, object], None]) -> Figure:
    """Note how many of these outcomes agree with PVE; packages/conftest.py shows it."""

    def note(what: str, outcomes: Sequence[Any]) -> None:
        agreed = sum(outcome.agrees for outcome in outcomes)
        record_property(
            "fidelity", f"{agreed} of {len(outcomes)} {what} ({agreed / len(outcomes):.1%}) are as on a real PVE"
        )

    return note
