"""Bearer tokens: shown once, stored hashed, scoped, expiring, revocable."""

from __future__ import annotations

import asyncio

import pytest

from quorate.problems import BadArgument, Conflict
from quorate.state.store import StateUnavailable, Store, open_store
from quorate.state.tokens import AWAY_SECONDS, CACHE_SECONDS, NEWCOMER_SECONDS, Tokens
from tests.rigs.manual_clock import HandClock

pytestmark = pytest.mark.anyio


@pytest.fixture
def tokens(store: Store) -> Tokens:
    return Tokens(store)


@pytest.fixture
def elsewhere(replica: Store) -> Tokens:
    return Tokens(replica)


async def test_a_token_grants_what_it_was_made_for(tokens: Tokens, clock: HandClock):
    token = await tokens.create(
        "ci", "operate", toolsets=["guests", "tasks"], clusters=["prod"], expires=clock.now + 3600
    )
    assert token.plain.startswith(f"qrt_{token.grant.id}_")
    grant = await tokens.verify(token.plain)
    assert grant is not None
    assert (grant.name, grant.access) == ("ci", "operate")
    assert grant.toolsets == frozenset({"guests", "tasks"})
    assert grant.clusters == frozenset({"prod"})
    assert grant.expires == clock.now + 3600


async def test_without_a_scope_a_token_covers_everything_and_with_an_empty_one_nothing(tokens: Tokens):
    wide = await tokens.verify((await tokens.create("wide")).plain)
    narrow = await tokens.verify((await tokens.create("narrow", toolsets=[], clusters=[])).plain)
    assert wide is not None
    assert narrow is not None
    assert (wide.access, wide.toolsets, wide.clusters) == ("read", None, None)
    assert (narrow.toolsets, narrow.clusters) == (frozenset(), frozenset())


async def test_the_secret_is_not_in_the_store(tokens: Tokens, store: Store):
    token = await tokens.create("ci")
    secret = token.plain.rpartition("_")[2]
    assert len(secret) == 64
    assert secret not in str(await store.fetch("SELECT * FROM quorate_tokens"))
    assert secret not in str(await tokens.list())


async def test_anything_but_the_very_token_is_refused(tokens: Tokens):
    token, other = await tokens.create("ci"), await tokens.create("other")
    key, secret = token.plain.removeprefix("qrt_").split("_")
    wrong = [
        "",
        "qrt__",
        token.plain[:-1],
        token.plain[:-1] + ("0" if token.plain[-1] != "0" else "1"),
        token.plain.upper(),
        f" {token.plain}",
        f"{token.plain}\n",
        f"qrt_{other.grant.id}_{secret}",
        f"qrt_{'0' * 12}_{secret}",
        f"qrt_{key}_{'0' * 64}",
        f"qrt_{key}' OR '1'='1_{secret}",
        f"{token.plain}é",
    ]
    assert [await tokens.verify(text) for text in wrong] == [None] * len(wrong)
    assert await tokens.verify(token.plain) is not None


async def test_an_expired_token_is_refused(tokens: Tokens, clock: HandClock):
    token = await tokens.create("ci", expires=clock.now + 60)
    clock.now += 59
    assert await tokens.verify(token.plain) is not None
    clock.now += 1
    assert await tokens.verify(token.plain) is None


async def test_a_revoked_token_ends_at_once_here_and_soon_elsewhere(
    tokens: Tokens, elsewhere: Tokens, clock: HandClock
):
    token = await tokens.create("ci")
    assert await elsewhere.verify(token.plain) is not None
    assert await tokens.revoke("ci")
    assert await tokens.verify(token.plain) is None
    clock.now += CACHE_SECONDS
    assert await elsewhere.verify(token.plain) is None
    assert not await tokens.revoke("ci")
    assert [(grant.name, grant.revoked is not None) for grant in await tokens.list()] == [("ci", True)]


async def test_a_token_can_be_revoked_by_its_id(tokens: Tokens):
    token, other = await tokens.create("ci"), await tokens.create("other")
    assert await tokens.revoke(token.grant.id)
    assert await tokens.verify(token.plain) is None
    assert await tokens.verify(other.plain) is not None


async def test_a_new_token_works_elsewhere_almost_at_once(tokens: Tokens, elsewhere: Tokens, clock: HandClock):
    first = await tokens.create("first")
    assert await elsewhere.verify(first.plain) is not None
    second = await tokens.create("second")
    clock.now += NEWCOMER_SECONDS
    assert await elsewhere.verify(second.plain) is not None


async def test_many_clients_do_not_hammer_the_store_and_known_tokens_outlive_it_for_a_while(tmp_path, clock: HandClock):
    """Changes stop without a store, reads continue: so what was read last is trusted, but not for ever."""
    file = tmp_path / "state" / "quorate.db"
    async with open_store(str(file), clock=clock) as store:
        tokens = Tokens(store)
        token = await tokens.create("ci")
        assert all(await asyncio.gather(*(tokens.verify(token.plain) for _ in range(200))))
        await store.close()
        file.unlink()
        file.mkdir()
        assert all(await asyncio.gather(*(tokens.verify(token.plain) for _ in range(200))))
        clock.now += CACHE_SECONDS
        assert all(await asyncio.gather(*(tokens.verify(token.plain) for _ in range(200))))
        assert await tokens.verify(token.plain[:-1] + ("0" if token.plain[-1] != "0" else "1")) is None
        with pytest.raises(StateUnavailable):
            await tokens.verify(f"qrt_{'0' * 12}_{'0' * 64}")
        clock.now += AWAY_SECONDS
        with pytest.raises(StateUnavailable):
            await tokens.verify(token.plain)


async def test_a_token_revoked_while_the_store_was_away_ends_when_it_is_back(tmp_path, clock: HandClock):
    file = tmp_path / "state" / "quorate.db"
    async with open_store(str(file), clock=clock) as store, open_store(str(file), clock=clock) as other:
        tokens = Tokens(store)
        token = await tokens.create("ci")
        assert await tokens.verify(token.plain)
        await store.close()
        file.rename(file.with_suffix(".away"))
        file.mkdir()
        clock.now += CACHE_SECONDS
        assert await tokens.verify(token.plain)
        file.rmdir()
        file.with_suffix(".away").rename(file)
        await Tokens(other).revoke("ci")
        clock.now += CACHE_SECONDS
        assert await tokens.verify(token.plain) is None


async def test_the_last_use_is_noted_to_the_minute(tokens: Tokens, clock: HandClock):
    token = await tokens.create("ci")
    begun = clock.now
    for _ in range(50):
        assert await tokens.verify(token.plain) is not None
        clock.now += 1
    assert [grant.last_used for grant in await tokens.list()] == [begun]
    clock.now += 30
    await tokens.verify(token.plain)
    assert [grant.last_used for grant in await tokens.list()] == [clock.now]


async def test_a_name_is_taken_until_its_token_is_revoked(tokens: Tokens, elsewhere: Tokens):
    await tokens.create("ci")
    with pytest.raises(Conflict, match="already"):
        await elsewhere.create("ci")
    await tokens.revoke("ci")
    await elsewhere.create("ci")


@pytest.mark.parametrize(
    ("name", "access", "expires"), [("", "read", None), ("a b", "read", None), ("x", "root", None), ("x", "read", 1.0)]
)
async def test_nonsense_makes_no_token(tokens: Tokens, name, access, expires):
    with pytest.raises(BadArgument):
        await tokens.create(name, access, expires=expires)
    assert await tokens.list() == []
