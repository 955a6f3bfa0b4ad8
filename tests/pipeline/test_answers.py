"""Which answers count, what is remembered of them, what is typed, and how an approval ends."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
from mcp.types import INVALID_REQUEST, ElicitResult, ErrorData

from pve_simulator.clock import ManualClock
from quorate.config import Approval
from quorate.pipeline.approval import READING_SECONDS, ApprovalPending
from quorate.pipeline.caller import Exchange, Question
from quorate.state.approvals import PENDING_SECONDS, Approvals, State
from quorate.state.approvals import Approval as StoredApproval
from quorate.units import moment
from tests.pipeline.test_safety_table import tries
from tests.rigs.mcp_session import Rig, rig, second_server

pytestmark = pytest.mark.anyio

ERAS = pytest.mark.parametrize("mode", ["auto", "legacy"])
GUEST = 108
"""test-vm, which is stopped."""


@dataclass
class Screen:
    """A client: what it sends back for each question, and after how many seconds."""

    action: Literal["accept", "decline", "cancel"] = "decline"
    seconds: float = 0.0
    typed: str | None = None
    clock: ManualClock | None = None
    questions: list[str] = field(default_factory=list)

    async def __call__(self, context: Any, params: Any) -> ElicitResult:
        self.questions.append(params.message)
        if self.seconds and self.clock is not None:
            await self.clock.advance(self.seconds)
        return ElicitResult(action=self.action, content=None if self.typed is None else {"typed": self.typed})


def asking(tmp_path: Path, screen: Any, **more: Any) -> Any:
    return rig(tmp_path, approval=Approval.ASK, elicitation=screen, **more)


async def requests(quorate: Rig) -> list[StoredApproval]:
    return await Approvals(quorate.app.store).list(tuple(State))


async def answer(quorate: Rig, approve: bool, reason: str | None = None, by: str = "boss") -> StoredApproval:
    """The operator answers the only pending request."""
    approvals = Approvals(quorate.app.store)
    (row,) = await approvals.list()
    return await approvals.answer(row.id, approve, by, reason)


def exists(quorate: Rig, vmid: int = GUEST) -> bool:
    return vmid in quorate.sim.world.guests


# -- answers that nobody gave ------------------------------------------------------------------------------------------


@tries("a client turns a question down without showing it to anyone")
@ERAS
@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_a_client_that_refuses_at_once_leaves_the_request_to_the_operator(
    tmp_path: Path, mode: str, action: Literal["decline", "cancel"]
) -> None:
    async with asking(tmp_path, Screen(action), mode=mode) as quorate:
        refusal = await quorate.refusal("guest_delete", guest=GUEST)
        (row,) = await requests(quorate)
        assert (row.state, row.answered_by) == (State.PENDING, None)
        assert f"quorate approvals approve {row.id}" in refusal
        assert not re.search("denied|[Dd]o not try again", refusal)
        assert quorate.audit()[-1]["outcome"] == "asked"
        assert exists(quorate)
        await answer(quorate, approve=True)
        await quorate.facts("guest_delete", guest=GUEST)
        assert not exists(quorate)


@ERAS
async def test_after_a_refusal_that_nobody_gave_the_call_waits_for_the_operator(tmp_path: Path, mode: str) -> None:
    async with asking(tmp_path, Screen("decline"), mode=mode) as quorate:

        async def operator() -> None:
            while not any("Waiting for an operator" in str(line) for _, _, line in quorate.progress):
                await asyncio.sleep(0)
            await answer(quorate, approve=True)

        answering = asyncio.create_task(operator())
        done = await quorate.facts("guest_delete", guest=GUEST)
        await answering
        assert done["approval"].endswith("by boss")
        assert not exists(quorate)


@pytest.mark.parametrize("wait", [{}, {"wait": 45}], ids=["by default", "wait=45"])
async def test_a_client_that_cannot_ask_hears_of_the_pending_approval_within_three_seconds(
    tmp_path: Path, wait: dict[str, int]
) -> None:
    async with rig(tmp_path, approval=Approval.ASK) as quorate:
        begun = quorate.clock.now()
        assert "waits for an operator's approval" in await quorate.refusal("guest_delete", guest=GUEST, **wait)
        assert quorate.clock.now() - begun <= 3
        await answer(quorate, approve=True)
        await quorate.facts("guest_delete", guest=GUEST)


async def test_a_caller_that_shows_the_question_waits_45_seconds_however_long_it_follows_tasks(tmp_path: Path) -> None:
    async with rig(tmp_path, approval=Approval.ASK) as quorate:
        begun, shown = quorate.clock.now(), list[Question]()
        with pytest.raises(ApprovalPending):
            await quorate.app.pipeline.run(
                "guest_delete", {"guest": GUEST}, Exchange(wait_seconds=600.0, on_wait=shown.append)
            )
        assert len(shown) == 1
        assert 45 <= quorate.clock.now() - begun <= 46


@ERAS
async def test_the_time_counts_from_the_question_and_not_from_the_first_time_it_was_asked(
    tmp_path: Path, mode: str
) -> None:
    """The request has been pending for minutes; the client still answers the second question at once."""
    screen = Screen("decline")
    async with asking(tmp_path, screen, mode=mode) as quorate:
        await quorate.refusal("guest_delete", guest=GUEST, wait=0)
        await quorate.clock.advance(300)
        refusal = await quorate.refusal("guest_delete", guest=GUEST, wait=0)
        assert "waits for" in refusal
        assert [row.state for row in await requests(quorate)] == [State.PENDING]
        assert len(screen.questions) == 2


@ERAS
async def test_a_person_who_read_the_question_and_declines_has_denied_it(tmp_path: Path, mode: str) -> None:
    screen = Screen("decline", seconds=READING_SECONDS)
    async with asking(tmp_path, screen, mode=mode) as quorate:
        screen.clock = quorate.clock
        refusal = await quorate.refusal("guest_delete", guest=GUEST)
        assert "denied by the person at" in refusal
        assert "smaller calls or another tool" in refusal
        assert [row.state for row in await requests(quorate)] == [State.DENIED]
        assert exists(quorate)


@ERAS
async def test_a_question_that_a_person_closes_stays_open_for_the_operator(tmp_path: Path, mode: str) -> None:
    screen = Screen("cancel", seconds=30)
    async with asking(tmp_path, screen, mode=mode) as quorate:
        screen.clock = quorate.clock
        before = quorate.clock.now()
        refusal = await quorate.refusal("guest_delete", guest=GUEST)
        assert quorate.clock.now() - before == pytest.approx(30, abs=1), "the person knows, so the call does not wait"
        (row,) = await requests(quorate)
        assert row.state is State.PENDING
        assert f"quorate approvals approve {row.id}" in refusal


async def test_a_client_that_answers_with_an_error_leaves_the_request_to_the_operator(tmp_path: Path) -> None:
    async def unable(context: Any, params: Any) -> ErrorData:
        return ErrorData(code=INVALID_REQUEST, message="there is nobody here")

    async with asking(tmp_path, unable, mode="legacy") as quorate:
        refusal = await quorate.refusal("guest_delete", guest=GUEST)
        (row,) = await requests(quorate)
        assert row.state is State.PENDING
        assert f"quorate approvals approve {row.id}" in refusal
        assert "inside Quorate" not in refusal


@ERAS
@pytest.mark.parametrize("typed", ["yes", "", None])
async def test_a_wrong_phrase_says_exactly_what_to_type_and_how_else_to_approve(
    tmp_path: Path, mode: str, typed: str | None
) -> None:
    async with asking(tmp_path, Screen("accept", typed=typed), mode=mode) as quorate:
        refusal = await quorate.refusal("guest_delete", guest=GUEST)
        (row,) = await requests(quorate)
        assert "types exactly test-vm." in refusal
        assert f"quorate approvals approve {row.id}" in refusal
        assert row.state is State.PENDING
        assert exists(quorate)


# -- denials are remembered --------------------------------------------------------------------------------------------


@tries("a denied target is requested again with other arguments or another tool")
@ERAS
async def test_a_denial_comes_first_whichever_tool_or_flag_asks_again(tmp_path: Path, mode: str) -> None:
    screen = Screen("cancel")
    async with asking(tmp_path, screen, mode=mode) as quorate:
        await quorate.refusal("guest_delete", guest=GUEST, wait=0)
        await answer(quorate, approve=False, reason="the wiki is still on it")
        await quorate.clock.advance(14 * 60)
        node = quorate.sim.world.guests[GUEST].node
        calls: list[tuple[str, dict[str, Any]]] = [
            ("guest_delete", {"guest": "test-vm", "purge": True}),
            ("api_call", {"method": "DELETE", "path": f"/nodes/{node}/qemu/{GUEST}"}),
            ("snapshot_rollback", {"guest": GUEST, "snapshot": "clean"}),
        ]
        for tool, arguments in calls:
            refusal = await quorate.refusal(tool, **arguments, wait=0)
            assert refusal.startswith("A person denied this 14m ago: the wiki is still on it"), tool
            assert screen.questions[-1].startswith("You denied this 14m ago: the wiki is still on it"), tool
            planned = await quorate.facts(tool, **arguments, dry_run=True)
            assert next(iter(planned)) == "denied_before", tool
            assert planned["denied_before"].startswith("A person denied this 14m ago: the wiki"), tool
        assert exists(quorate)


async def test_a_stored_object_is_recognized_by_its_path(tmp_path: Path) -> None:
    async with rig(tmp_path, approval=Approval.ASK) as quorate:
        await quorate.refusal("access_delete", kind="group", name="family", wait=0)
        await answer(quorate, approve=False, reason="they still log in")
        raw = await quorate.refusal("api_call", method="DELETE", path="/access/groups/family", wait=0)
        assert "they still log in" in raw
        other = await quorate.refusal("api_call", method="DELETE", path="/access/groups/admins", wait=0)
        assert "denied" not in other


async def test_a_denial_is_shown_with_requests_that_already_waited_and_for_a_day(tmp_path: Path) -> None:
    async with rig(tmp_path, approval=Approval.ASK) as quorate:
        approvals = Approvals(quorate.app.store)
        await quorate.refusal("guest_delete", guest=GUEST, wait=0)
        await quorate.refusal("guest_delete", guest=GUEST, purge=True, wait=0)
        await quorate.refusal("guest_delete", guest=206, wait=0)
        first = next(row for row in await approvals.list() if "purge=1" not in str(row.plan) and "108" in row.summary)
        await approvals.answer(first.id, False, "boss", "not today")
        reminders = {row.word: row.reminder for row in await approvals.list()}
        assert reminders["test-vm"].startswith("You denied this just now: not today")
        assert reminders["dev-sandbox"] == ""
        await quorate.clock.advance(23 * 3600)
        assert "23h ago: not today" in await quorate.refusal("guest_delete", guest=GUEST, wait=0)
        await quorate.clock.advance(2 * 3600)
        assert "denied" not in await quorate.refusal("guest_delete", guest=GUEST, wait=0)


async def test_a_denial_reaches_other_callers_too(tmp_path: Path) -> None:
    async with (
        rig(tmp_path, approval=Approval.ASK) as quorate,
        second_server(quorate, tmp_path / "other.jsonl") as other,
    ):
        await quorate.refusal("guest_stop", guest=102, wait=0)
        await answer(quorate, approve=False, reason="people work there")
        assert "people work there" in await other.refusal("guest_stop", guest=[102, 103], wait=0)


async def test_a_denial_does_not_tell_another_caller_what_else_it_was_about(tmp_path: Path) -> None:
    async with (
        rig(tmp_path, approval=Approval.ASK) as quorate,
        second_server(quorate, tmp_path / "other.jsonl") as other,
    ):
        await quorate.refusal("guest_stop", guest=[102, 103], wait=0)
        row = await answer(quorate, approve=False, reason="not \u202enow")
        refusal = await other.refusal("guest_stop", guest=102, wait=0)
        planned = await other.facts("guest_stop", guest=102, dry_run=True)
        for text in (refusal, planned["denied_before"]):
            assert "A person denied this just now: not now" in text
            assert "103" not in text
        assert row.summary in (await Approvals(quorate.app.store).list())[0].reminder


async def test_a_request_that_expires_while_the_call_waits_is_not_a_denial(tmp_path: Path) -> None:
    async with rig(tmp_path, approval=Approval.ASK) as quorate:
        await quorate.refusal("guest_delete", guest=GUEST, wait=0)
        await quorate.clock.advance(PENDING_SECONDS - 1)
        refusal = await quorate.refusal("guest_delete", guest=GUEST)
        assert "expired unanswered" in refusal
        assert "call again to ask again" in refusal
        assert not re.search("by nobody|[Dd]o not try again", refusal)
        assert "waits for" in await quorate.refusal("guest_delete", guest=GUEST, wait=0)
        assert exists(quorate)


@ERAS
async def test_an_operator_who_approves_while_the_question_is_open_is_heard(tmp_path: Path, mode: str) -> None:
    """The person at the client closes the question after the operator has approved."""

    async def close_later(context: Any, params: Any) -> ElicitResult:
        await answer(quorate, approve=True)
        await quorate.clock.advance(READING_SECONDS)
        return ElicitResult(action="cancel")

    async with asking(tmp_path, close_later, mode=mode) as quorate:
        await quorate.facts("guest_delete", guest=GUEST)
        assert not exists(quorate)


# -- how it ended ------------------------------------------------------------------------------------------------------


async def test_an_approval_says_who_approved_it_and_how_it_ended(tmp_path: Path) -> None:
    async with rig(tmp_path, approval=Approval.ASK) as quorate:
        await quorate.refusal("guest_delete", guest=GUEST, wait=0)
        approved = await answer(quorate, approve=True)
        assert "Not carried out yet" in approved.history
        assert approved.answered_at is not None
        await quorate.facts("guest_delete", guest=GUEST)
        (row,) = await requests(quorate)
        assert not exists(quorate)
        assert row.ended is not None
        assert row.standing == "approved, done"
        assert row.history == f"Approved by boss {moment(approved.answered_at)}. Done {moment(row.ended)}."
        assert row.change_id == quorate.audit()[-1]["change"]


async def test_an_outcome_that_comes_later_reaches_the_approval_through_another_process(tmp_path: Path) -> None:
    async with rig(tmp_path, approval=Approval.ASK) as quorate:
        await quorate.refusal("guest_delete", guest=GUEST, wait=0)
        await answer(quorate, approve=True)
        await quorate.facts("guest_delete", guest=GUEST, wait=0)
        assert [row.standing for row in await requests(quorate)] == ["approved, running"]
        await quorate.clock.advance(60)
        async with second_server(quorate, quorate.audit_file) as other:
            await other.app.pipeline.resolve_unfinished()
        assert not exists(quorate)
        assert [row.standing for row in await requests(quorate)] == ["approved, done"]


async def test_a_change_that_was_cut_off_shows_what_was_found_out_later(tmp_path: Path) -> None:
    async with rig(tmp_path, approval=Approval.ASK) as quorate:
        run = quorate.app.pipeline.run
        with pytest.raises(ApprovalPending):
            await run("guest_delete", {"guest": GUEST, "wait": 0}, Exchange())
        await answer(quorate, approve=True)
        quorate.sim.faults.add("latency:3600:DELETE:*")
        change = asyncio.create_task(run("guest_delete", {"guest": GUEST}, Exchange()))
        while not any(method == "DELETE" for method, _ in quorate.sim.requests):
            await asyncio.sleep(0.001)
        assert [row.standing for row in await requests(quorate)] == ["approved, no outcome yet"]
        change.cancel()
        with pytest.raises(asyncio.CancelledError):
            await change
        await quorate.clock.advance(2 * 3600)
        async with second_server(quorate, quorate.audit_file) as other:
            await other.app.pipeline.resolve_unfinished()
        (row,) = await requests(quorate)
        entry = next(entry for entry in quorate.audit() if entry.get("change") == row.change_id)
        assert entry["resolved"]
        assert row.outcome == entry["outcome"]
        assert (row.outcome == "done") is not exists(quorate)


async def test_a_change_that_fails_or_is_refused_after_the_approval_says_so(tmp_path: Path) -> None:
    async with rig(tmp_path, approval=Approval.ASK) as quorate:
        await quorate.refusal("guest_delete", guest=GUEST, wait=0)
        await answer(quorate, approve=True)
        quorate.sim.faults.add("500:no:DELETE:/nodes/*/qemu/*")
        await quorate.refusal("guest_delete", guest=GUEST)
        (row,) = await requests(quorate)
        outcome = quorate.audit()[-1]["outcome"]
        assert (row.outcome, row.standing) == (outcome, f"approved, {outcome}")
        assert outcome != "done"
        assert exists(quorate)


async def test_a_plan_token_shows_its_outcome(tmp_path: Path) -> None:
    async with rig(tmp_path, approval=Approval.TOKEN) as quorate:
        token = (await quorate.facts("guest_stop", guest=102, dry_run=True))["plan_token"]
        await quorate.facts("guest_stop", guest=102, plan_token=token)
        assert [row.standing for row in await requests(quorate)] == ["plan token, done"]


# -- what is typed -----------------------------------------------------------------------------------------------------

PHRASES = [
    ("guest_stop", {"guest": 102}, "docker01"),
    ("guest_delete", {"guest": 102, "stop": True}, "docker01"),
    ("guest_stop", {"guest": [102, 103, 201]}, "3 guests"),
    ("access_delete", {"kind": "group", "name": "family"}, "family"),
    ("api_call", {"method": "DELETE", "path": "/access/groups/family"}, "family"),
    ("guest_clone", {"guest": 9000, "name": "web09", "pool": "lab"}, "web09"),
    ("guest_clone", {"guest": 9000, "name": "web09", "pool": "lab", "tags": ["web"], "start": True}, "web09"),
    ("vm_create", {"name": "web09", "pool": "lab"}, "web09"),
    ("run_restore_drill", {"guest": 102}, "docker01"),
    ("run_restore_drill", {"guest": [102, 202]}, "2 guests"),
]


@ERAS
@pytest.mark.parametrize(("tool", "arguments", "phrase"), PHRASES)
async def test_the_phrase_is_natural_and_the_dry_run_already_names_it(
    tmp_path: Path, mode: str, tool: str, arguments: dict[str, Any], phrase: str
) -> None:
    screen = Screen("cancel")
    async with asking(tmp_path, screen, mode=mode) as quorate:
        planned = await quorate.facts(tool, **arguments, dry_run=True)
        assert f"types {phrase} to approve." in planned["approval"]
        await quorate.refusal(tool, **arguments, wait=0)
        (row,) = await requests(quorate)
        assert row.word == phrase
        assert screen.questions[-1].endswith(f"\nType {phrase} to approve.")


@ERAS
async def test_a_clone_with_tags_and_a_pool_is_one_question_and_one_answer(tmp_path: Path, mode: str) -> None:
    screen = Screen("accept", typed="web09")
    arguments = {"guest": 9000, "name": "web09", "pool": "lab", "tags": ["blue", "web"]}
    async with asking(tmp_path, screen, mode=mode) as quorate:
        done = await quorate.facts("guest_clone", **arguments)
        assert done["result"] == "done"
        assert len(screen.questions) == len(await requests(quorate)) == 1
        clone = quorate.sim.world.guests[done["vmid"]]
        assert (clone.config["name"], clone.config["tags"]) == ("web09", "blue;web")
        assert clone.vmid in quorate.sim.world.access.pools["lab"].vms
        assert len([entry for entry in quorate.audit() if entry["outcome"] == "done"]) == 1


async def test_the_operator_approves_a_clone_once_and_the_answer_says_that_splitting_does_not_help(
    tmp_path: Path,
) -> None:
    arguments = {"guest": 9000, "name": "web09", "pool": "lab", "tags": ["web"]}
    async with rig(tmp_path, approval=Approval.ASK) as quorate:
        refusal = await quorate.refusal("guest_clone", **arguments, wait=0)
        assert "One approval covers the whole call" in refusal
        assert "a smaller call or another tool that does the same part asks again" in refusal
        await answer(quorate, approve=True)
        done = await quorate.facts("guest_clone", **arguments)
        assert done["vmid"] in quorate.sim.world.guests
        assert [row.standing for row in await requests(quorate)] == ["approved, done"]
