"""The client of the PVE API against real HTTPS: credentials, trust, failover, retries, limits."""

import asyncio
import gc
import socket
import ssl
import warnings
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from pve_simulator.clock import ManualClock
from pve_simulator.simulator import SimulatedCluster
from quorate.app import simulated_cluster
from quorate.problems import (
    AuthenticationFailed,
    NodeOffline,
    NotFound,
    OutcomeUnknown,
    ServerFailed,
    TimedOut,
    Unreachable,
)
from quorate.pve.client import PveClient
from quorate.pve.connection import Connection, Limits, Password, Secret, Token, Trust
from quorate.pve.trust import presented_fingerprint
from tests.rigs.certificates import Authority
from tests.rigs.mcp_session import DrivenTime

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def client_of(*, change=lambda connection: connection, **simulator):
    clock = ManualClock()
    async with SimulatedCluster(clock=clock, **{"auth_delay": 0.0, **simulator}) as sim:
        client = PveClient(change(simulated_cluster(sim).connection), clock=DrivenTime(clock))
        try:
            yield client, sim
        finally:
            await client.close()


async def test_a_pinned_fingerprint_is_enough_to_trust_a_server():
    async with SimulatedCluster(clock=ManualClock()) as sim:
        trust = Trust(fingerprint=sim.fingerprint)
        client = PveClient(replace(simulated_cluster(sim).connection, trust=trust))
        assert (await client.get("/version"))["version"]
        await client.close()


async def test_verification_is_off_only_on_request():
    async with client_of(change=lambda connection: replace(connection, trust=Trust(verify=False))) as (client, _):
        assert (await client.get("/version"))["version"]


def by_password(sim_password="quorate"):
    return lambda connection: replace(connection, credentials=Password("root@pam", Secret(sim_password)))


async def test_a_password_logs_in_once_and_writes_carry_the_csrf_token():
    async with client_of(change=by_password()) as (client, sim):
        sim.world.access.users["root@pam"].password = "quorate"
        await client.get("/nodes")
        guest = next(guest for guest in sim.world.guests.values() if guest.kind == "lxc" and not guest.running)
        upid = (await client.request("POST", f"/nodes/{guest.node}/lxc/{guest.vmid}/status/start")).data
        assert upid.startswith("UPID:")
        assert sim.requests.count(("POST", "/access/ticket")) == 1


async def test_a_ticket_is_renewed_before_it_runs_out():
    async with client_of(change=by_password()) as (client, sim):
        sim.world.access.users["root@pam"].password = "quorate"
        await client.get("/nodes")
        await sim.clock.advance(6000)
        await client.get("/nodes")
        assert sim.requests.count(("POST", "/access/ticket")) == 2


async def test_a_ticket_that_is_refused_is_renewed_once_also_for_a_write():
    async with client_of(change=by_password()) as (client, sim):
        sim.world.access.users["root@pam"].password = "quorate"
        await client.get("/nodes")
        sim.faults.add("401:POST:/nodes/*;count=1")
        guest = next(guest for guest in sim.world.guests.values() if guest.kind == "lxc" and not guest.running)
        upid = (await client.request("POST", f"/nodes/{guest.node}/lxc/{guest.vmid}/status/start")).data
        assert upid.startswith("UPID:")


async def test_a_read_moves_on_to_the_next_endpoint_when_one_is_down():
    async with client_of(endpoints=3) as (client, sim):
        await sim.stop_endpoint(0)
        assert len(await client.get("/nodes")) == 3
        await sim.stop_endpoint(1)
        assert len(await client.get("/nodes")) == 3


async def test_if_no_address_answers_the_error_names_them_all():
    async with client_of(endpoints=2) as (client, sim):
        for number in range(2):
            await sim.stop_endpoint(number)
        with pytest.raises(Unreachable) as caught:
            await client.get("/nodes")
        assert "None of the 2 addresses" in caught.value.what
        assert all(endpoint in str(caught.value.why) for endpoint in sim.urls)


async def test_a_write_moves_on_only_if_no_connection_was_made():
    async with client_of(endpoints=2) as (client, sim):
        await sim.stop_endpoint(0)
        guest = next(guest for guest in sim.world.guests.values() if guest.kind == "lxc" and not guest.running)
        upid = (await client.request("POST", f"/nodes/{guest.node}/lxc/{guest.vmid}/status/start")).data
        assert upid.startswith("UPID:")


async def test_a_read_that_breaks_off_is_tried_again():
    async with client_of(faults=["drop:before:GET:/nodes;count=2"]) as (client, sim):
        assert len(await client.get("/nodes")) == 3
        assert sim.requests.count(("GET", "/nodes")) == 3


