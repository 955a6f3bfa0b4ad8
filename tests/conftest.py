"""What all tests share."""

import gc
import itertools
import os

import pytest

_homes = itertools.count()


def pytest_collection_finish() -> None:
    """Thousands of tests and what they import stay to the end: no search for garbage need look at them again."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The machine's own settings must not reach a test; its home is a folder that is not there yet."""
    for name in list(os.environ):
        if name.startswith(("PROXMOX_", "QUORATE_")):
            monkeypatch.delenv(name)
    home = tmp_path_factory.getbasetemp() / f"home-{next(_homes)}"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home))
    monkeypatch.setenv("XDG_STATE_HOME", str(home))
