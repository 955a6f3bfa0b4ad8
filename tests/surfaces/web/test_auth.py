"""Tokens of an external issuer: who is believed, and every way to pretend."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.rigs.mcp_session import text_of
from tests.rigs.oauth_issuer import AUDIENCE, issuing, signed_with_public_key, unsigned
from tests.rigs.web_server import web

pytestmark = pytest.mark.anyio


@pytest.fixture
async def issuer(anyio_backend):
    async with issuing() as running:
        running.add_key("one", "ES256")
        yield running


async def test_the_server_says_who_gives_out_tokens(tmp_path, issuer):
    async with web(tmp_path, http=issuer.settings()) as quorate:
        refused = await quorate.post()
        assert refused.status_code == 401
        where = f"{quorate.url}/.well-known/oauth-protected-resource/mcp"
        assert f'resource_metadata="{where}"' in refused.headers["www-authenticate"]
        for path in (where, f"{quorate.url}/.well-known/oauth-protected-resource"):
            described = (await quorate.get(path)).json()
            assert described["resource"] == f"{quorate.url}/mcp"
            assert described["authorization_servers"] == [issuer.url]
            assert described["scopes_supported"] == ["quorate:read", "quorate:operate", "quorate:admin"]


async def test_behind_a_public_address_the_metadata_names_that(tmp_path, issuer):
    settings = issuer.settings(public_url="https://quorate.example.com")
    async with web(tmp_path, http=settings) as quorate:
        described = (await quorate.get("/.well-known/oauth-protected-resource/mcp")).json()
        assert described["resource"] == AUDIENCE
        challenge = (await quorate.post()).headers["www-authenticate"]
        assert 'resource_metadata="https://quorate.example.com/.well-known/oauth-protected-resource/mcp"' in challenge


async def test_without_an_issuer_there_is_no_such_metadata(tmp_path):
    async with web(tmp_path) as quorate:
        assert (await quorate.get("/.well-known/oauth-protected-resource/mcp")).status_code == 404


@pytest.mark.parametrize("algorithm", ["RS256", "ES256", "EdDSA"])
async def test_a_token_of_the_issuer_opens_the_door(tmp_path, issuer, algorithm):
    issuer.add_key("two", algorithm)
    async with web(tmp_path, http=issuer.settings()) as quorate:
        token = issuer.token("two", algorithm, aud=["https://other.example.com", AUDIENCE])
        async with quorate.client(token) as client:
            assert "guest_list" in {tool.name for tool in (await client.list_tools()).tools}


async def test_metadata_is_found_for_an_issuer_with_a_path(tmp_path):
    async with issuing("/realms/home") as issuer:
        issuer.add_key("one", "ES256")
        async with web(tmp_path, http=issuer.settings()) as quorate:
            assert (await quorate.post(issuer.token())).status_code == 400  # let in, but it has no session
        assert issuer.asked == ["/.well-known/oauth-authorization-server/realms/home", "/keys"]


@pytest.mark.parametrize(
    ("claims", "sees", "misses"),
    [
        ({"scope": "openid quorate:operate quorate:read"}, {"guest_power", "node_list"}, {"guest_stop"}),
        ({"scope": None, "scp": ["quorate:admin"]}, {"guest_stop", "guest_power"}, set()),
        ({"scope": "quorate:operate quorate:toolset:guests"}, {"guest_power"}, {"node_list"}),
    ],
)
async def test_scopes_decide_what_is_listed(tmp_path, issuer, claims, sees, misses):
    async with web(tmp_path, http=issuer.settings()) as quorate, quorate.client(issuer.token(**claims)) as client:
        names = {tool.name for tool in (await client.list_tools()).tools}
        assert sees <= names
        assert not misses & names


async def test_scopes_decide_what_is_run(tmp_path, issuer):
    async with web(tmp_path, http=issuer.settings()) as quorate, quorate.client(issuer.token()) as client:
        answer = await client.call_tool("guest_stop", {"guest": 100})
        assert answer.is_error
        assert f"outside the scope of alice of {issuer.url}" in text_of(answer)


@pytest.mark.parametrize(
    "scope",
    [
        None,
        "",
        "openid",
        "read",
        "quorate:root",
        "quorate:toolset:guests",
        "QUORATE:READ",
        7,
        True,
        {"quorate:admin": 1},
        [7],
    ],
)
async def test_a_token_without_a_scope_of_ours_is_forbidden(tmp_path, issuer, scope):
    async with web(tmp_path, http=issuer.settings()) as quorate:
        answer = await quorate.post(issuer.token(scope=scope))
        assert answer.status_code == 403
        challenge = answer.headers["www-authenticate"]
        assert 'error="insufficient_scope"' in challenge
        assert 'scope="quorate:read"' in challenge


@pytest.mark.parametrize(
    ("claims", "says"),
    [
        ({"exp": int(time.time()) - 120}, "expired"),
        ({"exp": None}, "lacks"),
        ({"nbf": int(time.time()) + 86400}, "not valid yet"),
        ({"iss": "http://127.0.0.1:1"}, "another issuer"),
        ({"iss": None}, "lacks"),
        ({"aud": "https://other.example.com/mcp"}, "not made for this server"),
        ({"aud": AUDIENCE + "/"}, "not made for this server"),
        ({"aud": None}, "lacks"),
        ({"sub": None}, "lacks"),
        ({"sub": "line\nbreak"}, "subject"),
        ({"sub": "x" * 300}, "subject"),
    ],
)
async def test_wrong_claims_are_refused(tmp_path, issuer, claims, says):
    async with web(tmp_path, http=issuer.settings()) as quorate:
        answer = await quorate.post(issuer.token(**claims))
        assert answer.status_code == 401
        assert says in answer.json()["error_description"]


async def test_a_clock_that_is_a_little_off_is_forgiven(tmp_path, issuer):
    async with web(tmp_path, http=issuer.settings()) as quorate:
        now = int(time.time())
        assert (await quorate.post(issuer.token(exp=now - 5, nbf=now - 60))).status_code == 400
        assert (await quorate.post(issuer.token(nbf=now + 15))).status_code == 400


async def test_unsigned_and_forged_tokens_are_refused(tmp_path, issuer):
    issuer.add_key("rsa", "RS256")
    good = issuer.token()
    head, body, signature = good.split(".")
    other = issuer.token(sub="mallory", scope="quorate:admin").split(".")[1]
    forged = {
        "alg none": unsigned(good, alg="none", kid="one"),
        "alg None": unsigned(good, alg="None", kid="one"),
        "no alg": unsigned(good, kid="one"),
        "empty signature": f"{head}.{body}.",
        "other claims": f"{head}.{other}.{signature}",
        "key confusion": signed_with_public_key(issuer, "rsa"),
        "another algorithm's key": issuer.token("rsa", "RS256", header={"kid": "one"}),
        "key in the header": issuer.token(header={"jwk": issuer.published[0], "kid": "mine"}),
        "key address in the header": issuer.token(header={"jku": "http://127.0.0.1:1/keys", "kid": "mine"}),
        "critical extension": issuer.token(header={"crit": ["exp"], "exp": 1}),
        "no access token": issuer.token(header={"typ": "logout+jwt"}),
        "key not named": unsigned(good, alg="ES256"),
        "a list as alg": unsigned(good, alg=[], kid="one"),
        "an object as alg": unsigned(good, alg={}, kid="one"),
    }
    async with web(tmp_path, http=issuer.settings(failure_limit=0)) as quorate:
        assert (await quorate.post(good)).status_code == 400
        for trick, token in forged.items():
            answer = await quorate.post(token)
            assert answer.status_code == 401, trick
            assert 'error="invalid_token"' in answer.headers["www-authenticate"], trick


@pytest.mark.filterwarnings("ignore::jwt.warnings.InsecureKeyLengthWarning")
async def test_keys_that_are_not_for_signing_or_too_weak_are_not_used(tmp_path, issuer):
    issuer.add_key("enc", "ES256", use="enc")
    issuer.add_key("other alg", "RS256", alg="RS512")
    issuer.add_key("weak", "RS256", size=1024)
    async with web(tmp_path, http=issuer.settings()) as quorate:
        assert (await quorate.post(issuer.token("enc"))).status_code == 401
        assert (await quorate.post(issuer.token("other alg", "RS256"))).status_code == 401
        assert (await quorate.post(issuer.token("weak", "RS256"))).status_code == 401


async def test_a_flood_of_unknown_keys_asks_the_issuer_only_once(tmp_path, issuer):
    async with web(tmp_path, http=issuer.settings(failure_limit=0)) as quorate:
        assert (await quorate.post(issuer.token())).status_code == 400
        asked = len(issuer.asked)
        await quorate.rig.clock.advance(60)
        flood = [issuer.token(header={"kid": f"unknown-{number}"}) for number in range(40)]
        answers = await asyncio.gather(*(quorate.post(token) for token in flood))
        assert {answer.status_code for answer in answers} == {401}
        assert issuer.asked[asked:].count("/keys") == 1
        assert (await quorate.post(issuer.token())).status_code == 400


async def test_a_new_key_of_the_issuer_is_found_and_an_old_one_forgotten(tmp_path, issuer):
    async with web(tmp_path, http=issuer.settings()) as quorate:
        old = issuer.token()
        assert (await quorate.post(old)).status_code == 400
        issuer.published.clear()
        issuer.add_key("two", "EdDSA")
        await quorate.rig.clock.advance(60)
        assert (await quorate.post(issuer.token("two", "EdDSA"))).status_code == 400
        assert (await quorate.post(old)).status_code == 401


async def test_while_the_issuer_is_away_known_keys_hold_for_an_hour_and_then_nobody_gets_in(tmp_path, issuer):
    async with web(tmp_path, http=issuer.settings()) as quorate:
        assert (await quorate.post(issuer.token())).status_code == 400
        issuer.silent = True
        await quorate.rig.clock.advance(1800)
        assert (await quorate.post(issuer.token())).status_code == 400
        await quorate.rig.clock.advance(3000)
        answer = await quorate.post(issuer.token())
        assert answer.status_code == 503
        assert "retry-after" in answer.headers


@pytest.mark.parametrize(
    "metadata", [{"issuer": "https://evil.example.com"}, {"jwks_uri": None}, {"jwks_uri": "file:///x"}]
)
async def test_metadata_of_somebody_else_is_not_believed(tmp_path, issuer, metadata):
    issuer.metadata = metadata
    async with web(tmp_path, http=issuer.settings()) as quorate:
        assert (await quorate.post(issuer.token())).status_code == 503
        assert "/keys" not in issuer.asked


async def test_tokens_of_our_own_work_beside_an_issuer(tmp_path, issuer):
    async with web(tmp_path, http=issuer.settings()) as quorate:
        token = await quorate.token("bob", "operate")
        async with quorate.client(token) as client:
            assert "guest_power" in {tool.name for tool in (await client.list_tools()).tools}