async def test_a_read_gives_up_after_three_tries():
    async with client_of(faults=["drop:before:GET:/nodes"]) as (client, sim):
        with pytest.raises(TimedOut):
            await client.get("/nodes")
        assert sim.requests.count(("GET", "/nodes")) == 3


@pytest.mark.parametrize("fault", ["drop:before", "drop:after", "596"])
async def test_a_write_of_unknown_fate_is_sent_once(fault):
    async with client_of(faults=[f"{fault}:POST:/nodes/*"]) as (client, sim):
        guest = next(guest for guest in sim.world.guests.values() if guest.kind == "lxc" and not guest.running)
        with pytest.raises(OutcomeUnknown):
            await client.request("POST", f"/nodes/{guest.node}/lxc/{guest.vmid}/status/start")
        assert [method for method, _ in sim.requests].count("POST") == 1


async def test_595_means_that_nothing_was_done():
    async with client_of(faults=["595:POST:/nodes/*"]) as (client, sim):
        guest = next(guest for guest in sim.world.guests.values() if guest.kind == "lxc" and not guest.running)
        with pytest.raises(NodeOffline):
            await client.request("POST", f"/nodes/{guest.node}/lxc/{guest.vmid}/status/start")


async def test_a_slow_answer_is_a_timeout():
    limits = Limits(request_seconds=0.2, total_seconds=0.2)
    async with client_of(
        change=lambda connection: replace(connection, limits=limits), faults=["latency:3600:GET:/nodes"]
    ) as (
        client,
        _,
    ):
        with pytest.raises(TimedOut, match=r"within 0\.2 s"):
            await client.get("/nodes")


async def test_not_found_is_recognized_by_its_text_because_pve_says_500():
    async with client_of() as (client, _):
        with pytest.raises(NotFound, match="does not exist"):
            await client.get("/nodes/pve1/qemu/9999/config")


async def test_the_error_text_of_an_old_pve_is_read_from_the_reason_phrase():
    async with client_of(version="8.2.4") as (client, _):
        with pytest.raises(NotFound, match="does not exist"):
            await client.get("/nodes/pve1/qemu/9999/config")


async def test_an_endpoint_that_does_not_exist_says_so():
    async with client_of() as (client, _):
        with pytest.raises(ServerFailed, match="does not know GET /no/such"):
            await client.get("/no/such")


async def test_the_secret_never_shows_in_text_or_repr():
    async with client_of(faults=["401:*:*"]) as (client, sim):
        with pytest.raises(AuthenticationFailed) as caught:
            await client.get("/nodes")
        for shown in (str(caught.value), repr(caught.value), repr(simulated_cluster(sim))):
            assert sim.token_secret not in shown


async def test_hundreds_of_requests_pass_the_keep_alive_limit_of_pve():
    async with client_of() as (client, sim):
        for _ in range(250):
            await client.get("/version")
        assert len(sim.requests) == 250


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
async def test_no_write_of_any_kind_is_repeated_by_the_http_library(method):
    async with client_of(faults=[f"drop:before:{method}:/nodes/*"]) as (client, sim):
        await client.get("/version")
        with pytest.raises(OutcomeUnknown):
            await client.request(method, "/nodes/pve1/config")
        assert [sent for sent, _ in sim.requests].count(method) == 1


class SilentPeer:
    """A TLS server that accepts one request and then does nothing, not even when the client closes the connection."""

    def __init__(self, folder: Path) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*Authority(folder).issue())
        self._address = context.wrap_socket(socket.create_server(("127.0.0.1", 0)), server_side=True)
        self.url = f"https://127.0.0.1:{self._address.getsockname()[1]}"

    def shake_hands(self) -> socket.socket:
        with self._address:
            return self._address.accept()[0]

    def read_request(self) -> socket.socket:
        connection = self.shake_hands()
        connection.recv(4096)
        return connection


def test_a_request_that_was_given_up_leaves_no_connection_open(tmp_path):
    peer = SilentPeer(tmp_path)
    token = Token("root@pam!quorate", Secret("secret"))
    connection = Connection((peer.url,), token, Trust(verify=False), Limits(request_seconds=30.0))

    async def give_up():
        client = PveClient(connection)
        request = asyncio.create_task(client.get("/version"))
        held = await asyncio.to_thread(peer.read_request)
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
        await client.close()
        return held

    with warnings.catch_warnings(record=True) as reports:
        warnings.simplefilter("always", ResourceWarning)
        asyncio.run(give_up()).close()
        gc.collect()
    assert [str(report.message) for report in reports] == []


async def test_a_server_that_never_says_goodbye_still_shows_its_certificate(tmp_path):
    peer = SilentPeer(tmp_path)
    held = asyncio.create_task(asyncio.to_thread(peer.shake_hands))
    assert await presented_fingerprint(peer.url)
    (await held).close()
