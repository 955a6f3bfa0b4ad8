"""Host, Origin and proxies: a request has to be meant for us, and no page of another site may send it."""

from __future__ import annotations

import pytest
from starlette.responses import Response

from quorate.config.http import HttpSettings
from quorate.surfaces.web.health import GracefulShutdown
from quorate.surfaces.web.requests import OriginCheck
from tests.rigs.web_server import LOOK, MCP_HEADERS, web

pytestmark = pytest.mark.anyio
PATHS = ["/mcp", "/metrics", "/approvals", "/approvals/abcde-fghjk", "/nowhere"]


@pytest.mark.parametrize(
    "host",
    [
        "evil.example.com",
        "evil.example.com:8806",
        "127.0.0.1.evil.example.com",
        "localhost.",
        "127.0.0.2",
        "[::2]:80",
        "1",
    ],
)
async def test_a_rebound_name_reaches_nothing(tmp_path, host):
    async with web(tmp_path) as quorate:
        for path in PATHS:
            assert (await quorate.get(path, Host=host)).status_code == 421
        assert (await quorate.post(Host=host)).status_code == 421


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:1", "LOCALHOST", "[::1]:8806"])
async def test_names_of_this_machine_are_ours(tmp_path, host):
    async with web(tmp_path) as quorate:
        assert (await quorate.get("/approvals", Host=host)).status_code == 200


async def test_the_operator_names_further_hosts_with_or_without_a_port(tmp_path):
    settings = HttpSettings(allowed_hosts=("q.example.com", "r.example.com:8443"), public_url="https://s.example.com")
    async with web(tmp_path, http=settings) as quorate:
        for host in ("q.example.com", "Q.example.com:99", "r.example.com:8443", "s.example.com"):
            assert (await quorate.get("/approvals", Host=host)).status_code == 200
        for host in ("r.example.com", "r.example.com:1", "x.q.example.com", "q.example.com.evil.example.com"):
            assert (await quorate.get("/approvals", Host=host)).status_code == 421


@pytest.mark.parametrize(
    "origin",
    [
        "https://evil.example.com",
        "null",
        "http://localhost:3000",
        "http://127.0.0.1.evil.example.com",
        "file://",
        "http://",
    ],
)
async def test_pages_of_other_sites_reach_nothing(tmp_path, origin):
    async with web(tmp_path) as quorate:
        for path in PATHS:
            assert (await quorate.get(path, Origin=origin)).status_code == 403
        assert (await quorate.post(Origin=origin)).status_code == 403
        asked = await quorate.plain.options("/mcp", headers={"Origin": origin, "Access-Control-Request-Method": "POST"})
        assert asked.status_code == 403


async def test_our_own_origin_is_fine(tmp_path):
    async with web(tmp_path) as quorate:
        assert (await quorate.get("/approvals", Origin=quorate.url)).status_code == 200


async def test_a_listed_origin_may_call_and_gets_the_cors_headers(tmp_path):
    page = "https://inspector.example.com"
    async with web(tmp_path, http=HttpSettings(allowed_origins=(page,))) as quorate:
        token = await quorate.token("alice")
        asked = await quorate.plain.options(
            "/mcp",
            headers={
                "Origin": page,
                "Access-Control-Request-Method": "POST",
                "Access-Control-Request-Headers": "authorization,mcp-session-id",
            },
        )
        assert asked.status_code == 200
        assert asked.headers["access-control-allow-origin"] == page
        assert (await quorate.post(token, Origin=page)).headers["access-control-allow-origin"] == page
        assert (await quorate.post(token, Origin="https://other.example.com")).status_code == 403


async def test_probes_come_by_any_name(tmp_path):
    async with web(tmp_path) as quorate:
        for path in ("/healthz", "/readyz"):
            assert (await quorate.get(path, Host="10.2.3.4:8806")).status_code == 200


async def test_proxy_headers_of_strangers_are_not_believed(tmp_path):
    """Else everyone could count their failures on someone else's account."""
    async with web(tmp_path, http=HttpSettings(failure_limit=3)) as quorate:
        await quorate.token("alice")
        answers = [await quorate.post("wrong", X_Forwarded_For=f"192.0.2.{number}") for number in range(5)]
        assert [answer.status_code for answer in answers] == [401, 401, 401, 429, 429]


async def test_of_a_listed_proxy_they_are(tmp_path):
    settings = HttpSettings(failure_limit=3, trusted_proxies=("127.0.0.1/32",), allowed_hosts=("q.example.com",))
    async with web(tmp_path, http=settings) as quorate:
        await quorate.token("alice")

        async def wrong(forwarded: str) -> int:
            return (await quorate.post("wrong", X_Forwarded_For=forwarded)).status_code

        assert [await wrong("192.0.2.1") for _ in range(4)] == [401, 401, 401, 429]
        assert await wrong("192.0.2.2") == 401
        # What the caller itself wrote stands to the left of what the proxy has seen.
        assert await wrong("192.0.2.9, 192.0.2.1") == 429
        answer = await quorate.plain.get(
            "/approvals",
            headers={"Host": "q.example.com", "Origin": "https://q.example.com", "X-Forwarded-Proto": "https"},
        )
        assert answer.status_code == 401


async def test_neither_forwarded_host_nor_another_path_gets_around_the_checks(tmp_path):
    async with web(tmp_path, http=HttpSettings(trusted_proxies=("127.0.0.1/32",))) as quorate:
        answer = await quorate.get("/approvals", Host="evil.example.com", **{"X-Forwarded-Host": "localhost"})
        assert answer.status_code == 421
        for path in ("//mcp", "/mcp/", "/MCP", "/./mcp", "/healthz/../mcp", "/mcp%2f"):
            answer = await quorate.plain.post(path, json=LOOK, headers={**MCP_HEADERS, "Host": "evil.example.com"})
            assert answer.status_code == 421


@pytest.mark.parametrize(
    ("peer", "tls", "status"),
    [
        ("10.0.0.2", False, 200),
        ("127.0.0.1", False, 200),
        ("10.0.0.3", False, 403),
        ("192.0.2.9", False, 403),
        ("2001:db8::1", False, 403),
        ("192.0.2.9", True, 200),
    ],
)
async def test_without_tls_a_server_answers_only_its_proxies(tmp_path, peer, tls, status):
    cert = tmp_path / "cert.pem" if tls else None
    settings = HttpSettings(host="10.0.0.5", trusted_proxies=("10.0.0.2/32",), tls_cert=cert)
    guard = OriginCheck(Response("in"), settings, GracefulShutdown())
    sent = []

    async def send(message):
        sent.append(message)

    headers = [(b"host", b"10.0.0.5:8806")]
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/mcp",
        "scheme": "http",
        "client": (peer, 1),
        "headers": headers,
    }
    await guard(scope, None, send)  # type: ignore[arg-type]
    assert sent[0]["status"] == status
