"""The operator's passphrase: only a hash is kept, and guessing is slow and ends soon."""

from __future__ import annotations

import asyncio
from collections import Counter
from concurrent.futures import ProcessPoolExecutor

import pytest

from quorate.problems import BadArgument, Conflict
from quorate.state import passphrase as hashing
from quorate.state.passphrase import (
    LOCK_SECONDS,
    TRIES,
    Passphrase,
    PassphraseLocked,
    PassphraseNotSet,
    PassphraseWrong,
)
from quorate.state.store import Store
from tests.rigs import races
from tests.rigs.manual_clock import HandClock
from tests.rigs.processes import FORKED

pytestmark = pytest.mark.anyio

WORDS = "correct horse battery"
OTHER = "tin foil umbrella"


DEAR = hashing.COST
"""What it costs outside of tests."""


@pytest.fixture
def passphrase(store: Store) -> Passphrase:
    return Passphrase(store)


async def test_it_is_right_or_wrong_once_it_is_set(passphrase: Passphrase):
    assert not await passphrase.is_set()
    with pytest.raises(PassphraseNotSet):
        await passphrase.verify(WORDS)
    await passphrase.set(WORDS)
    assert await passphrase.is_set()
    assert await passphrase.verify(WORDS)
    assert not await passphrase.verify(OTHER)


async def test_only_a_hash_is_kept_and_a_guess_is_dear(
    store: Store, passphrase: Passphrase, monkeypatch: pytest.MonkeyPatch
):
    with monkeypatch.context() as patch:
        patch.setattr(hashing, "COST", DEAR)
        await passphrase.set(WORDS)
    kept = (await store.fetch("SELECT * FROM quorate_operator"))[0]
    assert kept["passphrase"].startswith("scrypt$32768$8$3$")
    assert not [word for word in WORDS.split() if word in str(kept)]
    await passphrase.set(OTHER, WORDS)
    await passphrase.set(WORDS, OTHER)
    again = (await store.fetch("SELECT * FROM quorate_operator"))[0]
    assert again["passphrase"] != kept["passphrase"]  # another salt


async def test_changing_it_needs_the_old_one(passphrase: Passphrase):
    await passphrase.set(WORDS)
    for old in (None, OTHER):
        with pytest.raises(PassphraseWrong):
            await passphrase.set(OTHER, old)
    assert await passphrase.verify(WORDS)
    await passphrase.set(OTHER, WORDS)
    assert await passphrase.verify(OTHER)
    assert not await passphrase.verify(WORDS)


async def test_a_short_passphrase_is_refused(passphrase: Passphrase):
    with pytest.raises(BadArgument, match="too short"):
        await passphrase.set("hunter2     ")
    assert not await passphrase.is_set()


async def test_of_two_who_set_it_at_once_one_is_refused(passphrase: Passphrase, replica: Store):
    done = await asyncio.gather(passphrase.set(WORDS), Passphrase(replica).set(OTHER), return_exceptions=True)
    refused = [result for result in done if result is not None]
    assert len(refused) == 1
    assert isinstance(refused[0], Conflict | PassphraseWrong)
    assert [await passphrase.verify(WORDS), await passphrase.verify(OTHER)].count(True) == 1


async def test_the_same_letters_spelt_differently_are_the_same(passphrase: Passphrase):
    await passphrase.set("Kärntner Apfelstrudel")
    assert await passphrase.verify("Ka\u0308rntner Apfelstrudel")


async def test_wrong_tries_lock_it_for_a_while_also_for_other_replicas(
    passphrase: Passphrase, replica: Store, clock: HandClock
):
    await passphrase.set(WORDS)
    for _ in range(TRIES):
        assert not await passphrase.verify(OTHER)
    for checker in (passphrase, Passphrase(replica)):
        with pytest.raises(PassphraseLocked, match="15 minutes"):
            await checker.verify(WORDS)
    clock.now += LOCK_SECONDS - 1
    with pytest.raises(PassphraseLocked, match="in 1 minute"):
        await passphrase.verify(WORDS)
    clock.now += 1
    assert await passphrase.verify(WORDS)


async def test_trying_while_it_is_locked_does_not_prolong_the_lock(passphrase: Passphrase, clock: HandClock):
    await passphrase.set(WORDS)
    for _ in range(TRIES):
        await passphrase.verify(OTHER)
    for _ in range(2):
        clock.now += LOCK_SECONDS / 3
        with pytest.raises(PassphraseLocked):
            await passphrase.verify(OTHER)
    clock.now += LOCK_SECONDS / 3
    assert await passphrase.verify(WORDS)


async def test_a_right_try_ends_the_count(passphrase: Passphrase):
    await passphrase.set(WORDS)
    for _ in range(2):
        for _ in range(TRIES - 1):
            assert not await passphrase.verify(OTHER)
        assert await passphrase.verify(WORDS)


async def test_guessing_from_many_processes_at_once_gets_no_further(passphrase: Passphrase, location: str):
    await passphrase.set(WORDS)
    loop = asyncio.get_running_loop()
    with ProcessPoolExecutor(3, mp_context=FORKED) as processes:
        outcomes = await asyncio.gather(
            *(
                loop.run_in_executor(processes, races.guess, location, [f"guess {n} {m}" for m in range(10)])
                for n in range(3)
            )
        )
    assert sum((Counter(outcome) for outcome in outcomes), Counter()) == {"wrong": TRIES, "locked": 30 - TRIES}
