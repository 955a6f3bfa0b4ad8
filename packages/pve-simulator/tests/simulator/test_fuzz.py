"""Any request gets an answer of PVE's form; the simulator never crashes."""

from __future__ import annotations

import asyncio
import os
import random
import re
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from pve_schema.schema import Endpoint, facts
from pve_simulator.http.refusals import first_line
from pve_simulator.http.routing import all_routes
from pve_simulator.nodes.tasks import Task
from simulator.fuzz import odd_json_of, parameters_of, path_of
from simulator.root_client import Reply, RootClient, root_client

_STATUSES = frozenset({200, 400, 401, 403, 404, 424, 500, 501, 595, 596})
_WITHOUT_BODY = frozenset({401, 595, 596})
_OF_PYTHON = re.compile(
    r"internal error of the simulated cluster|Traceback|has no attribute|NoneType|unhashable|out of range"
    r"|invalid literal|not subscriptable|unexpected keyword|positional argument|<class|<pve_simulator|pve_simulator\."
    r"|KeyError"
    r"|unsupported operand|codec can't|object is not|must be str"
)
_MANY = range(1, 1 + (11 if os.environ.get("FULL_WIDTH") == "1" else 4))
_WALKS = pytest.mark.parametrize("seeds", [range(1), pytest.param(_MANY, marks=pytest.mark.thorough)], ids=str)
"""Every run covers all endpoints."""


def complaints(reply: Reply) -> Iterator[str]:
    """Answers that PVE would not give."""
    if reply.status not in _STATUSES:
        yield f"status {reply.status}"
    if _OF_PYTHON.search(f"{reply.reason} {reply.body}"):
        yield "text of the simulator's own"
    if reply.status in _WITHOUT_BODY or (reply.status == 200 and isinstance(reply.body, str)):  # a download
        return
    if not isinstance(reply.body, dict) or "data" not in reply.body:
        yield "no JSON body with data"
    elif reply.status != 200:
        yield from _complaints_about_refusal(reply)


def _complaints_about_refusal(reply: Reply) -> Iterator[str]:
    message, errors = reply.body.get("message"), reply.body.get("errors")
    if not isinstance(message, str) or not message.strip():
        yield "a refusal without a message"
    elif first_line(message).strip() != reply.reason.strip():
        yield "a reason that is not the message"
    if reply.body["data"] is not None:
        yield "data beside a refusal"
    of_parameters = reply.reason == "Parameter verification failed."
    if of_parameters != (reply.status == 400 and bool(errors)):
        yield "a map of errors belongs to refused parameters, and to nothing else"


async def _fuzz_endpoints(endpoints: list[Endpoint], seed: int, *, as_json: bool = False) -> list[str]:
    async with root_client() as client:
        return await _walk(client, endpoints, seed, as_json=as_json)


async def _walk(client: RootClient, endpoints: list[Endpoint], seed: int, *, as_json: bool) -> list[str]:
    problems = []
    chance = random.Random(seed)
    for endpoint in endpoints:
        client.restore_access()
        path, values = path_of(endpoint, chance)
        params = (odd_json_of if as_json else parameters_of)(endpoint, values, chance)
        reply = await client.ask(endpoint.method, path, params, by_token=chance.random() < 0.3, as_json=as_json)
        problems += [
            f"{endpoint.method} {path} {params} -> {reply.status} {reply.reason}: {text}" for text in complaints(reply)
        ]
        if chance.random() < 0.05:
            await client.clock.advance(chance.choice((0.5, 5.0, 60.0)))
    await client.finish_tasks()
    problems += [f"{task.upid} crashed" for task in _crashed_tasks(client)]
    return problems


def _crashed_tasks(client: RootClient) -> Iterator[Task]:
    tasks = client.world.tasks
    for node in client.world.nodes:
        yield from (task for task in tasks.newest_first(node) if task.exitstatus == "unexpected status")


def _implemented_endpoints() -> list[Endpoint]:
    known = all_routes()
    return [
        endpoint
        for endpoint in facts("9.1.8").endpoints()
        if (endpoint.method, endpoint.template) in known and not known[endpoint.method, endpoint.template].reads_body
    ]


@pytest.mark.thorough
@_WALKS
def test_garbage_at_any_endpoint_gets_an_answer_of_pve(seeds: range):
    for seed in seeds:
        assert asyncio.run(_fuzz_endpoints(_implemented_endpoints(), seed)) == []


@pytest.mark.thorough
@_WALKS
def test_json_of_any_type_gets_an_answer_of_pve(seeds: range):
    changes = [endpoint for endpoint in _implemented_endpoints() if endpoint.method in ("POST", "PUT")]
    for seed in seeds:
        assert asyncio.run(_fuzz_endpoints(changes, seed, as_json=True)) == []


@settings(
    max_examples=4,
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(path=st.text(st.characters(codec="utf-8"), max_size=40))
def test_an_invalid_path_is_not_implemented_in_the_words_of_pve(path: str):
    async def ask() -> Reply:
        async with root_client() as client:
            return await client.ask("GET", f"/nope/{path}")

    assert list(complaints(asyncio.run(ask()))) == []


def test_endpoints_that_are_left_out_say_so_as_pve_does_for_unknown_ones():
    known = all_routes()
    left_out = [
        endpoint for endpoint in facts("9.1.8").endpoints() if (endpoint.method, endpoint.template) not in known
    ]

    async def walk() -> list[tuple[str, str]]:
        problems = []
        chance = random.Random(1)
        async with root_client() as client:
            for endpoint in left_out[::5]:
                path, _ = path_of(endpoint, chance)
                reply = await client.ask(endpoint.method, path)
                if list(complaints(reply)) or reply.status == 200:
                    problems.append((endpoint.template, reply.reason))
        return problems

    assert asyncio.run(walk()) == []
