"""Approvals: bound to caller, arguments and identity, answered once, used once, expired in time."""

from __future__ import annotations

import asyncio
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

import pytest

from quorate.problems import Conflict, NotFound, Refused
from quorate.state.approvals import (
    MOST_PENDING,
    PENDING_SECONDS,
    REMEMBERED_SECONDS,
    Approvals,
    Remark,
    RemarkKind,
    Request,
    State,
    Use,
    request_digest,
)
from quorate.state.store import Store
from tests.rigs import races
from tests.rigs.manual_clock import HandClock
from tests.rigs.processes import FORKED

pytestmark = pytest.mark.anyio

ARGUMENTS = {"guest": "web01", "purge": True}
DELETE = Request(
    caller="ada/some-client",
    cluster="prod",
    tool="guest_delete",
    risk="destroy",
    digest=request_digest("ada/some-client", "prod", "guest_delete", ARGUMENTS),
    identity="qemu 100 web01 8f3c",
    summary="Delete VM 100 (web01)",
    plan=("DELETE /nodes/pve1/qemu/100",),
)


@pytest.fixture
def approvals(store: Store) -> Approvals:
    return Approvals(store)


@pytest.fixture
def elsewhere(replica: Store) -> Approvals:
    return Approvals(replica)


async def used(approvals: Approvals, id: str, **other: str) -> Use:
    request = replace(DELETE, **other)  # type: ignore[arg-type]
    return await approvals.use(id, request.caller, request.digest, request.identity)


async def test_a_request_is_pending_until_an_operator_answers(approvals: Approvals, clock: HandClock):
    asked = await approvals.ask(DELETE)
    assert asked.state is State.PENDING
    assert (asked.tool, asked.plan, asked.identity) == (DELETE.tool, DELETE.plan, DELETE.identity)
    assert await used(approvals, asked.id) is Use.PENDING
    clock.now += 60
    answered = await approvals.answer(asked.id, True, "operator", "looks right")
    assert (answered.state, answered.answered_by, answered.reason) == (State.APPROVED, "operator", "looks right")
    assert answered.answered_at == clock.now
    assert await used(approvals, asked.id) is Use.OK
    assert await used(approvals, asked.id) is Use.USED


async def test_remarks_keep_their_kind_and_those_of_older_versions_are_still_shown(approvals: Approvals, store: Store):
    remarks = (Remark(RemarkKind.LOST, "scsi0"), Remark(RemarkKind.OTHER, "warning: of a fact"))
    asked = await approvals.ask(replace(DELETE, remarks=remarks))
    assert asked.remarks == remarks
    assert [str(remark) for remark in asked.remarks] == ["lost: scsi0", "warning: of a fact"]
    older = '["This cannot be undone", "lost: scsi0"]'
    await store.execute("UPDATE quorate_approvals SET remarks = $1 WHERE id = $2", older, asked.id)
    stored = await approvals.get(asked.id)
    assert stored is not None
    assert [str(remark) for remark in stored.remarks] == ["This cannot be undone", "lost: scsi0"]


def test_only_ok_is_true():
    assert [use for use in Use if use] == [Use.OK]


async def test_an_id_can_be_read_aloud_and_typed(approvals: Approvals):
    asked = await approvals.ask(DELETE)
    assert len(asked.id) == 11
    assert not set(asked.id) - set("0123456789abcdefghjkmnpqrstvwxyz-")
    assert (await approvals.answer(f"  {asked.id.upper()} ", True, "operator")).id == asked.id


async def test_the_same_request_is_the_same_row(approvals: Approvals, elsewhere: Approvals):
    asked = await asyncio.gather(*(server.ask(DELETE) for server in (approvals, elsewhere) * 10))
    assert len({approval.id for approval in asked}) == 1
    assert len(await approvals.list()) == 1
    await approvals.answer(asked[0].id, True, "operator")
    assert (await elsewhere.ask(DELETE)).state is State.APPROVED


async def test_after_use_the_same_request_is_asked_anew(approvals: Approvals):
    asked = await approvals.ask(DELETE)
    await approvals.answer(asked.id, True, "operator")
    assert await used(approvals, asked.id)
    again = await approvals.ask(DELETE)
    assert again.id != asked.id
    assert again.state is State.PENDING


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"caller": "eve/some-client"}, Use.OTHER_CALLER),
        ({"digest": request_digest("ada/some-client", "prod", "guest_delete", {"guest": "db01"})}, Use.OTHER_ARGUMENTS),
        ({"identity": "qemu 100 web02 8f3c"}, Use.OTHER_IDENTITY),
    ],
)
async def test_an_approval_is_bound_to_caller_arguments_and_identity(approvals: Approvals, other, why):
    asked = await approvals.ask(DELETE)
    await approvals.answer(asked.id, True, "operator")
    assert await used(approvals, asked.id, **other) is why
    assert await used(approvals, asked.id) is Use.OK


