"""Bearer tokens: who gets in, and what they see and may do there."""

from __future__ import annotations

import pytest

from quorate.config.http import HttpSettings
from tests.rigs.mcp_session import text_of
from tests.rigs.web_server import LOOK, web

pytestmark = pytest.mark.anyio
ERAS = pytest.mark.parametrize("mode", ["auto", "legacy"])


async def test_without_any_token_the_loopback_server_is_open(tmp_path):
    async with web(tmp_path) as quorate, quorate.client() as client:
        assert "guest_list" in {tool.name for tool in (await client.list_tools()).tools}


async def test_from_the_first_token_on_everybody_needs_one(tmp_path):
    async with web(tmp_path) as quorate:
        assert (await quorate.get("/approvals")).status_code == 200
        token = await quorate.token("alice")
        await quorate.rig.clock.advance(5)
        refused = await quorate.post()
        assert refused.status_code == 401
        assert refused.headers["www-authenticate"] == 'Bearer realm="quorate"'
        assert (await quorate.post(token)).status_code != 401


async def test_the_server_does_not_open_again_when_the_last_token_is_revoked(tmp_path):
    async with web(tmp_path) as quorate:
        token = await quorate.token("alice")
        await quorate.rig.clock.advance(5)
        assert (await quorate.post()).status_code == 401
        await quorate.tokens.revoke("alice")
        await quorate.rig.clock.advance(5)
        assert (await quorate.post(token)).status_code == 401
        assert (await quorate.post()).status_code == 401


@pytest.mark.parametrize("way", ["revoked", "expired"])
async def test_a_token_that_ends_also_ends_its_open_session(tmp_path, way):
    async with web(tmp_path) as quorate:
        token = await quorate.token("alice", expires=quorate.rig.clock.now() + 60)
        async with quorate.client(token, mode="legacy") as client:
            assert (await client.list_tools()).tools
            if way == "revoked":
                await quorate.tokens.revoke("alice")
            await quorate.rig.clock.advance(5 if way == "revoked" else 60)
            answer = await quorate.post(token)
            assert answer.status_code == 401
            assert answer.json()["error"] == "invalid_token"
            assert 'error="invalid_token"' in answer.headers["www-authenticate"]
            with pytest.raises(Exception, match="error response"):
                await client.list_tools()


@pytest.mark.parametrize(
    "header",
    ["Basic YWxpY2U6eA==", "Bearer", "Bearer nonsense", "Bearer qrt_000000000000_" + "0" * 64, "qrt_x"],
)
async def test_other_credentials_are_refused(tmp_path, header):
    async with web(tmp_path) as quorate:
        await quorate.token("alice")
        answer = await quorate.post(Authorization=header)
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"].startswith("Bearer ")


async def test_a_token_in_the_address_is_no_credential(tmp_path):
    async with web(tmp_path) as quorate:
        token = await quorate.token("alice")
        answer = await quorate.plain.post(f"/mcp?access_token={token}&token={token}", json=LOOK)
        assert answer.status_code == 401


@ERAS
async def test_the_list_follows_the_tokens_scope(tmp_path, mode):
    async with web(tmp_path) as quorate:
        reader, worker = await quorate.token("reader"), await quorate.token("worker", "operate", toolsets=["guests"])
        admin = await quorate.token("admin", "admin")
        names = {}
        for name, token in {"reader": reader, "worker": worker, "admin": admin}.items():
            async with quorate.client(token, mode=mode) as client:
                names[name] = {tool.name for tool in (await client.list_tools()).tools}
        assert "guest_list" in names["reader"]
        assert "guest_power" not in names["reader"]
        assert "guest_power" in names["worker"]
        assert not {"guest_delete", "snapshot_create", "node_list"} & names["worker"]
        assert names["reader"] | names["worker"] < names["admin"]


@ERAS
async def test_what_the_scope_does_not_list_is_refused_when_called(tmp_path, mode):
    async with web(tmp_path) as quorate:
        token = await quorate.token("reader")
        async with quorate.client(token, mode=mode) as client:
            mark = len(quorate.rig.sim.requests)
            answer = await client.call_tool("guest_stop", {"guest": 100})
            assert answer.is_error
            assert "outside the scope of token reader (" in text_of(answer)
            assert "access is read" in text_of(answer) or "the token has read" in text_of(answer)
            assert not [request for request in quorate.rig.requests_since(mark) if request[0] != "GET"]


@ERAS
async def test_resources_are_no_way_around_the_scope(tmp_path, mode):
    async with web(tmp_path) as quorate:
        token = await quorate.token("narrow", toolsets=["guests"])
        async with quorate.client(token, mode=mode) as client:
            assert "router" in str(await client.read_resource("pve://guests/100"))
            with pytest.raises(Exception, match="outside the scope of token narrow"):
                await client.read_resource("pve://nodes/pve1")


@ERAS
async def test_the_audit_trail_names_the_token(tmp_path, mode):
    async with web(tmp_path) as quorate:
        token = await quorate.token("worker", "operate")
        async with quorate.client(token, mode=mode) as client:
            answer = await client.call_tool("guest_power", {"guest": 100, "action": "start", "dry_run": True})
            assert not answer.is_error, text_of(answer)
        caller = quorate.rig.audit()[-1]["caller"]
        assert caller["transport"] == "http"
        assert caller["subject"].startswith("token worker (")
        assert token not in quorate.rig.audit_file.read_text()


async def test_a_session_belongs_to_the_token_that_opened_it(tmp_path):
    async with web(tmp_path) as quorate:
        alice, mallory = await quorate.token("alice", "admin"), await quorate.token("mallory")
        hello = {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "initialize",
            "params": {
                "protocolVersion": "2025-11-25",
                "capabilities": {},
                "clientInfo": {"name": "t", "version": "1"},
            },
        }
        session = (await quorate.post(alice, hello)).headers["mcp-session-id"]
        assert (await quorate.post(alice, mcp_session_id=session)).status_code == 200
        assert (await quorate.post(mallory, mcp_session_id=session)).status_code == 404
        assert (await quorate.post(None, mcp_session_id=session)).status_code == 401


async def test_tokens_are_kept_as_hashes_only(tmp_path):
    async with web(tmp_path) as quorate:
        token = await quorate.token("alice")
        await quorate.post(token)
        secret = token.rsplit("_", 1)[1].encode()
        assert all(secret not in file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())


async def test_while_the_store_is_away_known_tokens_hold_a_quarter_of_an_hour_and_nobody_new_gets_in(tmp_path):
    async with web(tmp_path, http=HttpSettings(sessions=False)) as quorate:
        token = await quorate.token("alice")
        assert (await quorate.post(token)).status_code == 200
        await quorate.rig.app.store.close()
        for file in tmp_path.glob("state.sqlite*"):
            file.unlink()
        (tmp_path / "state.sqlite").mkdir()
        await quorate.rig.clock.advance(60)
        assert (await quorate.post(token)).status_code == 200
        assert (await quorate.post("qrt_000000000000_" + "0" * 64)).status_code == 503
        assert (await quorate.get("/readyz")).status_code == 503
        assert (await quorate.get("/healthz")).status_code == 200
        await quorate.rig.clock.advance(15 * 60)
        assert (await quorate.post(token)).status_code == 503
