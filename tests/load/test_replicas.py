"""Two replicas on one PostgreSQL: what is made, given or revoked on one counts on both, and one suffices."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from quorate.pve.connection import SystemClock
from quorate.state.approvals import Approvals
from quorate.state.passphrase import Passphrase
from quorate.state.store import Store, open_store
from quorate.state.tokens import CACHE_SECONDS, Tokens
from quorate.state.trail import open_trail
from tests.load.clients import HANDSHAKE, STATELESS, Answer, HttpRefused, McpClient, http_session
from tests.load.processes import ClusterProcess, ServerProcess, cluster, command, serving
from tests.rigs.postgres import PostgresServer

pytestmark = pytest.mark.anyio

PASSPHRASE = "a few random words"
GUESTS = 60
ROUNDS = 30
ROUNDS_BY_HTTP = 5
"""In which the operator answers through the replicas; otherwise through the database, as the command does."""
AT_ONCE = 2
"""Calls that try the same approval at the same moment, on each replica."""
PATIENCE = 60.0


@dataclass
class House:
    pve: ClusterProcess
    replicas: tuple[ServerProcess, ServerProcess]
    environ: dict[str, str]
    store: Store
    http: aiohttp.ClientSession
    token: str

    def clients(self, token: str | None = None) -> list[McpClient]:
        """One for each replica, of both eras."""
        return [
            McpClient(self.http, replica.url, token or self.token, era)
            for replica, era in zip(self.replicas, (STATELESS, HANDSHAKE), strict=True)
        ]

    async def running(self, count: int) -> list[int]:
        guests = (await self.pve.tell())["guests"]
        return [int(vmid) for vmid, facts in guests.items() if facts["running"]][:count]

    async def writes(self) -> Counter[str]:
        return Counter((await self.pve.tell())["writes"])

    async def recorded(self) -> int:
        """How many entries the one audit trail has; it holds."""
        code, told = await command(self.environ, "audit", "--verify")
        assert code == 0, told
        return len(await open_trail(self.store, Path("unused")).entries(limit=100_000))


@asynccontextmanager
async def house(state: str, *options: str) -> AsyncIterator[House]:
    async with (
        open_store(state, clock=SystemClock()) as store,
        cluster(2, GUESTS) as pve,
        http_session() as http,
    ):
        token = (await Tokens(store).create("assistant", "admin")).plain
        await Passphrase(store).set(PASSPHRASE)
        environ = {**pve.environ, "QUORATE_STATE": state}
        async with (
            serving(environ, "--access", "admin", *options) as first,
            serving(environ, "--access", "admin", *options) as second,
        ):
            yield House(pve, (first, second), environ, store, http, token)


async def test_a_token_works_on_both_replicas_and_its_revocation_counts_on_both(postgres: str):
    async with house(postgres) as home:
        made = await Tokens(home.store).create("another", "read")
        clients = home.clients(made.plain)
        for client in clients:
            await _until(partial(_admitted, client))
            assert not (await client.call("guest_list", limit=1)).error
        code, told = await command(home.environ, "tokens", "revoke", "another")
        assert code == 0, told
        for client in clients:
            await _until(partial(_refused, client, 401))
        assert all([await _admitted(client) for client in home.clients()])


async def test_an_approval_is_used_once_however_many_try_on_both_replicas(postgres: str, say: Callable[[str], None]):
    async with house(postgres) as home:
        guests = await home.running(ROUNDS)
        assert len(guests) == ROUNDS
        clients, tried, losers = home.clients(), 0, Counter[str]()
        for number, vmid in enumerate(guests):
            asked = await clients[number % 2].call("guest_stop", guest=vmid, wait=0)
            approval = _approval_in(asked)
            await (_answer_by_http if number < ROUNDS_BY_HTTP else _answer_in_store)(home, approval)
            racing = [client.call("guest_stop", guest=vmid, wait=2) for _ in range(AT_ONCE) for client in clients]
            answers = await asyncio.gather(*racing)
            tried += 1 + len(answers)
            assert sum(answer.fate in ("done", "unknown") for answer in answers) == 1, [
                answer.text for answer in answers
            ]
            losers.update(_why_not(answer) for answer in answers if answer.fate not in ("done", "unknown"))
        writes = await home.writes()
        stops = {path: count for path, count in writes.items() if path.endswith("/status/stop")}
        assert stops == dict.fromkeys(stops, 1)
        assert len(stops) == writes.total() == ROUNDS
        assert await home.recorded() == tried
        say(f"{ROUNDS} approvals, {tried} calls on two replicas, each used once; the others: {dict(losers)}")


async def test_a_leaving_replica_finishes_its_calls_and_the_other_continues(postgres: str):
    async with house(postgres, "--approval", "none") as home:
        first, _ = home.replicas
        leaving, staying = home.clients()
        guests = await home.running(12)
        calls = [asyncio.create_task(leaving.call("guest_stop", guest=vmid)) for vmid in guests[:6]]
        await _until(lambda: _all_run(first, home.token, len(calls)))
        going = asyncio.create_task(first.ended())
        beside = await asyncio.gather(*(staying.call("guest_stop", guest=vmid) for vmid in guests[6:]))
        assert {answer.fate for answer in await asyncio.gather(*calls)} == {"done"}
        assert {answer.fate for answer in beside} == {"done"}
        assert await going == 0
        assert "Traceback" not in "".join(first.said)
        with pytest.raises(aiohttp.ClientConnectionError):
            await leaving.call("guest_list")
        assert not (await staying.call("guest_power", guest=guests[0], action="start")).error
        assert await home.recorded() == len(guests) + 1


async def test_without_the_database_reads_go_on_and_changes_wait(postgres_server: PostgresServer, postgres: str):
    async with house(postgres, "--approval", "none") as home:
        clients = home.clients()
        first, other, third = await home.running(3)
        assert (await clients[0].call("guest_stop", guest=first)).fate == "done"
        assert not (await clients[1].call("guest_list", limit=1)).error
        before = await home.writes()
        await asyncio.to_thread(postgres_server.stop)
        try:
            await _until(lambda: _unready(home))
            for _ in range(2):
                for client in clients:
                    assert not (await client.call("guest_list", limit=1)).error
                    refused = await client.call("guest_stop", guest=other)
                    assert refused.error
                    assert "so nothing is changed" in refused.text, refused.text
                    assert "cannot be written" in refused.text, refused.text
                    assert "s3cret" not in refused.text
                await asyncio.sleep(CACHE_SECONDS)  # until the tokens would have to be read again
            for client in home.clients(f"qrt_{'0' * 12}_{'0' * 64}"):
                assert await _refused(client, 503)
            assert await home.writes() == before
        finally:
            await asyncio.to_thread(postgres_server.start)
        await _until(lambda: _ready(home))
        assert [(await clients[0].call("guest_stop", guest=other)).fate] == ["done"]
        assert [(await clients[1].call("guest_stop", guest=third)).fate] == ["done"]
        assert (await home.writes()).total() == before.total() + 2
        assert await home.recorded() == 3
        assert not [line for replica in home.replicas for line in replica.said if "Traceback" in line]


async def test_a_database_that_hangs_slows_reads_down_but_does_not_stop_them(
    postgres_server: PostgresServer, postgres: str
):
    async with house(postgres, "--approval", "none") as home:
        clients = home.clients()
        (guest,) = await home.running(1)
        assert all([await _admitted(client) for client in clients])
        with postgres_server.frozen():
            await asyncio.sleep(CACHE_SECONDS)
            for client in clients:
                assert all([await _admitted(client) for _ in range(5)])
            refused = await clients[0].call("guest_stop", guest=guest)
            assert "so nothing is changed" in refused.text, refused.text
        await _until(lambda: _ready(home))
        assert (await clients[1].call("guest_stop", guest=guest)).fate == "done"
        assert (await home.writes()).total() == 1
        assert await home.recorded() in (1, 2)  # the refusal is recorded if the database was back in time


def _approval_in(answer: Answer) -> str:
    match = re.search(r"approval (\w{5}-\w{5})", answer.text)
    assert match, answer.text
    return match[1]


def _why_not(answer: Answer) -> str:
    """In a word, for the numbers."""
    reasons = ("it has already been used", "waits for an operator", "no longer exists")
    return (
        answer.fate if not answer.error else next((reason for reason in reasons if reason in answer.text), answer.text)
    )


async def _answer_by_http(home: House, approval: str) -> None:
    """On both replicas at the same moment: one answer counts."""
    body = {"decision": "approve", "passphrase": PASSPHRASE}
    headers = {"Authorization": f"Bearer {home.token}"}
    answers = await asyncio.gather(
        *(
            home.http.post(f"{replica.url}/approvals/{approval}", json=body, headers=headers)
            for replica in home.replicas
        )
    )
    assert sorted(answer.status for answer in answers) == [200, 409], [await answer.text() for answer in answers]


async def _answer_in_store(home: House, approval: str) -> None:
    await Approvals(home.store).answer(approval, True, "the operator")


async def _admitted(client: McpClient) -> bool:
    try:
        return not (await client.call("guest_list", limit=1)).error
    except HttpRefused:
        return False


async def _refused(client: McpClient, status: int) -> bool:
    try:
        await client.call("guest_list", limit=1)
    except HttpRefused as refused:
        return refused.status == status
    return False


async def _all_run(replica: ServerProcess, token: str, count: int) -> bool:
    return (await replica.numbers(token))["quorate_calls_running"] == count


async def _readiness(home: House) -> set[int]:
    statuses = set()
    for replica in home.replicas:
        async with home.http.get(f"{replica.url}/readyz") as answer:
            statuses.add(answer.status)
    return statuses


async def _ready(home: House) -> bool:
    return await _readiness(home) == {200}


async def _unready(home: House) -> bool:
    return await _readiness(home) == {503}


async def _until(holds: Callable[[], Awaitable[Any]]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await holds():
            await asyncio.sleep(0.1)
