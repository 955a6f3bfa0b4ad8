"""How much may come in, and how deep: from callers, from PVE, from files and from other servers."""

from __future__ import annotations

import asyncio
import functools
import gzip
import json
import os
import sys
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web as plain_web
from mcp.shared.exceptions import MCPError
from mcp.types import PromptReference

from quorate import documents
from quorate.config import ClusterSettings
from quorate.documents import Unreadable, is_deeper, read_json, read_yaml
from quorate.homelab.infra.document import read_document as read_document
from quorate.operations.arguments import DEEPEST, LONGEST_TEXT, ROOMY, WrongArguments, refuse_oversized
from quorate.problems import OutcomeUnknown
from quorate.pve.connection import Connection, Limits, Secret, Token
from quorate.surfaces.compat import SYSTEMS
from tests.rigs.homelab import house
from tests.rigs.mcp_session import Rig, rig, text_of

pytestmark = pytest.mark.anyio
MANY = "x" * 1_000_000
QUICK_SECONDS = 2.0
"""Of our own time, whatever else the machine has to do."""


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@asynccontextmanager
async def quickly() -> AsyncIterator[None]:
    begun = time.process_time()
    yield
    assert time.process_time() - begun < QUICK_SECONDS


# -- arguments ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tool", "arguments", "says"),
    [
        ("guest_get", {"guest": MANY}, "guest is 1000000 characters long. The limit is 16384."),
        ("guest_list", {"name": MANY}, "name is 1000000 characters long"),
        ("api_call", {"method": "GET", "path": "/" + MANY}, "path is 1000001 characters long"),
        (
            "api_call",
            {"method": "GET", "path": "/version", "params": {"a": nested(40)}},
            "params is nested more than 32",
        ),
        (
            "api_call",
            {"method": "GET", "path": "/version", "params": {MANY: 1}},
            "A key in params is 1000000 characters",
        ),
        ("guest_bulk", {"guests": list(range(20_000)), "action": "start"}, "guests contains more than 10000 values"),
        ("guest_list", {"limit": 10**30}, "limit contains a number of 100 bits. The limit is 63."),
        ("guest_list", {MANY: 1}, "The name of an argument is 1000000 characters long"),
        (MANY, {}, "The name of the tool is 1000000 characters long"),
        (
            "guest_exec",
            {"guest": 100, "command": "x" * 200_000},
            "command is 200000 characters long. The limit is 131072",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_an_argument_without_end_is_refused_at_once_with_its_size_and_the_limit(
    tmp_path: Path, tool: str, arguments: dict[str, Any], says: str
) -> None:
    async with rig(tmp_path) as quorate, quickly():
        assert says in await quorate.refusal(tool, **arguments)
        assert quorate.sim.requests == []


@pytest.mark.parametrize("surface", ["lean", *SYSTEMS])
async def test_other_surfaces_have_the_same_bounds(tmp_path: Path, surface: str) -> None:
    async with rig(tmp_path, more={"surfaces": (surface,)}) as quorate:
        texts = [
            (
                tool.name,
                next(name for name, part in tool.input_schema["properties"].items() if part.get("type") == "string"),
            )
            for tool in (await quorate.client.list_tools()).tools
            if "string" in [part.get("type") for part in tool.input_schema["properties"].values()]
        ]
        for tool, name in texts[:10]:
            refusal = await quorate.refusal(tool, **{name: "x" * 13_000_000})
            assert f"{name} is 13000000 characters long. The limit is" in refusal
        assert texts
        assert quorate.sim.requests == []


async def test_the_arguments_of_an_operation_are_bounded_one_by_one_on_the_lean_surface(tmp_path: Path) -> None:
    async with rig(tmp_path, more={"surfaces": ("lean",)}) as quorate, quickly():
        refusal = await quorate.refusal("pve_read", operation="guest_get", arguments={"guest": MANY})
        assert "guest is 1000000 characters long. The limit is 16384" in refusal


async def test_lean_finds_nothing_for_words_without_end(tmp_path: Path) -> None:
    async with rig(tmp_path, more={"surfaces": ("lean",)}) as quorate, quickly():
        assert "words is 1000000 characters long" in await quorate.refusal("pve_find", words=MANY)
        text = "[" * 100_000
        assert "pve_read cannot take arguments" in await quorate.refusal(
            "pve_read", operation="guest_list", arguments=text
        )


async def test_prompts_resources_and_completions_have_the_same_bounds(tmp_path: Path) -> None:
    async with rig(tmp_path) as quorate, quickly():
        client = quorate.client
        attempts: list[Callable[[], Awaitable[Any]]] = [
            lambda: client.get_prompt("diagnose_guest", {"guest": MANY}),
            lambda: client.get_prompt(MANY, {}),
            lambda: client.read_resource(f"pve://guests/{MANY}"),
            lambda: client.complete(
                PromptReference(type="ref/prompt", name="diagnose_guest"), {"name": "guest", "value": MANY}
            ),
        ]
        for attempt in attempts:
            with pytest.raises(MCPError) as refused:
                await attempt()
            assert "1000000 characters long" in str(refused.value) or "1000013 characters long" in str(refused.value)
        assert quorate.sim.requests == []


def test_what_is_large_for_good_reason_passes() -> None:
    refuse_oversized("guest_file_write", {"guest": 100, "path": "/x", "content": "x" * ROOMY["content"]})
    refuse_oversized("api_call", {"params": {"description": "x" * LONGEST_TEXT, "deep": nested(DEEPEST - 2)}})
    refuse_oversized("infra_validate", {"document": "x" * documents.LONGEST_YAML})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 2**63, -(2**70), "\ud800", ["\udfff"], {"\ud800": 1}])
