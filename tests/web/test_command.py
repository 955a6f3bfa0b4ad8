"""`quorate tokens` and `quorate serve --http` as an operator uses them; servers are processes of their own."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from contextlib import asynccontextmanager

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from quorate.config import ConfigError, load
from quorate.config.http import HttpSettings
from tests.command import quorate
from tests.web.certificates import Authority

pytestmark = pytest.mark.anyio
QUORATE = [sys.executable, "-m", "quorate"]


@asynccontextmanager
async def serving(*arguments: str):
    """A `quorate serve --demo` process and its address."""
    server = await asyncio.create_subprocess_exec(
        *QUORATE, "serve", "--demo", *arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    assert server.stderr is not None
    try:
        line = (await asyncio.wait_for(server.stderr.readline(), 60)).decode()
        assert line.startswith("quorate: listening on "), line
        yield server, line.removeprefix("quorate: listening on ").strip()
    finally:
        if server.returncode is None:
            server.kill()
        await server.communicate()


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QUORATE_STATE", str(tmp_path / "state.sqlite"))


def test_a_token_is_shown_once_listed_without_its_secret_and_revoked():
    made = quorate("tokens", "create", "alice", "--access", "operate", "--toolsets", "guests,tasks", "--days", "30")
    assert made.returncode == 0, made.stderr
    token = made.stdout.strip()
    assert token.startswith("qrt_")
    listed = quorate("tokens")
    assert "alice: operate, toolsets guests, tasks, until" in listed.stdout
    assert token.rsplit("_", 1)[1] not in listed.stdout
    assert quorate("tokens", "create", "alice").returncode == 1
    assert quorate("tokens", "revoke", "alice").returncode == 0
    assert quorate("tokens", "revoke", "alice").returncode == 1
    assert "There are no tokens" in quorate("tokens", "list").stdout
    (kept,) = json.loads(quorate("tokens", "list", "--all", "--json").stdout)
    assert kept["name"] == "alice"
    assert kept["revoked"] is not None
    assert not [name for name in kept if "secret" in name or "sha" in name]


def test_an_approvers_token_can_call_no_tool():
    assert quorate("tokens", "create", "eve", "--approver").returncode == 0
    (kept,) = json.loads(quorate("tokens", "list", "--json").stdout)
    assert (kept["access"], kept["toolsets"]) == ("admin", [])
    refused = quorate("tokens", "create", "adam", "--approver", "--access", "operate")
    assert refused.returncode == 2


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("with space",), "no name for a token"),
        (("bob", "--toolsets", "guest"), "There is no toolset 'guest'"),
        (("bob", "--days", "0"), "expired already"),
    ],
)
def test_a_token_that_makes_no_sense_is_not_made(arguments, says):
    refused = quorate("tokens", "create", *arguments)
    assert refused.returncode in (1, 2)
    assert says in refused.stderr
    assert refused.stdout == ""


async def test_a_running_server_honours_tokens_made_and_revoked_beside_it():
    token = (await asyncio.to_thread(quorate, "tokens", "create", "alice")).stdout.strip()
    async with serving("--http", "127.0.0.1:0") as (_, url), httpx2.AsyncClient(timeout=30) as http:
        assert (await http.post(url, json={})).status_code == 401
        http.headers["Authorization"] = f"Bearer {token}"
        async with Client(streamable_http_client(url, http_client=http)) as client:
            assert (await client.list_tools()).tools
        await asyncio.to_thread(quorate, "tokens", "revoke", "alice")
        async with asyncio.timeout(30):
            while (await http.post(url, json={})).status_code != 401:
                await asyncio.sleep(0.1)


async def test_sigterm_ends_the_server_in_order():
    async with serving("--http", "127.0.0.1:0") as (server, url):
        async with httpx2.AsyncClient(timeout=30) as http:
            assert (await http.get(url.replace("/mcp", "/readyz"))).status_code == 200
        server.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(server.wait(), 30) == 0
        assert server.stderr is not None
        assert b"Traceback" not in await server.stderr.read()


async def test_tls_by_flags(tmp_path):
    authority = Authority(tmp_path)
    cert, key = authority.issue()
    async with serving("--http", "127.0.0.1:0", "--tls-cert", str(cert), "--tls-key", str(key)) as (_, url):
        assert url.startswith("https://127.0.0.1:")


def refused(*arguments: str) -> str:
    """What a server says that must not start: a process, for one that does start would not end."""
    ended = subprocess.run([*QUORATE, "serve", "--demo", *arguments], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2
    return ended.stderr


def test_beyond_loopback_it_ends_with_a_sentence(tmp_path):
    assert "without authentication" in refused("--http", "0.0.0.0:0")
    quorate("tokens", "create", "alice")
    assert "without TLS" in refused("--http", "0.0.0.0:0")


def test_settings_come_from_flags_variables_and_the_file(tmp_path):
    file = tmp_path / "quorate.toml"
    file.write_text(
        '[http]\nlisten = "127.0.0.1:9000"\nrate_limit = 5\ntrusted_proxies = ["10.0.0.0/8", "2001:db8::1"]\n'
        'public_url = "https://Quorate.example.com/"\noauth_issuer = "https://login.example.com"\n'
    )
    found = load(file=file, environ={"QUORATE_HTTP_RATE_LIMIT": "7"}, http={"http": "[::1]:9001"}, tolerate=True).http
    assert found == HttpSettings(
        host="::1",
        port=9001,
        rate_limit=7,
        trusted_proxies=("10.0.0.0/8", "2001:db8::1/128"),
        public_url="https://quorate.example.com",
        issuer="https://login.example.com",
        audience=("https://quorate.example.com/mcp",),
    )
    assert load(file=file, environ={}, tolerate=True).http is None
    assert load(environ={}, http={}, tolerate=True).http == HttpSettings()


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({"LISTEN": "nowhere"}, "must be HOST:PORT"),
        ({"LISTEN": "::1:80"}, "must be HOST:PORT"),
        ({"LISTEN": "127.0.0.1:70000"}, "must be HOST:PORT"),
        ({"TRUSTED_PROXIES": "0.0.0.0/0"}, "would let everybody"),
        ({"TRUSTED_PROXIES": "*"}, "must be IP addresses"),
        ({"PUBLIC_URL": "https://q.example.com/path"}, "without a path"),
        ({"PUBLIC_URL": "q.example.com"}, "without a path"),
        ({"ALLOWED_ORIGINS": "*"}, "without a path"),
        ({"ALLOWED_HOSTS": "*.example.com"}, "is none"),
        ({"OAUTH_ISSUER": "http://login.example.com"}, "must start with https"),
        ({"OAUTH_ISSUER": "https://login.example.com"}, "needs public_url or oauth_audience"),
        ({"OAUTH_AUDIENCE": "quorate"}, "needs oauth_issuer"),
        ({"TLS_CERT": "/nowhere.pem"}, "there is no /nowhere.pem"),
        ({"BODY_LIMIT": "10"}, "must be a number"),
        ({"RATE_LIMIT": "-1"}, "must be a number"),
        ({"SESSIONS": "maybe"}, "must be true or false"),
    ],
)
def test_a_setting_that_makes_no_sense_is_told(variables, says):
    with pytest.raises(ConfigError, match=says):
        load(environ={f"QUORATE_HTTP_{name}": text for name, text in variables.items()}, http={}, tolerate=True)
