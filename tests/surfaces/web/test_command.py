"""`quorate tokens` and `quorate serve --http` as an operator uses them; servers are processes of their own."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import ssl
import subprocess
import sys
from contextlib import asynccontextmanager
from datetime import timedelta

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from quorate.certificates import certificate_pem, distinguished_name, load_authority
from quorate.config import ConfigError, load
from quorate.config.http import HttpSettings
from tests.rigs.certificates import Authority
from tests.rigs.cli import quorate
from tests.rigs.processes import completed, running

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def serving(*arguments: str):
    """A `quorate serve --demo` process and its address."""
    with running("serve", "--demo", *arguments) as server:
        line = await asyncio.to_thread(server.stderr.readline)
        before, _, address = line.partition(" INFO listening on ")
        assert before.endswith("Z"), line
        yield server, address.strip()


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
    assert kept["revoked"][10] == kept["created"][10] == "T"
    assert not [name for name in kept if "secret" in name or "sha" in name]


def test_an_approvers_token_can_call_no_tool():
    assert quorate("tokens", "create", "eve", "--approver").returncode == 0
    assert "eve: approver, answers approvals and calls no tools" in quorate("tokens").stdout
    (kept,) = json.loads(quorate("tokens", "list", "--json").stdout)
    assert (kept["access"], kept["toolsets"]) == ("admin", [])
    refused = quorate("tokens", "create", "adam", "--approver", "--access", "operate")
    assert refused.returncode == 2


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("with space",), "not a valid name for a token"),
        (("bob", "--toolsets", "guest"), "There is no toolset 'guest'"),
        (("bob", "--days", "0"), "already be expired"),
    ],
)
def test_a_token_that_makes_no_sense_is_not_made(arguments, says):
    refused = quorate("tokens", "create", *arguments)
    assert refused.returncode in (1, 2)
    assert says in refused.stderr
    assert refused.stdout == ""


async def test_a_running_server_honours_tokens_made_and_revoked_beside_it():
    token = (await asyncio.to_thread(quorate, "tokens", "create", "alice")).stdout.strip()
    async with serving("--http", "127.0.0.1:0") as (_, url), httpx2.AsyncClient(timeout=30, verify=False) as http:
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
        async with httpx2.AsyncClient(timeout=30, verify=False) as http:
            assert (await http.get(url.replace("/mcp", "/readyz"))).status_code == 200
        os.kill(server.pid, signal.SIGTERM)
        assert await asyncio.to_thread(server.wait) == 0
        assert "Traceback" not in server.stderr.read()


async def test_a_second_sigterm_ends_the_server_at_once_and_logs_no_traceback(monkeypatch):
    monkeypatch.setenv("QUORATE_HTTP_DRAIN_SECONDS", "3600")
    monkeypatch.setenv("QUORATE_HTTP_OPEN_METRICS", "true")
    async with (
        serving("--http", "127.0.0.1:0", "--access", "operate") as (server, url),
        Client(url) as client,
        httpx2.AsyncClient(timeout=30) as http,
    ):
        await client.list_tools()
        command = {"guest": 102, "command": "sleep 40", "wait": 40}
        call = asyncio.create_task(client.call_tool("guest_exec", command))
        async with asyncio.timeout(30):
            while "quorate_calls_running 1.0" not in (await http.get(url.replace("/mcp", "/metrics"))).text:
                await asyncio.sleep(0.05)
            os.kill(server.pid, signal.SIGTERM)
            while (await http.get(url.replace("/mcp", "/readyz"))).status_code == 200:
                await asyncio.sleep(0.05)
        os.kill(server.pid, signal.SIGTERM)
        await asyncio.to_thread(server.wait)
        call.cancel()
        log = server.stderr.read()
    assert "ending at once; answers that are cut off: " in log
    assert "Traceback" not in log
    assert " ERROR " not in log


async def test_tls_by_flags(tmp_path):
    authority = Authority(tmp_path)
    cert, key = authority.issue()
    async with serving("--http", "127.0.0.1:0", "--tls-cert", str(cert), "--tls-key", str(key)) as (_, url):
        assert url.startswith("https://127.0.0.1:")


def refused(*arguments: str) -> str:
    """What a server says that must not start: a process, for one that does start would not end."""
    ended = completed("serve", "--demo", *arguments)
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
    settings = load(
        file=file, environ={"QUORATE_HTTP_RATE_LIMIT": "7"}, http={"http": "[::1]:9001"}, tolerate=True
    ).http
    assert settings == HttpSettings(
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
        ({"TRUSTED_PROXIES": "0.0.0.0/0"}, "would trust every address"),
        ({"TRUSTED_PROXIES": "*"}, "must be IP addresses"),
        ({"PUBLIC_URL": "https://q.example.com/path"}, "without a path"),
        ({"PUBLIC_URL": "q.example.com"}, "without a path"),
        ({"ALLOWED_ORIGINS": "*"}, "without a path"),
        ({"ALLOWED_HOSTS": "*.example.com"}, "must be host names"),
        ({"OAUTH_ISSUER": "http://login.example.com"}, "must start with https"),
        ({"OAUTH_ISSUER": "https://login.example.com"}, "needs public_url or oauth_audience"),
        ({"OAUTH_AUDIENCE": "quorate"}, "needs oauth_issuer"),
        ({"TLS_CERT": "/nowhere.pem"}, "there is no /nowhere.pem"),
        ({"BODY_LIMIT": "10"}, "must be a number"),
        ({"RATE_LIMIT": "-1"}, "must be a number"),
        ({"SESSIONS": "maybe"}, "must be true or false"),
    ],
)
def test_an_invalid_setting_is_reported(variables, says):
    with pytest.raises(ConfigError, match=says):
        load(environ={f"QUORATE_HTTP_{name}": text for name, text in variables.items()}, http={}, tolerate=True)


# -- in a network ------------------------------------------------------------------------------------------------------


def certified(tmp_path, *names: str):
    """Run `quorate certificate`; its folder."""
    folder = tmp_path / "tls"
    made = quorate("certificate", *names, "--folder", str(folder))
    assert made.returncode == 0, made.stderr
    return folder, made.stdout


def test_a_certificate_from_our_own_ca_serves_the_names_in_it_and_no_others(tmp_path):
    folder, shown = certified(tmp_path, "nas.lan", "192.168.1.5")
    assert f"--tls-cert {folder}/cert.pem --tls-key {folder}/key.pem" in shown
    assert "update-ca-certificates" in shown
    token = quorate("tokens", "create", "alice").stdout.strip()
    asyncio.run(ask_by_names(folder, token))


async def ask_by_names(folder, token: str) -> None:
    flags = ("--http", "127.0.0.1:0", "--tls-cert", f"{folder}/cert.pem", "--tls-key", f"{folder}/key.pem")
    trusting = ssl.create_default_context(cafile=f"{folder}/ca.pem")
    async with serving(*flags) as (_, url), httpx2.AsyncClient(verify=trusting) as http:

        async def status(name: str, header: str | None = None) -> int:
            headers = {"Host": header or name, "Authorization": f"Bearer {token}", "Connection": "close"}
            return (await http.get(url, headers=headers, extensions={"sni_hostname": name})).status_code

        port = url.rpartition(":")[2].partition("/")[0]
        assert await status("nas.lan") not in (421, 401)
        assert await status("nas.lan", f"nas.lan:{port}") != 421
        assert await status("192.168.1.5") != 421
        assert await status("nas.lan", "evil.example") == 421
        with pytest.raises(httpx2.ConnectError):
            await status("other.lan")


def test_the_ca_vouches_only_for_private_names_and_those_it_was_made_for(tmp_path):
    folder, _ = certified(tmp_path, "quorate.example.com")
    before = {name: (folder / name).read_bytes() for name in ("ca.pem", "cert.pem")}
    renewed = quorate("certificate", "quorate.example.com", "nas.lan", "--folder", str(folder))
    assert renewed.returncode == 0
    assert (folder / "ca.pem").read_bytes() == before["ca.pem"]
    assert (folder / "cert.pem").read_bytes() != before["cert.pem"]
    again = quorate("certificate", "--folder", str(folder))
    assert "for quorate.example.com, nas.lan, until" in again.stdout
    refused = quorate("certificate", "bank.example.org", "--folder", str(folder))
    assert refused.returncode == 2
    assert "does not cover bank.example.org" in refused.stderr
    assert "--new-ca" in refused.stderr
    for private in ("ca.key", "key.pem"):
        assert (folder / private).stat().st_mode & 0o777 == 0o600
    signed_anyway(folder, "bank.example.org")
    checked = subprocess.run(
        ["openssl", "verify", "-CAfile", folder / "ca.pem", folder / "stolen.pem"], capture_output=True, check=False
    )
    assert b"permitted subtree violation" in checked.stderr


def signed_anyway(folder, name: str) -> None:
    """What a thief of the key could sign."""
    authority = load_authority((folder / "ca.pem").read_bytes(), (folder / "ca.key").read_bytes())
    certificate, _ = authority.issue(distinguished_name("Thief", name), [name], timedelta(days=1))
    (folder / "stolen.pem").write_text(certificate_pem(certificate))


@pytest.mark.parametrize("name", ["", "a b", "-x.lan", "https://nas.lan"])
def test_a_certificate_for_what_is_no_name_is_refused(tmp_path, name):
    done = quorate("certificate", "--folder", str(tmp_path), "--", name)
    assert done.returncode == 2
    assert "neither a host name nor an IP address" in done.stderr


IN_A_NETWORK = """
import asyncio, json, ssl, subprocess, sys
import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