def test_what_is_neither_text_nor_number_is_refused(value: Any) -> None:
    with pytest.raises(WrongArguments):
        refuse_oversized("guest_get", {"guest": value})


@pytest.mark.thorough
async def test_a_line_on_standard_input_that_cannot_be_read_is_answered(tmp_path: Path) -> None:
    """The parser gives up at two hundred levels; the sender of such a line must not wait forever."""
    token = {"PROXMOX_TOKEN_ID": "root@pam!bounds", "PROXMOX_TOKEN_SECRET": "12345678-1234-1234-1234-123456789abc"}
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PROXMOX_URL": "https://127.0.0.1:9", **token}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "quorate", "serve", cwd=tmp_path, env=environ,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin
    assert process.stdout
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    call = {"name": "guest_list", "arguments": {"name": "NESTED"}}
    lines = [json.dumps({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello})]
    for depth in (100, 1000, 20_000):
        text = json.dumps({"jsonrpc": "2.0", "id": depth, "method": "tools/call", "params": call})
        lines.append(text.replace('"NESTED"', "[" * depth + "]" * depth))
    answers = []
    async with asyncio.timeout(60):
        for line in [*lines, "no JSON at all", json.dumps({"jsonrpc": "2.0", "id": 99, "method": "ping"})]:
            process.stdin.write(f"{line}\n".encode())
            answers.append(json.loads(await process.stdout.readline()))
        process.stdin.close()
        await process.wait()
    _, deep, deeper, deepest, nonsense, pong = answers
    assert deep["result"]["isError"]
    assert [answer["error"]["code"] for answer in (deeper, deepest, nonsense)] == [-32700] * 3
    assert pong == {"jsonrpc": "2.0", "id": 99, "result": {}}


# -- documents ---------------------------------------------------------------------------------------------------------


BOMB = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(98 + number)}: &{chr(98 + number)} [{','.join(['*' + chr(97 + number)] * 10)}]\n" for number in range(9)
)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[" * 1000, "nested more than 64 levels"),
        ("[" * 5000, "nested more than 64 levels"),
        ("{a: " * 5000, "nested more than 64 levels"),
        ("- " * 5000, "nested more than 64 levels"),
        ("? " * 5000, "nested more than 64 levels"),
        (BOMB, "more than 50000 values"),
        ("a: &a [*a]", "more than 50000 values"),
        ("- a\n" * 60_000, "more than 50000 values"),
        ("a: " + "b" * 300_000, "300003 characters; the limit is 262144"),
        ("a: 0x" + "f" * 100_000, "a number of 100002 digits"),
        ("a: " + "1:" * 50_000 + "1", "a number of 100001 digits"),
        ("a: 2026-99-99", "is not YAML: month must be in 1..12"),
        ("!!python/object/apply:os.system [id]", "could not determine a constructor"),
        ('"\\ud800', "is not YAML"),
    ],
    ids=lambda value: value[:20],
)
async def test_yaml_that_would_cost_too_much_is_refused_before_anything_is_built(text: str, says: str) -> None:
    async with quickly():
        with pytest.raises(Unreadable, match=says.replace(".", "\\.")):
            read_yaml(text)


