"""Two hundred clients at once, in front of a cluster with faults: nothing lost, nothing twice, nothing left behind."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from quorate.pve.connection import SystemClock
from quorate.state.store import open_store
from quorate.state.tokens import Tokens
from quorate.state.trail import open_trail
from tests.load.clients import HANDSHAKE, STATELESS, McpClient, http_session
from tests.load.processes import ServerProcess, cluster, command, serving
from tests.load.tenant import OwnGuest, Tenant, Told

pytestmark = pytest.mark.anyio

CLIENTS = 200
GUESTS_EACH = 2
FIRST_VMID = 100
FAULTS = ("drop:after;p=0.01", "596:after;p=0.005", "500:out of luck;p=0.005")
"""Two of a hundred requests to the cluster go wrong."""

REST_SECONDS = 60.0
"""In which a server without work has to come to rest."""
MEMORY_GROWTH = 24.0
"""MiB that a server may grow by after it was warm: the allocator's slack, not a continuing leak."""
FILE_GROWTH = 5
TASK_GROWTH = 5


async def test_two_hundred_clients(
    tmp_path: Path, load_seconds: float, say: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    state = {"QUORATE_STATE": str(tmp_path / "state.sqlite"), "QUORATE_AUDIT_FILE": str(tmp_path / "audit.jsonl")}
    keys = await _tokens(state["QUORATE_STATE"], CLIENTS + 1)
    async with (
        cluster(5, CLIENTS * GUESTS_EACH, *FAULTS) as pve,
        serving({**pve.environ, **state}, "--access", "admin", "--approval", "none") as server,
        http_session() as http,
    ):
        before, told = await pve.tell(), Told()
        tenants = [_tenant(number, http, server.url, keys[number], before, told) for number in range(CLIENTS)]
        new = await _at_rest(server, keys[-1], say, "new")
        await asyncio.gather(*(tenant.client.open() for tenant in tenants))
        await _all_live(tenants, min(15.0, load_seconds / 2))
        warm = await _at_rest(server, keys[-1], say, "warm")
        begun, asked = time.monotonic(), len(told.seconds)
        await _all_live(tenants, load_seconds)
        seconds, calls = time.monotonic() - begun, len(told.seconds) - asked
        end = await _at_rest(server, keys[-1], say, "at the end")
        await asyncio.gather(*(tenant.client.close() for tenant in tenants))
        left = await _at_rest(server, keys[-1], say, "with all clients gone")

        after = await pve.heal()
        entries = await _changes(state["QUORATE_STATE"], tmp_path / "audit.jsonl")
        _say_numbers(say, told, calls, seconds, after["requests"])
        verified = await command(state, "audit", "--verify")
        ended = await server.ended()

    assert ended == 0
    assert not [line for line in server.said if "Traceback" in line], "".join(server.said)
    assert verified[0] == 0, verified[1]
    assert len(entries) == told.changes
    surprises = [
        text for tenant in tenants for own in tenant.guests for text in own.surprises(after["guests"][str(own.vmid)])
    ]
    assert not surprises, "\n".join([*surprises, *told.errors])
    _assert_sent_once(entries, after["writes"])
    _assert_tasks_are_known(entries, after["tasks"], before["tasks"], tenants)
    assert told.told("unknown") < told.changes / 10  # most lost answers are found out
    assert told.told("done") > told.changes / 2
    assert end["memory"] - warm["memory"] < MEMORY_GROWTH
    assert end["files"] - warm["files"] < FILE_GROWTH
    assert end["tasks"] - warm["tasks"] < TASK_GROWTH
    assert left["files"] - new["files"] < FILE_GROWTH
    assert left["tasks"] - new["tasks"] < TASK_GROWTH


async def _changes(location: str, file: Path) -> list[dict[str, Any]]:
    """The audit trail, an entry for each change."""
    async with open_store(location, clock=SystemClock()) as store:
        return await open_trail(store, file).entries(limit=100_000)


async def _tokens(location: str, count: int) -> list[str]:
    async with open_store(location, clock=SystemClock()) as store:
        tokens = Tokens(store)
        return [(await tokens.create(f"client-{number}", "admin")).plain for number in range(count)]


def _tenant(
    number: int, http: aiohttp.ClientSession, url: str, token: str, facts: dict[str, Any], told: Told
) -> Tenant:
    first = FIRST_VMID + number * GUESTS_EACH
    guests = [OwnGuest(vmid, facts["guests"][str(vmid)]) for vmid in range(first, first + GUESTS_EACH)]
    return Tenant(number, McpClient(http, url, token, HANDSHAKE if number % 2 else STATELESS), guests, told)


async def _all_live(tenants: list[Tenant], seconds: float) -> None:
    until = time.monotonic() + seconds
    await asyncio.gather(*(tenant.live(until) for tenant in tenants))


async def _at_rest(server: ServerProcess, token: str, say: Callable[[str], None], when: str) -> dict[str, float]:
    """Once no call runs and the idle connections are closed: what the server still holds."""
    deadline, last = time.monotonic() + REST_SECONDS, (-1, -1.0)
    while True:
        numbers = await server.numbers(token)
        now = (server.files(), numbers["quorate_event_loop_tasks"])
        if now == last and not numbers["quorate_calls_running"]:
            held = {"memory": server.memory(), "files": now[0], "tasks": now[1]}
            say(f"{when}: {held['memory']:.1f} MiB, {now[0]} open files, {now[1]:.0f} asyncio tasks")
            return held
        assert time.monotonic() < deadline, f"the server does not come to rest: {now}, {numbers}"
        last = now
        await asyncio.sleep(6)  # longer than either side keeps an idle connection


def _assert_sent_once(entries: list[dict[str, Any]], writes: list[str]) -> None:
    """Whatever came in was planned, and not more often; whatever is reported as done came in."""
    planned: Counter[str] = Counter()
    done: Counter[str] = Counter()
    for entry in entries:
        for line in entry["calls"]:
            call = " ".join(line.split()[:2])
            planned[call] += 1
            done[call] += entry["outcome"] == "done"
    sent = Counter(writes)
    assert not sent - planned
    assert not done - sent


def _assert_tasks_are_known(
    entries: list[dict[str, Any]], tasks: dict[str, str], old: dict[str, str], tenants: list[Tenant]
) -> None:
    """Each task belongs to one change; one that belongs to none comes from a change reported as unknown."""
    claimed = Counter(upid for entry in entries for upid in entry["tasks"])
    assert not [upid for upid, count in claimed.items() if count > 1]
    assert not claimed.keys() - tasks.keys()
    ended_well = [upid for entry in entries if entry["outcome"] == "done" for upid in entry["tasks"]]
    assert {tasks[upid] for upid in ended_well} == {"OK"}
    strange = Counter(int(upid.split(":")[6]) for upid in tasks.keys() - claimed.keys() - old.keys())
    unknown = {own.vmid: own.unknown for tenant in tenants for own in tenant.guests}
    assert not {vmid: count for vmid, count in strange.items() if count > unknown[vmid]}


def _say_numbers(say: Callable[[str], None], told: Told, calls: int, seconds: float, requests: int) -> None:
    taken = sorted(told.seconds)
    median, most = statistics.median(taken), taken[int(len(taken) * 0.95)]
    say(
        f"{CLIENTS} clients, {calls} calls in {seconds:.0f} s ({calls / seconds:.0f}/s), {requests} PVE requests in all"
    )
    say(f"a call takes {median:.2f} s in the middle, 95 % take up to {most:.2f} s")
    say(f"{told.changes} changes: " + ", ".join(f"{told.told(fate)} {fate}" for fate in ("done", "failed", "unknown")))
    say(f"reads: {dict(told.reads)}")
