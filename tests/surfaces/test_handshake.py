"""The first answers of a server that was started before: from the cache, as if the server had given them."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.types import INVALID_PARAMS, ElicitResult

from pve_simulator.clock import RealClock
from pve_simulator.simulator import SimulatedCluster
from quorate.config import load
from quorate.surfaces.handshake import HandshakeCache, Questions
from tests.rigs.mcp_session import text_of
from tests.rigs.processes import Running, running
from tests.rigs.simulator import pointed_at, running_sim

pytestmark = pytest.mark.anyio

MARK = "written by a test"
ME = {"name": "test", "version": "1"}
LEGACY: list[dict[str, Any]] = [
    {
        "id": 0,
        "method": "initialize",
        "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": ME},
    },
    {"method": "notifications/initialized"},
    {"id": "tools", "method": "tools/list"},
    {"id": 2, "method": "prompts/list", "params": {}},
    {"id": 3, "method": "resources/list"},
    {"id": 4, "method": "resources/templates/list"},
]
_META = {
    "_meta": {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": ME,
        "io.modelcontextprotocol/clientCapabilities": {},
    }
}
MODERN: list[dict[str, Any]] = [
    {"id": 0, "method": "server/discover", "params": _META},
    {"id": 1, "method": "tools/list", "params": _META},
]
CALLS: list[dict[str, Any]] = [
    {"id": 10, "method": "ping"},
    {"id": 11, "method": "tools/call", "params": {"name": "guest_get", "arguments": {"guest": 99999}}},
    {"id": 12, "method": "no/such/method"},
    {"id": 13, "method": "tools/list"},
]


ERAS = {"legacy": LEGACY + CALLS, "modern": MODERN}


@pytest.fixture(scope="module")
def sim() -> Iterator[SimulatedCluster]:
    with running_sim(clock=RealClock(20)) as cluster:
        yield cluster


class Started:
    """`quorate serve` over stdio, with its home in a folder."""

    real: dict[str, dict[int | str, str]]
    cached: bytes

    def __init__(self, sim: SimulatedCluster, home: Path, **variables: str) -> None:
        own = {name: str(home) for name in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME")}
        self.environ = {**own, **pointed_at(sim), **variables}
        self.home = home

    def run(self, *arguments: str, messages: list[dict[str, Any]]) -> subprocess.CompletedProcess[str]:
        """All messages at once; the end of input once all are answered."""
        with running("serve", *arguments, environ=self.environ, cwd=self.home) as server:
            with contextlib.suppress(BrokenPipeError):  # a server that does not start
                server.stdin.write("".join(json.dumps({"jsonrpc": "2.0", **message}) + "\n" for message in messages))
                server.stdin.flush()
            lines = [server.stdout.readline() for message in messages if "id" in message]
            rest, errors = server.communicate()
            return subprocess.CompletedProcess(["quorate"], server.wait(), "".join(lines) + rest, errors)

    def answers(self, *arguments: str, messages: list[dict[str, Any]]) -> dict[int | str, str]:
        """The lines that came back, by the id of their request."""
        done = self.run(*arguments, messages=messages)
        assert done.returncode == 0, done.stderr
        lines = done.stdout.splitlines()
        by_id = {json.loads(line)["id"]: line for line in lines}
        assert len(by_id) == len(lines) == sum("id" in message for message in messages)
        return by_id

    def files(self) -> list[Path]:
        return sorted((self.home / "quorate" / "handshakes").glob("*"))

    def mark(self) -> Path:
        """Change what the cache says, so that an answer shows where it comes from."""
        (file,) = self.files()
        file.write_text(file.read_text().replace("List the nodes", MARK).replace("Quorate manages", MARK))
        assert MARK in file.read_text()
        return file


def same(text: str, other: str) -> bool:
    """The same message, to the order of its members; only the space between them may differ."""
    return json.dumps(json.loads(text)) == json.dumps(json.loads(other))


@pytest.fixture(scope="module")
def warm(sim: SimulatedCluster, tmp_path_factory: pytest.TempPathFactory) -> Started:
    """Started once by a client of each era; `real` is what the server itself answered."""
    started = Started(sim, tmp_path_factory.mktemp("warm"))
    started.real = {name: started.answers(messages=messages) for name, messages in ERAS.items()}
    started.cached = started.files()[0].read_bytes()
    return started


@pytest.fixture(autouse=True)
def _unmarked(warm: Started) -> Iterator[None]:
    yield
    warm.files()[0].write_bytes(warm.cached)


@pytest.mark.parametrize("era", ERAS)
def test_the_cached_answers_are_those_of_the_server_and_nothing_is_lost_or_repeated(warm, era):
    cached = warm.answers(messages=ERAS[era])
    assert all(same(line, cached[number]) for number, line in warm.real[era].items())


@pytest.mark.parametrize("era", ERAS)
def test_the_cache_is_what_answers_and_what_is_outdated_there_is_replaced(warm, era):
    file = warm.mark()
    before = file.read_text().count(MARK)
    done = warm.run(messages=ERAS[era])
    assert MARK in done.stdout
    assert "outdated" in done.stderr
    assert file.read_text().count(MARK) == before / 2, "what the other era asks stays"


def test_another_question_is_not_answered_from_the_cache(warm):
    warm.mark()
    newer = {**LEGACY[0], "params": {**LEGACY[0]["params"], "protocolVersion": "2025-11-25"}}
    assert MARK not in warm.run(messages=[newer, *LEGACY[1:]]).stdout


def test_a_list_has_a_cached_answer_only_in_a_session_that_was_opened_the_same_way():
    def digests(messages: list[dict[str, Any]]) -> list[str | None]:
        questions = Questions()
        return [questions.digest(message["method"], message.get("params")) for message in messages]

    opened = digests(LEGACY)
    assert opened[2] is not None
    assert digests(LEGACY[2:]) == [None] * len(LEGACY[2:]), "the server refuses a list before initialize"
    assert digests([LEGACY[0], LEGACY[2]])[1] is None
    newer = {**LEGACY[0], "params": {**LEGACY[0]["params"], "protocolVersion": "2025-11-25"}}
    assert digests([newer, *LEGACY[1:]])[2] not in (None, opened[2])
    assert digests([*LEGACY, *MODERN])[-1] is None, "a session has one era"
    assert digests([*MODERN, *LEGACY])[2:] == [None] * len(LEGACY)


@pytest.mark.parametrize(
    "change", [{"QUORATE_ACCESS": "operate"}, {"QUORATE_TOOLSETS": "cluster"}, {"QUORATE_SURFACE": "lean"}]
)
def test_other_settings_have_a_cache_of_their_own(warm, monkeypatch, change):
    monkeypatch.setenv("XDG_CACHE_HOME", str(warm.home))
    monkeypatch.chdir(warm.home)
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(warm.home))
    assert HandshakeCache.of(load(environ=warm.environ))
    assert not HandshakeCache.of(load(environ={**warm.environ, **change}))


@pytest.mark.parametrize("spoil", ["readable", "link", "other key", "torn", "folder"])
def test_a_file_that_someone_else_may_have_written_is_not_used(sim, tmp_path, monkeypatch, spoil):
    started = Started(sim, tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    settings = load(environ=started.environ)
    cache = HandshakeCache.of(settings)
    assert cache is not None
    cache.record("digest", b'{"tools":[]}')
    (file,) = started.files()
    assert HandshakeCache.of(settings)
    assert file.stat().st_mode & 0o777 == 0o600
    if spoil == "readable":
        file.chmod(0o640)
    elif spoil == "link":
        file.rename(tmp_path / "elsewhere")
        file.symlink_to(tmp_path / "elsewhere")
    elif spoil == "other key":
        file.write_text(file.read_text().replace('"key":"', '"key":"0'))
    elif spoil == "torn":
        file.write_text(file.read_text()[:-5])
    else:
        file.parent.chmod(0o777)
    assert not HandshakeCache.of(settings)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root can give a file to someone else")
def test_a_file_of_another_user_is_not_used(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    settings = load(environ={}, tolerate=True)
    cache = HandshakeCache.of(settings)
    assert cache is not None
    cache.record("digest", b"{}")
    (file,) = (tmp_path / "quorate" / "handshakes").iterdir()
    os.chown(file, 65534, 65534)
    assert not HandshakeCache.of(settings)


def test_the_cache_contains_no_secret(sim, warm):
    assert sim.token_secret.encode() not in warm.cached
    assert sim.url.encode() not in warm.cached


def test_a_wrong_setting_is_reported_at_once_although_there_is_a_cache(sim, warm):
    done = Started(sim, warm.home, QUORATE_ACCESS="root").run(messages=LEGACY)
    assert (done.returncode, done.stdout) == (2, "")
    assert "QUORATE_ACCESS" in done.stderr


def test_a_client_that_leaves_at_once_does_not_wait_for_the_server(warm):
    program = (
        "import sys\nfrom quorate.cli import main\n"
        "try: main(['serve'])\nexcept SystemExit: pass\nprint('mcp' in sys.modules, file=sys.stderr)"
    )
    lines = "".join(json.dumps({"jsonrpc": "2.0", **message}) + "\n" for message in LEGACY[:2])
    done = subprocess.run(
        [sys.executable, "-c", program], input=lines, env=warm.environ, cwd=warm.home, capture_output=True, text=True
    )
    assert json.loads(done.stdout)["result"]["serverInfo"]["name"] == "quorate"
    assert done.stderr.strip() == "False"


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_questions_progress_and_calls_work_after_a_cached_start(sim, tmp_path, mode):
    started = Started(sim, tmp_path)
    arguments = ["-m", "quorate", "serve", "--access", "admin"]
    command = StdioServerParameters(command=sys.executable, args=arguments, env=started.environ, cwd=tmp_path)
    asked: list[str] = []
    lines: list[str | None] = []

    async def deny(context: Any, params: Any) -> ElicitResult:
        asked.append(params.message)
        return ElicitResult(action="decline")

    async def note(progress: float, total: float | None, message: str | None) -> None:
        lines.append(message)

    for purge in (False, True):
        async with Client(stdio_client(command), mode=mode, elicitation_callback=deny) as client:
            assert "guest_delete" in {tool.name for tool in (await client.list_tools()).tools}
            done = await client.call_tool("guest_power", {"guest": 104, "action": "start"}, progress_callback=note)
            assert not done.is_error, text_of(done)
            stop = await client.call_tool("guest_power", {"guest": 104, "action": "shutdown"})
            assert not stop.is_error, text_of(stop)
            refused = await client.call_tool("guest_delete", {"guest": 104, "purge": purge, "wait": 0})
            assert refused.is_error, text_of(refused)
    assert len(asked) == 2
    assert any("104" in str(line) for line in lines)


def test_what_a_reloaded_server_lists_is_not_cached_for_its_old_settings(sim, tmp_path):
    file = tmp_path / "config.toml"
    file.write_text('access = "admin"\n')
    started = Started(sim, tmp_path, QUORATE_CONFIG=str(file))
    with running("serve", environ=started.environ) as server:
        for message in LEGACY[:2]:
            server.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
            server.stdin.flush()
        server.stdout.readline()
        file.write_text('access = "read"\n')
        server.stdin.write(json.dumps({"jsonrpc": "2.0", **LEGACY[2]}) + "\n")
        server.stdin.flush()
        assert "guest_delete" not in server.stdout.readline()
        server.communicate()
        assert server.wait() == 0
    file.write_text('access = "admin"\n')
    assert "guest_delete" in started.answers(messages=LEGACY)["tools"]


def test_what_is_sent_before_the_server_is_loaded_reports_progress_asks_and_is_canceled(sim, tmp_path):
    """All in one write, so the cache answers the first questions and the server gets the rest when it takes over."""
    hello = {**LEGACY[0], "params": {**LEGACY[0]["params"], "capabilities": {"elicitation": {}}}}
    opening = [hello, *LEGACY[1:3]]
    started = Started(sim, tmp_path)
    started.answers("--access", "admin", messages=opening)
    power = {"name": "guest_power", "arguments": {"guest": 108, "action": "start"}, "_meta": {"progressToken": "p"}}
    delete = {"name": "guest_delete", "arguments": {"guest": 206}}
    with running("serve", "--access", "admin", environ=started.environ, cwd=tmp_path) as server:
        send(server, *opening, cancel("tools"), call(10, power), call(11, delete))
        read = lines_until(server, lambda lines: has_id(lines, 10) and (is_asked(lines) or has_id(lines, 11)))
        send(server, cancel(11), {"id": 12, "method": "ping"})
        read += lines_until(server, lambda lines: has_id(lines, 12))
        send(server, call(13, {"name": "guest_get", "arguments": {"guest": 206}}))
        read += lines_until(server, lambda lines: has_id(lines, 13))
        rest, errors = server.communicate()
    assert (rest, is_asked(read)) == ("", True)
    answers = [line["id"] for line in read if "method" not in line]
    assert sorted(map(str, answers)) == sorted(["0", "tools", "10", "12", "13"]), "11 was canceled"
    progress = [line["params"]["progressToken"] for line in read if line.get("method") == "notifications/progress"]
    assert set(progress) == {"p"}
    assert not next(line for line in read if line.get("id") == 13)["result"].get("isError"), "nothing was deleted"
    assert "Traceback" not in errors


def call(id: int, params: dict[str, Any]) -> dict[str, Any]:
    return {"id": id, "method": "tools/call", "params": params}


def cancel(id: int | str) -> dict[str, Any]:
    return {"method": "notifications/cancelled", "params": {"requestId": id}}


def send(server: Running, *messages: dict[str, Any]) -> None:
    server.stdin.write("".join(json.dumps({"jsonrpc": "2.0", **message}) + "\n" for message in messages))
    server.stdin.flush()


def lines_until(server: Running, enough: Callable[[list[dict[str, Any]]], bool]) -> list[dict[str, Any]]:
    read: list[dict[str, Any]] = []
    while not enough(read):
        read.append(json.loads(server.stdout.readline()))
    return read


def has_id(lines: list[dict[str, Any]], id: int) -> bool:
    return any(line.get("id") == id and "method" not in line for line in lines)


def is_asked(lines: list[dict[str, Any]]) -> bool:
    return any(line.get("method") == "elicitation/create" for line in lines)


MALFORMED: list[dict[str, Any]] = [
    {"result": []},
    {"result": None},
    {"result": "accept"},
    {"result": {"action": "maybe"}},
    {"result": {"action": "accept", "content": []}},
    {"error": "no"},
]


def test_a_malformed_answer_is_refused_at_once_and_leaves_the_request_to_the_operator(sim, tmp_path):
    hello = {**LEGACY[0], "params": {**LEGACY[0]["params"], "capabilities": {"elicitation": {}}}}
    started = Started(sim, tmp_path)
    begun = time.monotonic()
    with running("serve", "--access", "admin", environ=started.environ, cwd=tmp_path) as server:
        send(server, hello, LEGACY[1])
        for number, answer in enumerate(MALFORMED, 10):
            send(server, call(number, {"name": "guest_delete", "arguments": {"guest": 206}}))
            question = lines_until(server, is_asked)[-1]
            send(server, {"id": question["id"], **answer})
            refused = lines_until(server, partial(has_id, id=number))[-1]
            text = refused["result"]["content"][0]["text"]
            assert refused["result"]["isError"], answer
            assert "malformed" in text, answer
            assert "quorate approvals approve" in text, answer
            assert "inside Quorate" not in text, answer
        server.communicate()
    assert time.monotonic() - begun < 60, "no call waited for an answer that had come"
    assert 206 in sim.world.guests


@pytest.mark.parametrize(
    "answer", [[], "accept", None, {"action": "maybe"}, {"roots": []}, {"action": "accept", "content": []}]
)
def test_a_malformed_answer_with_the_next_call_is_refused_at_once(sim, tmp_path, answer):
    meta = {"_meta": {**_META["_meta"], "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}}}}
    params = {"name": "guest_delete", "arguments": {"guest": 206}, **meta}
    started = Started(sim, tmp_path)
    begun = time.monotonic()
    with running("serve", "--access", "admin", environ=started.environ, cwd=tmp_path) as server:
        send(server, MODERN[0], call(1, params))
        question = lines_until(server, lambda lines: has_id(lines, 1))[-1]["result"]
        (asked,) = question["inputRequests"]
        again = {**params, "inputResponses": {asked: answer}, "requestState": question["requestState"]}
        send(server, call(2, again))
        refused = lines_until(server, lambda lines: has_id(lines, 2))[-1]
        send(server, call(3, params))
        repeated = lines_until(server, lambda lines: has_id(lines, 3))[-1]["result"]
        assert list(repeated["inputRequests"]) == [asked], "the same request is still pending"
        server.communicate()
    assert refused["error"]["code"] == INVALID_PARAMS
    assert "malformed" in refused["error"]["message"]
    assert f"quorate approvals approve {asked}" in refused["error"]["message"]
    assert time.monotonic() - begun < 60, "no call waited for an answer that had come"
    assert 206 in sim.world.guests