def test_without_the_fast_parser_the_bounds_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    import yaml

    monkeypatch.delattr(yaml, "CSafeLoader")
    with pytest.raises(Unreadable, match="nested more than 64 levels"):
        read_yaml("[" * 5000)
    assert read_yaml("a: &x {b: 1}\nc: {<<: *x}") == {"a": {"b": 1}, "c": {"b": 1}}


def test_yaml_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "YAML_SECONDS", 0.0)
    with pytest.raises(Unreadable, match="longer than 0 s"):
        read_yaml("- a\n" * 1000)


@pytest.mark.parametrize("depth", [65, 900, 1000, 100_000])
def test_json_nested_without_end_is_unreadable_and_no_recursion_error(depth: int) -> None:
    for text in ("[" * depth + "]" * depth, '{"a":' * depth + "1" + "}" * depth):
        with pytest.raises(Unreadable, match="nested more than 64 levels"):
            read_json(text)
    assert read_json("[" * 64 + "]" * 64)


def test_depth_is_counted_over_lists_and_objects() -> None:
    assert not is_deeper({"a": [{"b": []}]}, 4)
    assert is_deeper({"a": [{"b": []}]}, 3)
    assert not is_deeper("text", 0)


async def test_a_document_nested_without_end_is_refused_and_others_are_served_meanwhile(tmp_path: Path) -> None:
    async with house(tmp_path) as home, quickly():
        refused, listed = await asyncio.gather(
            home.quorate.refusal("infra_validate", document="[" * 5000), home.quorate.call("host_list")
        )
        assert "The document is nested more than 64 levels deep" in refused
        assert not listed.is_error


def test_a_chain_of_needs_may_be_as_long_as_a_document() -> None:
    hosts = {
        f"h{number}": {"address": f"192.0.2.{number % 250}", **({"needs": [f"h{number + 1}"]} if number < 499 else {})}
        for number in range(500)
    }
    order = read_document({"name": "chain", "hosts": hosts}).order()
    assert [host.name for host in order][:2] == ["h499", "h498"]


# -- answers of PVE ----------------------------------------------------------------------------------------------------


Answering = Callable[[plain_web.Request], plain_web.Response]


@asynccontextmanager
async def beside(tmp_path: Path, answering: Answering, **limits: Any) -> AsyncIterator[Rig]:
    """Quorate in front of something that answers as it likes."""

    async def answer(request: plain_web.Request) -> plain_web.Response:
        return answering(request)

    app = plain_web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = plain_web.AppRunner(app)
    await runner.setup()
    site = plain_web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    token = Token("root@pam!x", Secret("secret-of-x"))
    connection = Connection((f"http://{host}:{port}",), token, limits=Limits(**limits))
    try:
        async with rig(tmp_path, cluster=ClusterSettings("default", connection)) as quorate:
            yield quorate
    finally:
        await runner.cleanup()


def packed(data: bytes, status: int = 200, encoding: str = "gzip") -> plain_web.Response:
    return plain_web.Response(
        body=data, status=status, headers={"Content-Encoding": encoding, "Content-Type": "application/json"}
    )


@pytest.mark.parametrize("status", [200, 500])
@pytest.mark.parametrize(
    ("size", "says"),
    [(20_000_000, "unpacks to more than 250 times its size"), (80_000_000, "is longer than 33554432 bytes")],
)
async def test_a_gzip_bomb_is_not_unpacked(tmp_path: Path, status: int, size: int, says: str) -> None:
    bomb = packed_zeros(size)
    assert len(bomb) < 1_000_000
    async with beside(tmp_path, lambda _: packed(bomb, status)) as quorate:
        assert says in await quorate.refusal("api_call", method="GET", path="/version")


