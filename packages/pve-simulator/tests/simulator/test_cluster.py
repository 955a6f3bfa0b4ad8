"""The cluster: size, certificates, endpoints, and the command."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import socket
import ssl
import sys
import warnings
from hashlib import sha256
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import pytest

from pve_schema.schema import NEWEST, facts
from pve_simulator.api_client import Api, simulated_api
from pve_simulator.clock import ManualClock
from pve_simulator.http.certificates import shared_identity
from pve_simulator.http.routing import all_routes
from pve_simulator.simulator import SimulatedCluster


@pytest.mark.api(nodes=32, guests=5000)
async def test_five_thousand_guests_come_in_one_answer(api: Api) -> None:
    """How long that takes is measured by `make bench`."""
    reply = await api.get("/cluster/resources")
    assert sum(row["type"] in ("qemu", "lxc") for row in reply.data) == 5000
    assert sum(row["type"] == "node" for row in reply.data) == 32
    assert len(reply.text) < 5000 * 500
    assert len(api.cluster.requests) == 1


def test_all_implemented_endpoints_exist_in_pve() -> None:
    table = facts(NEWEST)
    for method, template in all_routes():
        assert table.endpoint(method, template).method == method


async def test_the_certificate_is_trusted_by_name_and_by_fingerprint(api: Api) -> None:
    strict = ssl.create_default_context(cafile=api.cluster.ca_file)
    strict.verify_flags |= ssl.VERIFY_X509_STRICT
    host, port = api.cluster.url.removeprefix("https://").split(":")
    for name in ("127.0.0.1", "localhost", "pve2"):
        _, writer = await asyncio.open_connection(host, int(port), ssl=strict, server_hostname=name)
        shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        assert sha256(shown).digest().hex(":").upper() == api.cluster.fingerprint
        writer.close()
        await writer.wait_closed()
    with pytest.raises(ssl.SSLCertVerificationError):
        await asyncio.open_connection(host, int(port), ssl=strict, server_hostname="elsewhere")


async def test_a_client_that_rejects_the_certificate_does_no_harm() -> None:
    async with simulated_api() as api, aiohttp.ClientSession() as stranger:
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await stranger.get(f"{api.cluster.url}/api2/json/version")
        assert (await api.get("/version")).status == 200


@pytest.mark.api(endpoints=2)
async def test_an_endpoint_can_be_stopped_and_started(api: Api) -> None:
    first, second = api.cluster.urls
    await api.cluster.stop_endpoint(0)
    with pytest.raises(aiohttp.ClientConnectorError):
        await api.request("GET", "/version")
    async with api.session.get(f"{second}/api2/json/version", headers=api.headers) as reply:
        assert reply.status == 200
    await api.cluster.start_endpoint(0)
    assert api.cluster.urls == [first, second]
    assert (await api.request("GET", "/version")).status == 200


async def test_nothing_is_left_behind() -> None:
    async with simulated_api() as api:
        directory = Path(api.cluster.ca_file).parent
        assert directory.exists()
        await api.post("/nodes/pve1/qemu/108/status/start")
    assert not directory.exists()
    assert api.cluster.world.tasks.active() == []


async def test_running_alone_prints_how_to_reach_it_and_ends_on_a_signal() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "pve_simulator",
        "--nodes",
        "1",
        "--guests",
        "1",
        stdout=asyncio.subprocess.PIPE,
        env=dict(os.environ),
    )
    assert process.stdout is not None
    ready = json.loads(await process.stdout.readline())
    assert set(ready) == {"url", "ca_file", "fingerprint", "token_id", "token_secret", "node"}
    assert os.path.exists(ready["ca_file"])  # noqa: ASYNC240
    process.send_signal(signal.SIGTERM)
    assert await process.wait() == 0
    assert not os.path.exists(ready["ca_file"])  # noqa: ASYNC240


async def test_a_manual_clock_wakes_sleepers_in_order() -> None:
    clock, seen = ManualClock(), []

    async def sleeper(name: str, *naps: float) -> None:
        for nap in naps:
            await clock.sleep(nap)
            seen.append((name, clock.now()))

    started = clock.now()
    tasks = [asyncio.ensure_future(sleeper("a", 2, 2)), asyncio.ensure_future(sleeper("b", 3))]
    await clock.advance(10)
    assert [(name, when - started) for name, when in seen] == [("a", 2), ("b", 3), ("a", 4)]
    assert clock.now() == started + 10
    await asyncio.gather(*tasks)


def open_and_stop(turns: int, first_bytes: bytes) -> list[str]:
    """What Python reports as left open if the cluster stops some turns of its loop after a client connected."""

    async def serve() -> socket.socket:
        async with SimulatedCluster(clock=ManualClock(), identity=shared_identity) as sim:
            client = socket.create_connection(("127.0.0.1", urlsplit(sim.url).port))
            client.sendall(first_bytes)
            for _ in range(turns):
                await asyncio.sleep(0)
        return client

    with warnings.catch_warnings(record=True) as reports:
        warnings.simplefilter("always", ResourceWarning)
        asyncio.run(serve()).close()
        gc.collect()
    return [str(report.message) for report in reports if report.category is ResourceWarning]


@pytest.mark.parametrize("first_bytes", [b"", b"\x16"], ids=["silent", "in its handshake"])
def test_a_cluster_that_stops_while_a_client_connects_leaves_no_connection_open(first_bytes: bytes) -> None:
    assert [open_and_stop(turns, first_bytes) for turns in range(8)] == [[]] * 8