async def main(folder, token):
    server = subprocess.Popen(
        [sys.executable, "-m", "quorate", "serve", "--demo", "--http", "0.0.0.0:8443",
         "--tls-cert", f"{folder}/cert.pem", "--tls-key", f"{folder}/key.pem"], stderr=subprocess.PIPE, text=True)
    try:
        lines = iter(server.stderr.readline, "")
        entry = json.loads(next(line for line in lines if "client entry: " in line).partition("client entry: ")[2])
        entry = entry["mcpServers"]["quorate"]
        headers = {key: value.replace("TOKEN", token) for key, value in entry["headers"].items()}
        trusting = ssl.create_default_context(cafile=f"{folder}/ca.pem")
        async with (
            httpx2.AsyncClient(headers=headers, verify=trusting) as http,
            Client(streamable_http_client(entry["url"], http_client=http)) as client,
        ):
            print(entry["url"], len((await client.list_tools()).tools))
    finally:
        server.terminate()
        server.wait()

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.thorough
def test_the_entry_that_a_server_on_all_addresses_prints_works(tmp_path):
    """In a network of its own, where a made-up address belongs to the machine."""
    alone = [
        "unshare",
        "-rn",
        "sh",
        "-c",
        'ip link set lo up && ip address add 192.168.77.5/32 dev lo && exec "$@"',
        "-",
    ]
    if subprocess.run([*alone, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no network namespaces here")
    folder, _ = certified(tmp_path, "192.168.77.5")
    token = quorate("tokens", "create", "alice").stdout.strip()
    done = subprocess.run(
        [*alone, sys.executable, "-c", IN_A_NETWORK, str(folder), token], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    url, tools = done.stdout.split()
    assert url == "https://192.168.77.5:8443/mcp"
    assert int(tools) > 10