@functools.cache
def packed_zeros(size: int) -> bytes:
    packing = zlib.compressobj(9, wbits=zlib.MAX_WBITS | 16)
    pieces = [packing.compress(b'{"data":"'), *(packing.compress(b"0" * 1_000_000) for _ in range(size // 1_000_000))]
    return b"".join([*pieces, packing.compress(b'"}'), packing.flush()])


@pytest.mark.parametrize("body", [gzip.compress(b"0" * 20_000_000), b"[" * 100_000], ids=["bomb", "nested"])
async def test_after_a_change_whose_answer_cannot_be_read_nobody_claims_to_know(tmp_path: Path, body: bytes) -> None:
    """It may have happened: the result says so, and it is not sent again."""
    sent = []

    def answer(request: plain_web.Request) -> plain_web.Response:
        if request.method == "GET":
            return plain_web.json_response({"data": [{"node": "pve1"}]})
        sent.append(request.method)
        return packed(body) if body[:1] != b"[" else plain_web.Response(body=body)

    async with beside(tmp_path, answer) as quorate:
        client = next(iter(quorate.app.pipeline.sites)).cluster.client
        with pytest.raises(OutcomeUnknown):
            await client.request("POST", "/nodes/pve1/qemu/100/status/start")
    assert sent == ["POST"]


async def test_an_answer_without_end_is_not_read_to_its_end(tmp_path: Path) -> None:
    long = plain_web.Response
    body = json.dumps({"data": "0" * 2_000_000}).encode()
    async with beside(tmp_path, lambda _: long(body=body), answer_bytes=1_000_000) as quorate:
        refusal = await quorate.refusal("api_call", method="GET", path="/version")
        assert "is longer than 1000000 bytes" in refusal
        assert "answer_bytes" in refusal


@pytest.mark.parametrize(
    ("data", "encoding", "says"),
    [
        (b"no gzip at all", "gzip", "cannot be unpacked"),
        (gzip.compress(b'{"data":1}' * 1000)[:-20], "gzip", "breaks off"),
        (b"x", "br", "packed as 'br', which was not asked for"),
    ],
    ids=["not packed", "cut", "another way"],
)
async def test_an_answer_that_is_not_packed_as_it_says_is_reported(
    tmp_path: Path, data: bytes, encoding: str, says: str
) -> None:
    async with beside(tmp_path, lambda _: packed(data, encoding=encoding)) as quorate:
        assert says in await quorate.refusal("api_call", method="GET", path="/version")


@pytest.mark.parametrize("depth", [100, 900, 100_000])
@pytest.mark.parametrize("status", [200, 500])
async def test_an_answer_nested_without_end_is_a_clean_error(tmp_path: Path, depth: int, status: int) -> None:
    body = b'{"data":' + b"[" * depth + b"]" * depth + b"}"
    async with beside(tmp_path, lambda _: plain_web.Response(body=body, status=status)) as quorate:
        for tool, arguments in (
            ("api_call", {"method": "GET", "path": "/version"}),
            ("guest_list", {}),
            ("cluster_status", {}),
            ("task_list", {}),
            ("guest_power", {"guest": 100, "action": "start"}),
        ):
            answer = await quorate.call(tool, **arguments)
            assert answer.is_error
            assert "defect" not in text_of(answer)


async def test_ordinary_answers_are_packed_and_read(tmp_path: Path) -> None:
    body = gzip.compress(json.dumps({"data": {"version": "9.1.8", "release": "9.1"}}).encode())
    seen = []

    def answer(request: plain_web.Request) -> plain_web.Response:
        seen.append(request.headers["Accept-Encoding"])
        return packed(body)

    async with beside(tmp_path, answer) as quorate:
        assert "9.1.8" in text_of(await quorate.call("api_call", method="GET", path="/version"))
    assert set(seen) == {documents.ACCEPTED["Accept-Encoding"]}