async def test_an_id_that_nobody_has_is_unknown(approvals: Approvals):
    assert await used(approvals, "aaaaa-aaaaa") is Use.UNKNOWN
    assert await approvals.get("aaaaa-aaaaa") is None
    with pytest.raises(NotFound, match="aaaaa-aaaaa"):
        await approvals.answer("aaaaa-aaaaa", True, "operator")


async def test_what_is_denied_stays_denied_and_is_not_asked_again_at_once(approvals: Approvals, clock: HandClock):
    asked = await approvals.ask(DELETE)
    await approvals.answer(asked.id, False, "operator", "not on a Friday")
    assert await used(approvals, asked.id) is Use.DENIED
    again = await approvals.ask(DELETE)
    assert (again.id, again.state, again.reason) == (asked.id, State.DENIED, "not on a Friday")
    clock.now += 16 * 60
    assert (await approvals.ask(DELETE)).state is State.PENDING


async def test_an_expired_request_cannot_be_approved(approvals: Approvals, clock: HandClock):
    asked = await approvals.ask(DELETE)
    clock.now = asked.expires
    with pytest.raises(Conflict, match="expired"):
        await approvals.answer(asked.id, True, "operator")
    assert await used(approvals, asked.id) is Use.EXPIRED
    assert [approval.id for approval in await approvals.list([State.EXPIRED])] == [asked.id]
    assert await approvals.list() == []
    assert (await approvals.ask(DELETE)).id != asked.id


async def test_an_approval_that_is_not_used_in_time_expires(approvals: Approvals, clock: HandClock):
    asked = await approvals.ask(DELETE)
    clock.now = asked.expires - 1
    answered = await approvals.answer(asked.id, True, "operator")
    clock.now = answered.expires - 1  # there is time to use it, however late the answer came
    assert (await approvals.find(DELETE.caller, DELETE.digest)) == answered
    clock.now += 1
    assert await approvals.find(DELETE.caller, DELETE.digest) is None
    assert await used(approvals, asked.id) is Use.EXPIRED


async def test_a_target_that_changed_voids_what_was_asked_or_approved_for_it(approvals: Approvals):
    asked = await approvals.ask(DELETE)
    await approvals.answer(asked.id, True, "operator")
    recreated = replace(DELETE, identity="qemu 100 web01 ffff")
    again = await approvals.ask(recreated)
    assert again.id != asked.id
    assert again.state is State.PENDING
    assert await used(approvals, asked.id) is Use.EXPIRED
    with pytest.raises(Conflict, match="void: the target has changed since"):
        await approvals.answer(asked.id, True, "operator")


async def test_what_was_denied_for_one_guest_can_be_asked_for_its_successor(approvals: Approvals):
    asked = await approvals.ask(DELETE)
    await approvals.answer(asked.id, False, "operator")
    successor = await approvals.ask(replace(DELETE, identity="qemu 100 web01 ffff"))
    assert successor.state is State.PENDING
    assert await approvals.find(DELETE.caller, DELETE.digest) == successor


async def test_one_caller_does_not_see_the_request_of_another(approvals: Approvals):
    asked = await approvals.ask(DELETE)
    assert await approvals.find("eve/some-client", DELETE.digest) is None
    other = await approvals.ask(replace(DELETE, caller="eve/some-client"))
    assert other.id != asked.id


async def test_one_of_two_answers_given_at_once_counts(approvals: Approvals, elsewhere: Approvals):
    asked = await approvals.ask(DELETE)
    answers = await asyncio.gather(
        *((approvals, elsewhere)[n % 2].answer(asked.id, n % 3 == 0, f"operator {n}") for n in range(20)),
        return_exceptions=True,
    )
    counted = [answer for answer in answers if not isinstance(answer, BaseException)]
    assert len(counted) == 1
    assert Counter(map(type, answers))[Conflict] == 19
    assert await elsewhere.get(asked.id) == counted[0]


async def test_of_fifty_uses_in_several_processes_exactly_one_succeeds(approvals: Approvals, location: str):
    asked = await approvals.ask(DELETE)
    await approvals.answer(asked.id, True, "operator")
    loop = asyncio.get_running_loop()
    with ProcessPoolExecutor(5, mp_context=FORKED) as processes:
        outcomes = await asyncio.gather(
            *(
                loop.run_in_executor(
                    processes, races.use, location, asked.id, DELETE.caller, DELETE.digest, DELETE.identity, 10
                )
                for _ in range(5)
            )
        )
    assert sum((Counter(outcome) for outcome in outcomes), Counter()) == {"OK": 1, "USED": 49}


async def test_of_fifty_uses_on_two_replicas_exactly_one_succeeds(approvals: Approvals, elsewhere: Approvals):
    asked = await approvals.ask(DELETE)
    await elsewhere.answer(asked.id, True, "operator")
    outcomes = await asyncio.gather(*(used((approvals, elsewhere)[n % 2], asked.id) for n in range(50)))
    assert Counter(outcomes) == {Use.OK: 1, Use.USED: 49}


