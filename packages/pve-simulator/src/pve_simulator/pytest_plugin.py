"""The pytest plugin: the fixture `pve`, a cluster over HTTPS for one test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pve_simulator.background import BackgroundCluster


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "pve(speed=None, **options): options of the simulated cluster in the fixture `pve`, such as nodes=5, "
        'guests=200, version="8.4", faults=["no-quorum"], or speed=20 for time that passes on its own',
    )


@pytest.fixture
def pve(request: pytest.FixtureRequest) -> Iterator[BackgroundCluster]:
    """A simulated Proxmox VE cluster with a token, faults and a clock to turn."""
    from pve_simulator.background import BackgroundCluster  # tests without the fixture do not pay for the import

    marker = request.node.get_closest_marker("pve")
    with BackgroundCluster(**(marker.kwargs if marker else {})) as cluster:
        yield cluster
