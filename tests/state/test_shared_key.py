"""Keys that replicas share."""

from __future__ import annotations

import asyncio

import pytest

from quorate.state.store import shared_key

pytestmark = pytest.mark.anyio


async def test_all_replicas_have_the_same_key_whoever_asks_first(store, replica):
    keys = await asyncio.gather(*(shared_key(server, "a") for server in (store, replica) * 5))
    assert len(set(keys)) == 1
    assert len(keys[0]) == 32


async def test_keys_of_different_names_differ(store):
    assert await shared_key(store, "a") != await shared_key(store, "b")