async def test_waiting_ends_with_the_answer(approvals: Approvals, elsewhere: Approvals, clock: HandClock):
    asked = await approvals.ask(DELETE)
    begun = clock.now

    async def an_operator_answers_after_ten_seconds() -> None:
        if clock.now >= begun + 10:
            clock.while_waiting = None
            await elsewhere.answer(asked.id, True, "operator")

    clock.while_waiting = an_operator_answers_after_ten_seconds
    waited = await approvals.wait(asked.id, 40)
    assert waited is not None
    assert waited.state is State.APPROVED
    assert clock.now < begun + 12


async def test_waiting_ends_with_the_time_given(approvals: Approvals, clock: HandClock):
    asked = await approvals.ask(DELETE)
    begun = clock.now
    waited = await approvals.wait(asked.id, 40)
    assert waited is not None
    assert waited.state is State.PENDING
    assert clock.now == begun + 40


async def test_a_caller_cannot_bury_the_operator_in_requests(approvals: Approvals):
    for number in range(MOST_PENDING):
        await approvals.ask(replace(DELETE, digest=f"{number}"))
    with pytest.raises(Refused, match="already wait"):
        await approvals.ask(DELETE)
    assert (await approvals.ask(replace(DELETE, digest="7"))).state is State.PENDING
    assert (await approvals.ask(replace(DELETE, caller="bob"))).state is State.PENDING


async def test_the_newest_are_listed_first_and_the_old_ones_forgotten(approvals: Approvals, clock: HandClock):
    for number in range(4):
        clock.now += 1
        await approvals.ask(replace(DELETE, digest=f"{number}"))
    assert [approval.digest for approval in await approvals.list(limit=3)] == ["3", "2", "1"]
    assert await approvals.list([]) == []
    clock.now += 31 * 24 * 3600
    assert await approvals.list(list(State)) == []


async def test_listing_changes_nothing_and_still_tells_what_has_expired(
    approvals: Approvals, store: Store, clock: HandClock, monkeypatch: pytest.MonkeyPatch
):
    asked = await approvals.ask(DELETE)
    clock.now += PENDING_SECONDS

    async def refuse(*_: object) -> int:
        raise AssertionError("a list was written")

    monkeypatch.setattr(store, "execute", refuse)
    assert await approvals.list() == []
    assert [(approval.id, approval.state) for approval in await approvals.list((State.EXPIRED,))] == [
        (asked.id, State.EXPIRED)
    ]


def test_the_digest_tells_every_difference_and_no_other():
    def digest(**other):
        call = {"caller": "ada", "cluster": "prod", "tool": "guest_delete", "arguments": {"guest": "web01", "a": 1}}
        return request_digest(**{**call, **other})

    assert digest() == digest(arguments={"a": 1, "guest": "web01"})
    others = [
        digest(caller="ada "),
        digest(cluster="PROD"),
        digest(tool="guest_stop"),
        digest(arguments={"guest": "web01"}),
        digest(arguments={"guest": "web01", "a": "1"}),
        digest(arguments={"guest": "web01", "a": True}),
        digest(arguments={"guest": "wеb01", "a": 1}),  # noqa: RUF001
    ]
    assert len({digest(), *others}) == len(others) + 1


async def test_a_denial_is_found_by_target_on_every_replica_for_a_day(
    approvals: Approvals, elsewhere: Approvals, clock: HandClock
):
    asked = await approvals.ask(replace(DELETE, targets=("prod: guest 100", "prod: guest 101")))
    await approvals.answer(asked.id, False, "boss", "not yet")
    clock.now += 14 * 60
    stop = replace(DELETE, caller="bob/other", tool="guest_stop", digest="d" * 64, targets=("prod: guest 101",))
    again = await elsewhere.ask(stop)
    assert again.reminder.startswith("You denied this 14m ago: not yet (")
    assert await elsewhere.last_denial(["prod: guest 102"]) is None
    assert await elsewhere.last_denial([]) is None
    clock.now += REMEMBERED_SECONDS
    assert await elsewhere.last_denial(["prod: guest 100"]) is None


async def test_the_outcome_of_the_change_that_used_it_is_shown_on_every_replica(
    approvals: Approvals, elsewhere: Approvals, clock: HandClock
):
    asked = await approvals.ask(DELETE)
    await approvals.answer(asked.id, True, "boss")
    assert await approvals.use(asked.id, DELETE.caller, DELETE.digest, DELETE.identity, "c0ffee")
    for outcome, standing in (("", "approved, no outcome yet"), ("running", "approved, running")):
        await approvals.record_outcome("c0ffee", outcome)
        assert [approval.standing for approval in await elsewhere.list(tuple(State))] == [standing]
    clock.now += 60
    await elsewhere.record_outcome("c0ffee", "done")
    await elsewhere.record_outcome("another", "failed")
    (row,) = await approvals.list(tuple(State))
    assert (row.outcome, row.ended) == ("done", clock.now)
