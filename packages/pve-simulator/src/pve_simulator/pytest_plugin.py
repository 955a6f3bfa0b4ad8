"""The pytest plugin: the fixtures `pve` and `async_pve`, a cluster over HTTPS for one test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pve_simulator.background import AsyncBackgroundCluster, BackgroundCluster


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "pve(speed=None, **options): options of the simulated cluster in the fixtures `pve` and `async_pve`, such as "
        'nodes=5, guests=200, version="8.4", faults=["no-quorum"], world="stock", or speed=20 for time that passes on '
        "its own",
    )


@pytest.fixture
def pve(request: pytest.FixtureRequest) -> Iterator[BackgroundCluster]:
    """A simulated Proxmox VE cluster with a token, faults and a clock to turn."""
    from pve_simulator.background import BackgroundCluster  # tests without the fixture do not pay for the import

    with BackgroundCluster(**_options(request)) as cluster:
        yield cluster


@pytest.fixture
def async_pve(request: pytest.FixtureRequest) -> Iterator[AsyncBackgroundCluster]:
    """The same for asynchronous tests, with anyio or pytest-asyncio: `await async_pve.advance(10)`."""
    from pve_simulator.background import AsyncBackgroundCluster

    with AsyncBackgroundCluster(**_options(request)) as cluster:
        yield cluster


def _options(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Those of the marker; a `world` is a file or the name of one that comes with the package."""
    marker = request.node.get_closest_marker("pve")
    options: dict[str, Any] = dict(marker.kwargs) if marker else {}
    if "world" in options:
        from pve_simulator.world_file import load

        options["build"] = load(str(options.pop("world"))).build
    return options
