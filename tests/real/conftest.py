"""The laboratory for the tests in this folder; lab.py and homelab.py tell what is in it. `make real` runs them.

Elsewhere they are skipped and say why: `pytest tests/real` alone has no namespaces of its own to work in.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real import needs
from tests.real.__main__ import HOSTS, IMAGES
from tests.real.homelab import HomelabLab
from tests.real.lab import Lab

_FOLDER = Path("/run/lab/machines")
_HOMELAB = Path("/run/lab/homelab")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if IMAGES in os.environ:
        return
    reason = needs.problem() or "they run in namespaces of their own: make real"
    for item in items:
        if item.nodeid.startswith("tests/real/"):
            item.add_marker(pytest.mark.skip(reason=f"the tests with real machines: {reason}"))


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    _FOLDER.mkdir()
    laboratory = Lab(_FOLDER, Path(os.environ[IMAGES]))
    try:
        laboratory.set_up()
        yield laboratory
    finally:
        laboratory.close()


@pytest.fixture(scope="session")
def homelab() -> Iterator[HomelabLab]:
    _HOMELAB.mkdir()
    hosts = HomelabLab(_HOMELAB, Path(os.environ[HOSTS]))
    try:
        hosts.set_up()
        yield hosts
    finally:
        hosts.close()
