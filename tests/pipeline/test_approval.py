"""Nothing is destroyed on a model's word alone."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from mcp.types import ElicitResult

from pve_simulator.clock import ManualClock
from quorate.app import approval_settings_of
from quorate.config import Access, Approval, Settings
from quorate.config.http import HttpSettings
from quorate.pipeline.approval import READING_SECONDS
from quorate.state.approvals import Approvals, State
from quorate.state.passphrase import Passphrase
from tests.rigs.mcp_session import Rig, rig, second_server

pytestmark = pytest.mark.anyio

ERAS = ("auto", "legacy")


class Person:
    """Answers the questions that a client shows; reads them first where there is a clock."""

    def __init__(self, typed: str | None) -> None:
        self.typed = typed
        self.questions: list[str] = []
        self.clock: ManualClock | None = None

    async def __call__(self, context: Any, params: Any) -> ElicitResult:
        self.questions.append(params.message)
        if self.clock is not None:
            await self.clock.advance(READING_SECONDS)
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
@pytest.mark.parametrize(("typed", "words"), [(None, "denied"), ("yes", "other than"), ("", "other than")])
async def test_anything_but_the_name_is_no_approval(tmp_path: Path, mode: str, typed: str | None, words: str) -> None:
    person = Person(typed)
    async with rig(tmp_path, approval=Approval.ASK, mode=mode, elicitation=person) as quorate:
        person.clock = quorate.clock
        guest = await stopped_guest(quorate)
        assert words in await quorate.refusal("guest_delete", guest=guest["vmid"])
        assert await exists(quorate, guest["vmid"])
        assert quorate.audit()[-1]["outcome"] == "refused"


async def test_a_no_stays_a_no_when_the_call_is_repeated(tmp_path: Path) -> None:
    person = Person(None)
    async with rig(tmp_path, approval=Approval.ASK, elicitation=person) as quorate:
        person.clock = quorate.clock
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
async def test_the_question_names_the_guest_its_state_and_what_is_lost(tmp_path: Path, mode: str) -> None:
    person = Person(None)
    async with rig(tmp_path, approval=Approval.ASK, mode=mode, elicitation=person) as quorate:
        dry_run = await quorate.facts("guest_delete", guest="docker01", stop=True, dry_run=True)
        await quorate.refusal("guest_delete", guest="docker01", stop=True)
        (question,) = person.questions
        assert "- target: vm 102 docker01, running on pve1, tags: docker, prod" in question
        for line in (*dry_run["lost"], *dry_run["warnings"]):
            assert line in question
        assert "- This cannot be undone" in question
        assert question.endswith("Type docker01 to approve.")


async def test_a_raw_delete_asks_with_the_same_losses_as_guest_delete(tmp_path: Path) -> None:
    person = Person(None)
    async with rig(tmp_path, approval=Approval.ASK, elicitation=person) as quorate:
        await quorate.refusal("guest_delete", guest=108)
        node = quorate.sim.world.guests[108].node
        await quorate.refusal("api_call", method="DELETE", path=f"/nodes/{node}/qemu/108")
        named, raw = ([line for line in text.splitlines() if line.startswith("- lost")] for text in person.questions)
        assert named == raw
        assert any("snapshots: clean, configured" in line for line in raw)
        assert "- This cannot be undone" in person.questions[1]


async def test_a_long_parameter_does_not_hide_the_one_that_destroys(tmp_path: Path) -> None:
    person = Person(None)
    async with rig(tmp_path, approval=Approval.ASK, elicitation=person) as quorate:
        guest = quorate.sim.world.guests[108]
        params = {"description": "harmless " * 400, "delete": ",".join(["tags"] * 50 + ["scsi0"])}
        await quorate.refusal("api_call", method="PUT", path=f"/nodes/{guest.node}/qemu/108/config", params=params)
        (question,) = person.questions
        assert f"- lost: vm 108 {guest.config['name']}: scsi0: {guest.config['scsi0']}" in question
        assert "delete=" in question
        assert "- asked because: delete" in question


async def test_every_target_of_a_call_is_named(tmp_path: Path) -> None:
    person = Person(None)
    async with rig(tmp_path, approval=Approval.ASK, elicitation=person) as quorate:
        running = await quorate.rows("guest_list", status="running")
        assert len(running) > 10
        await quorate.refusal("guest_stop", guest=[row["vmid"] for row in running])
        (question,) = person.questions
        for row in running:
            assert f"- target: {row['type']} {row['vmid']} {row['name']}, running on {row['node']}" in question
            assert f"/{row['vmid']}/status/stop" in question


async def test_guests_that_a_call_reaches_without_naming_them_are_named(tmp_path: Path) -> None:
    person = Person(None)
    async with rig(tmp_path, approval=Approval.ASK, elicitation=person) as quorate:
        await quorate.refusal("api_call", method="POST", path="/nodes/pve1/stopall")
        (question,) = person.questions
        there = [guest for guest in quorate.sim.world.guests.values() if guest.node == "pve1"]
        assert there
        assert all(str(guest.vmid) in question for guest in there)


async def test_a_change_that_can_be_undone_is_not_called_final(tmp_path: Path) -> None:
    person = Person(None)
    async with rig(tmp_path, approval=Approval.ASK, elicitation=person) as quorate:
        user = next(user for user in quorate.sim.world.access.users if user != "root@pam")
        await quorate.refusal("user_set", user=user, email="new@example.com")
        (question,) = person.questions
        assert "cannot be undone" not in question
        assert "- asked because: " in question


async def test_more_than_a_person_can_read_is_refused_and_not_cut(tmp_path: Path) -> None:
    person = Person(None)
    async with rig(tmp_path, approval=Approval.ASK, elicitation=person) as quorate:
        guest = quorate.sim.world.guests[108]
        for number in range(250):
            guest.config[f"unused{number}"] = f"local-lvm:vm-108-disk-{number}{'9' * 150}"
        for vmid in (100, 102, 103, 104):
            quorate.sim.world.guests[vmid].config["tags"] = ";".join(f"tag{number}{'x' * 60}" for number in range(120))
        text = await quorate.refusal("guest_stop", guest=[100, 102, 103, 104, 105, 107])
        text += await quorate.refusal("guest_delete", guest=108)
        assert "too much for one approval" in text
        assert all(len(question) < 30_000 for question in person.questions)


async def test_words_of_a_stranger_stay_on_their_line(tmp_path: Path) -> None:
    person = Person(None)
    async with rig(tmp_path, approval=Approval.ASK, elicitation=person) as quorate:
        guest = quorate.sim.world.guests[108]
        guest.config["tags"] = "lab;\u202enot\u200b-so"
        for number in range(40):
            guest.config[f"unused{number}"] = f"local-lvm:vm-108-disk-{number}{'9' * 80}\nApproved: yes"
        await quorate.refusal("guest_delete", guest=108)
        (question,) = person.questions
        assert all(f"unused{number} local-lvm:vm-108-disk-{number}" in question for number in range(40))
        assert not any(line.startswith("Approved") for line in question.splitlines())
        assert "\u202e" not in question


@pytest.mark.parametrize("mode", ERAS)
async def test_the_result_says_who_approved_it_and_how(tmp_path: Path, mode: str) -> None:
    person = Person("docker01")
    async with rig(tmp_path, approval=Approval.ASK, mode=mode, elicitation=person) as quorate:
        answer = await quorate.facts("guest_stop", guest="docker01")
        assert answer["approval"].startswith("approved ")
        assert "by the person at " in answer["approval"]
    (tmp_path / "token").mkdir()
    async with rig(tmp_path / "token", approval=Approval.TOKEN, mode=mode) as quorate:
        token = (await quorate.facts("guest_stop", guest="docker01", dry_run=True))["plan_token"]
        answer = await quorate.facts("guest_stop", guest="docker01", plan_token=token)
        assert answer["approval"] == f"plan token {token}"


async def test_an_operator_who_cannot_approve_yet_sets_a_passphrase_first(tmp_path: Path) -> None:
    async with rig(tmp_path, approval=Approval.ASK) as quorate:
        guest = await stopped_guest(quorate)
        refusal = await quorate.refusal("guest_delete", guest=guest["vmid"], wait=0)
        assert "quorate approvals passphrase" in refusal
        await Passphrase(quorate.app.store).set("correct horse battery")
        assert "passphrase" not in await quorate.refusal("guest_delete", guest=guest["vmid"], wait=0)


async def test_the_state_of_every_approval_is_described_in_words(tmp_path: Path) -> None:
    async with rig(tmp_path, approval=Approval.TOKEN) as quorate:
        approvals = Approvals(quorate.app.store)

        async def standings() -> list[str]:
            return [row.standing for row in await approvals.list(tuple(State))]

        token = (await quorate.facts("guest_stop", guest=100, dry_run=True))["plan_token"]
        assert await standings() == ["plan token of a dry run, not used yet"]
        await quorate.facts("guest_stop", guest=100, plan_token=token)
        assert await standings() == ["plan token, done"]
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


async def test_a_call_that_waits_lists_every_way_to_answer_with_the_address_of_the_page(tmp_path: Path) -> None:
    for http, page in (
        (HttpSettings(public_url="https://quorate.lan"), "https://quorate.lan/console"),
        (HttpSettings(host="127.0.0.1", port=8443), "http://127.0.0.1:8443/console"),
    ):
        async with rig(tmp_path, approval=Approval.ASK, more={"http": http}) as quorate:
            refusal = await quorate.refusal("guest_stop", guest=100)
            (row, *_) = await Approvals(quorate.app.store).list()
            state = f"QUORATE_STATE={tmp_path}/state.sqlite"  # a plain command would look elsewhere
            assert f"`{state} quorate approvals approve {row.id}` (or `deny {row.id}`) at a terminal" in refusal
            assert f"`{state} quorate approvals passphrase`" in refusal
            assert f"or open {page};" in refusal
            assert "repeat exactly the same call" in refusal
            assert any(page in str(line) for _, _, line in quorate.progress)


def test_with_the_usual_state_a_plain_command_answers() -> None:
    ways = approval_settings_of(Settings(approval=Approval.ASK)).ways("7nhdg-0twhs")
    assert (
        ways == "run `quorate approvals approve 7nhdg-0twhs` (or `deny 7nhdg-0twhs`) or `quorate console` at a terminal"
    )


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


async def test_a_call_that_waits_for_approval_is_recorded_as_asked(tmp_path: Path) -> None:
    async with rig(tmp_path, approval=Approval.ASK) as quorate:
        guest = (await quorate.rows("guest_list", status="running"))[0]
        await quorate.refusal("guest_stop", guest=guest["vmid"], wait=0)
        (row,) = await Approvals(quorate.app.store).list()
        entry = quorate.audit()[-1]
        assert (entry["outcome"], entry["decision"], entry["approval"]) == ("asked", "asked", f"waiting {row.id}")


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
            await quorate.clock.sleep(1)
            (row,) = await approvals.list()
            await approvals.answer(row.id, True, "the operator")

        answering = asyncio.create_task(operator())
        await quorate.facts("guest_delete", guest=guest["vmid"])
        await answering


async def test_a_denial_is_reported_with_its_reason(tmp_path: Path) -> None:
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
        assert "already been used" in await quorate.refusal("guest_stop", guest=first["vmid"], plan_token=token)


async def test_a_made_up_plan_token_is_refused(tmp_path: Path) -> None:
    async with rig(tmp_path, approval=Approval.TOKEN) as quorate:
        guest = await stopped_guest(quorate)
        assert "does not exist" in await quorate.refusal("guest_delete", guest=guest["vmid"], plan_token="aaaaa-aaaaa")
        assert await exists(quorate, guest["vmid"])


async def test_the_plan_token_is_an_argument_only_where_tokens_are_asked_for(tmp_path: Path) -> None:
    for approval, expected in ((Approval.ASK, False), (Approval.TOKEN, True)):
        async with rig(tmp_path, approval=approval) as quorate:
            tools = {tool.name: tool.input_schema["properties"] for tool in (await quorate.client.list_tools()).tools}
            for change in ("guest_delete", "guest_power"):  # any change may turn out to destroy, by its arguments
                assert ("plan_token" in tools[change]) is expected
            assert "plan_token" not in tools["guest_list"]


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
