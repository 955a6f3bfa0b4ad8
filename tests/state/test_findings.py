"""Findings, messages and the lease in either database."""

from __future__ import annotations

import asyncio

import pytest

from quorate.problems import Conflict, NotFound
from quorate.state.store import Lease
from quorate.watch.finding_store import Event, Events, Findings, Observation
from quorate.watch.outbox import Notice, Outbox

pytestmark = pytest.mark.anyio

PATIENCE = 20.0
DOWN = Observation("node-down", "node pve1", "warning", "Node pve1 is offline", "view")
WORSE = Observation("node-down", "node pve1", "critical", "Node pve1 is offline", "view")
NOTICE = Notice("opened", "critical", "demo", "node-down", "Node pve1 is offline")


async def test_a_finding_opens_once_is_seen_again_gets_worse_and_ends(store, replica, clock):
    findings = Findings(store)
    for opened in (1, 0):
        assert (await findings.observe("demo", [DOWN], lambda _: True)).opened == opened
    assert (await Findings(replica).observe("demo", [DOWN], lambda _: True, known=[])).opened == 0
    clock.now += 60
    assert (await findings.observe("demo", [WORSE], lambda _: True)).worse == 1
    (finding,) = await findings.open()
    assert (finding.severity, finding.event, finding.revision, finding.last_seen - finding.opened) == (
        "critical",
        "worse",
        2,
        60,
    )
    assert await findings.counts() == {("demo", "node-down", "critical", "open"): 1}
    assert (await findings.observe("demo", [], lambda _: False)).resolved == 0
    assert (await findings.observe("demo", [], lambda _: True)).resolved == 1
    assert [resolved.id for resolved in await findings.resolved_since(0)] == [finding.id]
    with pytest.raises(Conflict):
        await findings.acknowledge(finding.id, "tester")
    with pytest.raises(NotFound):
        await findings.get("nothing")
    await findings.observe("demo", [DOWN], lambda _: True)
    assert len(await findings.opened_since(0)) == 2


async def test_a_message_is_enqueued_once_and_claimed_by_one_process(store, replica, clock):
    first, second = Outbox(store, "1" * 16), Outbox(replica, "2" * 16)
    assert await first.put("phone", "f1", 1, NOTICE, due=clock.now, together=False)
    assert not await second.put("phone", "f1", 1, NOTICE, due=clock.now, together=False)
    parcel = await first.claim("phone")
    assert parcel is not None
    assert await second.claim("phone") is None
    assert await second.recover() == 0  # its process lives
    await first.mark_failed(parcel, "refused")
    assert await first.claim("phone") is None
    clock.now += 31
    again = await second.claim("phone")
    assert again is not None
    assert (again.id, again.unsure) == (parcel.id, False)
    await second.mark_sent(again)
    assert await second.counts() == {("phone", "sent"): 1}
    assert await second.failing() == {}


async def test_a_message_of_a_process_that_is_gone_may_have_arrived(store, replica, clock):
    first, second = Outbox(store, "1" * 16), Outbox(replica, "2" * 16)
    for number in range(3):
        await first.put("phone", f"f{number}", 1, NOTICE, due=clock.now, together=True)
    parcel = await first.claim("phone")
    assert parcel is not None
    assert len(parcel.notices) == 3
    await store.close()
    await first.put("phone", "later", 1, NOTICE, due=clock.now, together=True)
    async with asyncio.timeout(PATIENCE):
        while not (recovered := await second.recover()):
            pass
    assert recovered == 3
    again = await second.claim("phone")
    assert again is not None
    assert (again.id, again.unsure, len(again.notices)) == (parcel.id, True, 3)


async def test_one_process_has_the_lease_and_another_takes_it_over(store, replica, clock):
    first, second = Lease(store, "watch", 120), Lease(replica, "watch", 120)
    assert await first.take()
    assert await first.take()
    assert not await second.take()
    clock.now += 121  # it hangs
    assert await second.take()
    assert not await first.take()
    await replica.close()  # it is gone, and the database notices that a moment later
    async with asyncio.timeout(PATIENCE):
        while not await first.take():
            pass
    await first.release()
    assert await Lease(store, "watch", 120).take()


async def test_an_event_is_recorded_once(store, clock):
    events = Events(store)
    event = Event("demo", clock.now, "created", "guest 1", "vm 1")
    for _ in range(2):
        await events.record([event], before=clock.now - 60)
    assert await events.since(0, 10) == [event]
