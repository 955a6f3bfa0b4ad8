"""HTTPS with the operator's certificate, and listening only where it is safe."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from dataclasses import replace
from urllib.parse import urlsplit

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from quorate.config import ConfigError
from quorate.config.http import HttpSettings
from quorate.pve.connection import SystemClock
from quorate.state.store import open_store
from quorate.state.tokens import Tokens
from quorate.surfaces.web.listener import Certificate
from quorate.surfaces.web.server import ensure_safe, serve
from tests.rigs.certificates import Authority
from tests.rigs.mcp_session import rig
from tests.rigs.web_server import web

pytestmark = pytest.mark.anyio


@pytest.fixture
def authority(tmp_path):
    folder = tmp_path / "tls"
    folder.mkdir()
    return Authority(folder)


@pytest.fixture
async def store(anyio_backend, tmp_path):
    async with open_store(str(tmp_path / "state.sqlite"), clock=SystemClock()) as opened:
        yield opened


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_mcp_over_https(tmp_path, authority, mode):
    cert, key = authority.issue()
    async with web(tmp_path, http=HttpSettings(tls_cert=cert, tls_key=key)) as quorate:
        assert quorate.url.startswith("https://")
        token = await quorate.token("alice")
        trusting = ssl.create_default_context(cafile=authority.file)
        async with (
            httpx2.AsyncClient(verify=trusting, headers={"Authorization": f"Bearer {token}"}, timeout=30) as http,
            Client(streamable_http_client(f"{quorate.url}/mcp", http_client=http), mode=mode) as client,
        ):
            assert (await client.list_tools()).tools


async def test_who_does_not_know_the_ca_does_not_talk(tmp_path, authority):
    cert, key = authority.issue()
    async with web(tmp_path, http=HttpSettings(tls_cert=cert, tls_key=key)) as quorate, httpx2.AsyncClient() as http:
        with pytest.raises(httpx2.ConnectError, match="certificate verify failed"):
            await http.get(f"{quorate.url}/healthz")


async def test_old_versions_of_tls_are_not_spoken(tmp_path, authority):
    cert, _ = authority.issue()
    certificate = Certificate(cert, cert.with_suffix(".key"))
    assert certificate.context.minimum_version >= ssl.TLSVersion.TLSv1_2


async def test_a_renewed_certificate_is_used_without_a_restart(tmp_path, authority):
    cert, key = authority.issue()
    async with web(tmp_path, http=HttpSettings(tls_cert=cert, tls_key=key)) as quorate:
        before = await asyncio.to_thread(seen_certificate, quorate.url)
        authority.issue()
        os.utime(cert, ns=(1, 1))
        await quorate.listener.on_tick(0)
        assert await asyncio.to_thread(seen_certificate, quorate.url) != before
        key.write_text("half written")
        await quorate.listener.on_tick(0)
        assert (await quorate.get("/healthz")).status_code == 200


def seen_certificate(url: str) -> str:
    address = urlsplit(url)
    return ssl.get_server_certificate((address.hostname or "", address.port or 0), timeout=20)


async def test_a_certificate_that_does_not_match_its_key_is_reported(authority):
    cert, _ = authority.issue("one")
    _, key = authority.issue("two")
    with pytest.raises(ConfigError, match=r"one\.pem and the key .*two\.key cannot be used"):
        Certificate(cert, key)


async def test_beyond_loopback_nobody_listens_without_authentication(store):
    for host in ("0.0.0.0", "::", "192.0.2.1", "quorate.example.com", "127.0.0.1.example.com"):
        with pytest.raises(ConfigError, match="without authentication"):
            await ensure_safe(HttpSettings(host=host), store)


async def test_beyond_loopback_nobody_listens_in_the_clear(store, authority):
    await Tokens(store).create("alice")
    cert, key = authority.issue()
    for host in ("0.0.0.0", "::", "192.0.2.1", "quorate.example.com"):
        outside = HttpSettings(host=host)
        with pytest.raises(ConfigError, match="without TLS"):
            await ensure_safe(outside, store)
        await ensure_safe(replace(outside, tls_cert=cert, tls_key=key), store)
        await ensure_safe(replace(outside, trusted_proxies=("192.0.2.7/32",)), store)


async def test_an_issuer_is_authentication_too(store):
    outside = HttpSettings(host="0.0.0.0", trusted_proxies=("192.0.2.7/32",), issuer="https://login.example.com")
    await ensure_safe(outside, store)


async def test_on_loopback_a_server_without_tokens_says_that_it_is_open(store):
    for host in ("127.0.0.1", "127.3.2.1", "::1", "localhost"):
        assert "every program on this machine may use it" in str(await ensure_safe(HttpSettings(host=host), store))
    await Tokens(store).create("alice")
    assert await ensure_safe(HttpSettings(), store) is None


async def test_a_taken_port_is_reported(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        async with rig(tmp_path, toolsets=("guests",)) as inner:
            settings = HttpSettings(port=taken.getsockname()[1])
            with pytest.raises(ConfigError, match="cannot listen on"):
                await serve(inner.app.core(settings))
