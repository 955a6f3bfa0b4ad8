"""What is judged is what PVE reads from the bytes that are really sent."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from aiohttp import web
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pve_schema.schema import NEWEST, OLDEST, Endpoint, facts
from pve_simulator.guests.create_vm import with_cdrom_alias
from pve_simulator.http import parameters
from quorate.problems import BadArgument
from quorate.pve.client import PveClient
from quorate.pve.connection import Connection, Secret, Token
from quorate.pve.wire import read
from tests.rigs.in_memory_wire import Wire
from tests.rigs.sweeps import sweep_size

Given = Mapping[str, Any]
Sends = Callable[[str, str, Given], dict[str, Any]]

ENDPOINTS = [endpoint for version in (NEWEST, OLDEST) for endpoint in facts(version).endpoints()]
FACTS = {id(endpoint): facts(version) for version in (NEWEST, OLDEST) for endpoint in facts(version).endpoints()}


@pytest.fixture(scope="module")
def sends() -> Iterator[Sends]:
    with sending(over_http=True) as send:
        yield send


@pytest.fixture(scope="module")
def sends_in_memory() -> Iterator[Sends]:
    with sending(over_http=False) as send:
        yield send


@contextmanager
def sending(*, over_http: bool) -> Iterator[Sends]:
    """Sends a request with the product's client; returns what the simulator's reader makes of the bytes."""
    read_there: list[dict[str, Any]] = []

    async def answer(request: web.BaseRequest) -> web.Response:
        body = (await request.read()).decode("utf-8", "replace")
        read_there.append(parameters.parse_form(body) | parameters.parse_form(request.raw_path.partition("?")[2]))
        return web.json_response({"data": None})

    async def start() -> tuple[web.ServerRunner, PveClient]:
        server = web.ServerRunner(web.Server(answer))
        await server.setup()
        site = web.TCPSite(server, "127.0.0.1", 0)
        await site.start()
        host, port = server.addresses[0][:2]
        client = PveClient(Connection((f"http://{host}:{port}",), Token("root@pam!test", Secret("not-used"))))
        client.note_nodes({"pve1": True})
        if not over_http:
            client._session = Wire(answer)  # type: ignore[assignment]
        return server, client

    with asyncio.Runner() as runner:
        server, client = runner.run(start())

        def send(method: str, path: str, params: Given) -> dict[str, Any]:
            read_there.clear()
            runner.run(client.request(method, path, params))
            (request,) = read_there
            return request

        yield send
        runner.run(client.close())
        runner.run(server.cleanup())


# -- random requests ---------------------------------------------------------------------------------------------------

WORDS = (
    "100", "101", "0", "1", "true", "no", "on", "scsi0", "unused0", "cdrom", "ide2", "description", "vm:100", "pve1",
    "local-lvm:vm-100-disk-0", "local:iso/a.iso,media=cdrom", "file=local-lvm:vm-105-disk-0",
    "virtio=AA:BB:CC:DD:EE:FF", "keep-last=1", "none", "socket", "lab", "SCSI0",
    "\uff11\uff10\uff10", "\uff53\uff43\uff53\uff49\uff10", "é", "=", "%2c", "+", "&", "a&b=c",
)  # fmt: skip
SEPARATORS = (",", ";", " ", "\t", "\n", "\0", ", ", ";;", "\u00a0", "\u2003", "\u3000", "\x1c", "\x85", "\v", "")

texts = st.lists(st.tuples(st.sampled_from(WORDS), st.sampled_from(SEPARATORS)), max_size=4).map(
    lambda pairs: "".join(word + separator for word, separator in pairs)
)
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 10**9), st.floats(allow_nan=False, allow_infinity=False), texts,
    st.sampled_from(WORDS), st.text(max_size=8),
)  # fmt: skip
shapes = st.one_of(scalars, st.lists(scalars, max_size=4), st.lists(st.lists(scalars, max_size=2), max_size=2))


def names_of(endpoint: Endpoint) -> list[str]:
    """Parameters that are not in the path, with a number where they are numbered."""
    known = [name for name in endpoint.parameters if f"{{{name}}}" not in endpoint.template]
    return sorted({name.replace("[n]", number) for name in known for number in ("0", "1")}) or ["unknown"]


@st.composite
def calls(draw: st.DrawFn, endpoints: list[Endpoint] = ENDPOINTS) -> tuple[Endpoint, dict[str, Any]]:
    endpoint = draw(st.sampled_from(endpoints))
    names = st.one_of(st.sampled_from(names_of(endpoint)), st.sampled_from(("unknown", "scsi00", "Delete")))
    return endpoint, draw(st.dictionaries(names, shapes, max_size=5))


def path_of(endpoint: Endpoint) -> str:
    samples = {"node": "pve1", "vmid": "100", "storage": "local"}
    return re.sub(r"{([^}]+)}", lambda part: samples.get(part[1], "x"), endpoint.template)


def as_pve_reads(endpoint: Endpoint, raw: dict[str, Any]) -> dict[str, list[str]]:
    """The elements of each parameter, found by the simulator's rules from the raw form."""
    has_cdrom = re.fullmatch(r"/nodes/{node}/qemu(/{vmid}/config)?", endpoint.template) and endpoint.method != "GET"
    if has_cdrom:
        raw = dict(with_cdrom_alias(raw))
    texts = {}
    for name, value in raw.items():
        schema = parameters._schema_of(endpoint, name)
        if schema.get("type") == "string" and str(schema.get("format", "")).endswith("-list"):
            listed = parameters.split_list(",".join(value) if isinstance(value, list) else value)
            aliased = has_cdrom and name in ("delete", "revert")
            texts[name] = ["ide2" if element == "cdrom" and aliased else element for element in listed]
        else:
            texts[name] = value if isinstance(value, list) else [value]
    return texts


def agree(sends: Sends, endpoint: Endpoint, params: Given) -> None:
    """What judges see of a call is what is read at the other end."""
    path = path_of(endpoint)
    try:
        request = read(FACTS[id(endpoint)], endpoint.method, path, params)
    except BadArgument:
        return  # nothing is sent
    assert request is not None
    assert request.match.endpoint is endpoint
    raw = sends(endpoint.method, path, request.params)
    assert raw == {name: value if isinstance(value, str) else list(value) for name, value in request.params.items()}
    assert {name: list(request.elements(name)) for name in request.params} == as_pve_reads(endpoint, raw)
    again = read(FACTS[id(endpoint)], endpoint.method, path, request.params)
    assert again is not None
    assert again.params == request.params, "what is in wire form stays as it is"


@given(call=calls())
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
def test_judges_see_what_pve_reads(sends: Sends, call: tuple[Endpoint, dict[str, Any]]) -> None:
    agree(sends, *call)


@pytest.mark.thorough
@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda endpoint: f"{endpoint.method} {endpoint.template}")
def test_judges_see_what_pve_reads_at_every_endpoint(sends_in_memory: Sends, endpoint: Endpoint) -> None:
    @given(call=calls([endpoint]))
    @settings(max_examples=sweep_size(10, 25), deadline=None, suppress_health_check=list(HealthCheck))
    def every_shape(call: tuple[Endpoint, dict[str, Any]]) -> None:
        agree(sends_in_memory, *call)

    every_shape()
