"""Fixtures and settings shared by the simulator's tests."""

import gc

import pytest
from hypothesis import HealthCheck, settings

# The duration of examples depends on the machine, not on the code.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

# Far more than Python's 700: collecting garbage after every few calls takes a twentieth of the time.
gc.set_threshold(50_000)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """For the whole session, so that the tests of a module can share an asynchronous fixture."""
    return "asyncio"
