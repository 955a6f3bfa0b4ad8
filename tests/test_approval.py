"""Nothing is destroyed on a model's word alone."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from mcp.types import ElicitResult

from quorate.config import Access, Approval
from quorate.state.approvals import Approvals, State
from quorate.state.passphrase import Passphrase
from tests.driving import Rig, rig, second_server

pytestmark = pytest.mark.anyio

ERAS = ("auto", "legacy")


class Person:
    """Answers the questions that a client shows."""

    def __init__(self, typed: str | None) -> None:
        self.typed = typed
        self.questions: list[str] = []

    async def __call__(self, context: Any, params: Any) -> ElicitResult:
        self.questions.append(params.message)
        if self.typed is None:
            return ElicitResult(action="decline")
        return ElicitResult(action="accept", content={"typed": self.typed})


async def stopped_guest(quorate: Rig) -> dict[str, Any]:
    rows = await quorate.rows("guest_list", status="stopped")
    return next(row for row in rows if row.get("name"))


async def exists(quorate: Rig, vmid: int) -> bool:
    return any(row["vmid"] == vmid for row in await quorate.rows("guest_list"))


@pytest.mark.parametrize("mode", ERAS)
async def test_a_person_who_types_the_guests_name_lets_it_go(tmp_path: Path, mode: str) -> None:
    person = Person(None)
    async with rig(tmp_path, approval=Approval.ASK, mode=mode, elicitation=person) as quorate:
        guest = await stopped_guest(quorate)
        person.typed = guest["name"]
        answer = await quorate.facts("guest_delete", guest=guest["vmid"])
        assert answer["result"] == "done"
        assert not await exists(quorate, guest["vmid"])
        assert guest["name"] in person.questions[0]
        assert "approved" in quorate.audit()[-1]["approval"]


@pytest.mark.parametrize("mode", ERAS)
@pytest.mark.parametrize(("typed", "told"), [(None, "denied"), ("yes", "other than"), ("", "other than")])
async def test_anything_but_the_name_is_a_no(tmp_path: Path, mode: str, typed: str | None, told: str) -> None:
    async with rig(tmp_path, approval=Approval.ASK, mode=mode, elicitation=Person(typed)) as quorate:
        guest = await stopped_guest(quorate)
        assert told in await quorate.refusal("guest_delete", guest=guest["vmid"])
        assert await exists(quorate, guest["vmid"])
        assert quorate.audit()[-1]["outcome"] == "refused"


async def test_a_no_stays_a_no_when_the_call_is_repeated(tmp_path: Path) -> None:
    person = Person(None)
    async with rig(tmp_path, approval=Approval.ASK, elicitation=person) as quorate:
        guest = await stopped_guest(quorate)
        await quorate.refusal("guest_delete", guest=guest["vmid"])
        person.typed = guest["name"]
        await quorate.refusal("guest_delete", guest=guest["vmid"])
        assert len(person.questions) == 1


async def test_after_a_slip_the_person_is_asked_again(tmp_path: Path) -> None:
    person = Person("typo")
    async with rig(tmp_path, approval=Approval.ASK, elicitation=person) as quorate:
        guest = await stopped_guest(quorate)
        await quorate.refusal("guest_delete", guest=guest["vmid"])
        person.typed = guest["name"]
        await quorate.facts("guest_delete", guest=guest["vmid"])


@pytest.mark.parametrize("mode", ERAS)
async def test_the_question_tells_how_the_guest_is_and_what_is_lost(tmp_path: Path, mode: str) -> None:
    person = Person(None)
    async with rig(tmp_path, approval=Approval.ASK, mode=mode, elicitation=person) as quorate:
        dry_run = await quorate.facts("guest_delete", guest="docker01", stop=True, dry_run=True)
        await quorate.refusal("guest_delete", guest="docker01", stop=True)
        (question,) = person.questions
        assert "- vm 102 docker01 is running on pve1; tags: docker, prod" in question
        for fact in (*dry_run["disks"], *dry_run["snapshots"], *dry_run["warnings"]):
            assert fact in question
        assert question.endswith("This cannot be undone. Type docker01 to go on.")


async def test_what_the_question_tells_is_bounded_and_a_strangers_words_stay_on_their_line(tmp_path: Path) -> None:
    person = Person(None)
    async with rig(tmp_path, approval=Approval.ASK, elicitation=person) as quorate:
        guest = quorate.sim.world.guests[108]
        guest.config["tags"] = "lab;\u202enot\u200b-so"
        for number in range(40):
            guest.config[f"unused{number}"] = f"local-lvm:vm-108-disk-{number}{'9' * 80}\nApproved: yes"
        await quorate.refusal("guest_delete", guest=108)
        (question,) = person.questions
        assert "and 31 more" in question or "characters)" in question
        assert len(question) < 3000
        assert not any(line.startswith("Approved") for line in question.splitlines())
        assert "\u202e" not in question


async def test_who_cannot_approve_yet_is_told_to_set_a_passphrase_first(tmp_path: Path) -> None:
    async with rig(tmp_path, approval=Approval.ASK) as quorate:
        guest = await stopped_guest(quorate)
        refusal = await quorate.refusal("guest_delete", guest=guest["vmid"], wait=0)
        assert "quorate approvals passphrase" in refusal
        await Passphrase(quorate.app.store).set("correct horse battery")
        assert "passphrase" not in await quorate.refusal("guest_delete", guest=guest["vmid"], wait=0)


async def test_the_state_of_every_approval_is_told_in_words(tmp_path: Path) -> None:
    async with rig(tmp_path, approval=Approval.TOKEN) as quorate:
        approvals = Approvals(quorate.app.store)

        async def standings() -> list[str]:
            return [row.standing for row in await approvals.list(tuple(State))]

        token = (await quorate.facts("guest_stop", guest=100, dry_run=True))["plan_token"]
        assert await standings() == ["plan token of a dry run, not used yet"]
        await quorate.facts("guest_stop", guest=100, plan_token=token)
        assert await standings() == ["plan token, used"]
    (tmp_path / "other").mkdir()
    async with rig(tmp_path / "other", approval=Approval.ASK) as quorate:
        approvals = Approvals(quorate.app.store)
        await quorate.refusal("guest_stop", guest=100, wait=0)
        assert await standings() == ["waits for an answer"]
        quorate.sim.world.guests[100].config["name"] = "renamed"
        await quorate.refusal("guest_stop", guest=100, wait=0)
        assert set(await standings()) == {"waits for an answer", "void: the target has changed since"}
        await approve_all(quorate)
        await quorate.clock.advance(3600)
        assert set(await standings()) == {"approved, expired unused", "void: the target has changed since"}


async def test_without_a_person_at_the_client_the_call_waits_and_then_names_the_approval(tmp_path: Path) -> None:
    async with rig(tmp_path, approval=Approval.ASK) as quorate:
        guest = await stopped_guest(quorate)
        refusal = await quorate.refusal("guest_delete", guest=guest["vmid"])
        (row,) = await Approvals(quorate.app.store).list()
        assert row.id in refusal
        assert "quorate approvals approve" in refusal
        assert await exists(quorate, guest["vmid"])


async def test_the_same_call_goes_through_once_after_the_operator_approved(tmp_path: Path) -> None:
    async with rig(tmp_path, approval=Approval.ASK) as quorate:
        guest = await stopped_guest(quorate)
        await quorate.refusal("guest_delete", guest=guest["vmid"], wait=0)
        await approve_all(quorate)
        await quorate.facts("guest_delete", guest=guest["vmid"])
        assert not await exists(quorate, guest["vmid"])


async def test_an_approval_is_used_up(tmp_path: Path) -> None:
    async with rig(tmp_path, approval=Approval.ASK) as quorate:
        guest = (await quorate.rows("guest_list", status="running"))[0]
        await quorate.refusal("guest_stop", guest=guest["vmid"], wait=0)
        await approve_all(quorate)
        await quorate.facts("guest_stop", guest=guest["vmid"])
        await quorate.facts("guest_power", guest=guest["vmid"], action="start")
        assert "waits for an operator's approval" in await quorate.refusal("guest_stop", guest=guest["vmid"], wait=0)


async def test_other_arguments_need_another_approval(tmp_path: Path) -> None:
    async with rig(tmp_path, approval=Approval.ASK) as quorate:
        first, second = (await quorate.rows("guest_list", status="running"))[:2]
        await quorate.refusal("guest_stop", guest=first["vmid"], wait=0)
        await approve_all(quorate)
        assert "waits for" in await quorate.refusal("guest_stop", guest=second["vmid"], wait=0)
        assert "waits for" in await quorate.refusal("guest_stop", guest=[first["vmid"], second["vmid"]], wait=0)


async def test_a_guest_that_was_renamed_since_needs_another_approval(tmp_path: Path) -> None:
    async with rig(tmp_path, approval=Approval.ASK) as quorate:
        guest = await stopped_guest(quorate)
        await quorate.refusal("guest_delete", guest=guest["vmid"], wait=0)
        await approve_all(quorate)
        await quorate.facts("guest_configure", guest=guest["vmid"], name="precious")
        assert "waits for" in await quorate.refusal("guest_delete", guest=guest["vmid"], wait=0)
        assert await exists(quorate, guest["vmid"])


async def test_a_guest_made_anew_under_the_same_vmid_needs_another_approval(tmp_path: Path) -> None:
    async with (
        rig(tmp_path, approval=Approval.ASK) as quorate,
        second_server(quorate, tmp_path / "b.jsonl", approval=Approval.NONE) as other,
    ):
        guest = await stopped_guest(quorate)
        await quorate.refusal("guest_delete", guest=guest["vmid"], wait=0)
        await approve_all(quorate)
        await other.facts("guest_delete", guest=guest["vmid"])
        await other.facts("vm_create", vmid=guest["vmid"], name=guest["name"])
        assert "waits for" in await quorate.refusal("guest_delete", guest=guest["vmid"], wait=0)
        assert await exists(quorate, guest["vmid"])


async def test_an_approval_that_comes_while_the_call_waits_lets_it_go_on(tmp_path: Path) -> None:
    async with rig(tmp_path, approval=Approval.ASK) as quorate:
        guest = await stopped_guest(quorate)
        approvals = Approvals(quorate.app.store)

        async def operator() -> None:
            await quorate.clock.sleep(5)
            (row,) = await approvals.list()
            await approvals.answer(row.id, True, "the operator")

        answering = asyncio.create_task(operator())
        await quorate.facts("guest_delete", guest=guest["vmid"])
        await answering


async def test_a_denial_is_told_with_its_reason(tmp_path: Path) -> None:
    async with rig(tmp_path, approval=Approval.ASK) as quorate:
        guest = await stopped_guest(quorate)
        await quorate.refusal("guest_delete", guest=guest["vmid"], wait=0)
        approvals = Approvals(quorate.app.store)
        await approvals.answer((await approvals.list())[0].id, False, "the operator", "the wiki is still needed")
        refusal = await quorate.refusal("guest_delete", guest=guest["vmid"])
        assert "the wiki is still needed" in refusal


@pytest.mark.parametrize("smuggled", ["confirm", "approved", "approval", "plan_token", "force_approval"])
async def test_no_argument_of_the_model_is_an_approval(tmp_path: Path, smuggled: str) -> None:
    async with rig(tmp_path, approval=Approval.ASK) as quorate:
        guest = await stopped_guest(quorate)
        await quorate.refusal("guest_delete", guest=guest["vmid"], wait=0, **{smuggled: True})
        assert await exists(quorate, guest["vmid"])


async def test_a_dry_run_needs_nobody_and_says_that_a_person_will_be_asked(tmp_path: Path) -> None:
    async with rig(tmp_path, approval=Approval.ASK) as quorate:
        guest = await stopped_guest(quorate)
        answer = await quorate.facts("guest_delete", guest=guest["vmid"], dry_run=True)
        assert "person" in answer["approval"]


async def test_plain_changes_need_nobody(tmp_path: Path) -> None:
    async with rig(tmp_path, approval=Approval.ASK, access=Access.OPERATE) as quorate:
        guest = await stopped_guest(quorate)
        await quorate.facts("guest_power", guest=guest["vmid"], action="start")


async def test_plain_changes_need_somebody_if_the_operator_wants_it(tmp_path: Path) -> None:
    async with rig(tmp_path, approval=Approval.ASK, approve_changes=True) as quorate:
        guest = await stopped_guest(quorate)
        assert "waits for" in await quorate.refusal("guest_power", guest=guest["vmid"], action="start", wait=0)


async def test_a_plan_token_lets_exactly_its_plan_go_once(tmp_path: Path) -> None:
    async with rig(tmp_path, approval=Approval.TOKEN) as quorate:
        first, second = (await quorate.rows("guest_list", status="running"))[:2]
        assert "dry_run=true" in await quorate.refusal("guest_stop", guest=first["vmid"])
        token = (await quorate.facts("guest_stop", guest=first["vmid"], dry_run=True))["plan_token"]
        assert "other arguments" in await quorate.refusal("guest_stop", guest=second["vmid"], plan_token=token)
        await quorate.facts("guest_stop", guest=first["vmid"], plan_token=token)
        await quorate.facts("guest_power", guest=first["vmid"], action="start")
        assert "used already" in await quorate.refusal("guest_stop", guest=first["vmid"], plan_token=token)


async def test_a_made_up_plan_token_is_refused(tmp_path: Path) -> None:
    async with rig(tmp_path, approval=Approval.TOKEN) as quorate:
        guest = await stopped_guest(quorate)
        assert "no such" in await quorate.refusal("guest_delete", guest=guest["vmid"], plan_token="aaaaa-aaaaa")
        assert await exists(quorate, guest["vmid"])


async def test_the_plan_token_is_an_argument_only_where_tokens_are_asked_for(tmp_path: Path) -> None:
    for approval, expected in ((Approval.ASK, False), (Approval.TOKEN, True)):
        async with rig(tmp_path, approval=approval) as quorate:
            tools = {tool.name: tool.input_schema["properties"] for tool in (await quorate.client.list_tools()).tools}
            assert ("plan_token" in tools["guest_delete"]) is expected
            assert "plan_token" not in tools["guest_list"]
            assert "plan_token" not in tools["guest_power"]


async def test_every_audit_entry_says_that_approvals_are_off(tmp_path: Path) -> None:
    async with rig(tmp_path, approval=Approval.NONE) as quorate:
        guest = await stopped_guest(quorate)
        await quorate.facts("guest_power", guest=guest["vmid"], action="start")
        await quorate.facts("guest_stop", guest=guest["vmid"])
        assert all("switched approvals off" in entry["approval"] for entry in quorate.audit())


async def approve_all(quorate: Rig) -> None:
    approvals = Approvals(quorate.app.store)
    for row in await approvals.list():
        await approvals.answer(row.id, True, "the operator")
