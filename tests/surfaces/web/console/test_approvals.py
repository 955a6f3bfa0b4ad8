"""Approvals in the console."""

from __future__ import annotations

import re

import pytest

from tests.rigs.console import PASSPHRASE, ask_to_delete, browser, console, form_with
from tests.rigs.mcp_session import text_of

pytestmark = pytest.mark.anyio


async def test_a_card_says_what_is_lost_before_anything_else_and_names_the_steps(tmp_path):
    async with console(tmp_path) as quorate:
        token = await quorate.token("alice", "admin")
        await ask_to_delete(quorate, token)
        async with browser(quorate, token) as person:
            text = (await person.get()).text
            assert "Delete vm 108 test-vm" in text
            assert "This cannot be undone." in text
            assert text.index("What will be lost") < text.index("Steps") < text.index("Approve")
            assert "local-lvm:vm-108-disk-0" in text
            assert "DELETE /nodes/pve1/qemu/108" in text


async def test_typing_the_name_and_the_passphrase_approves_and_the_call_then_runs(tmp_path):
    async with console(tmp_path) as quorate:
        token = await quorate.token("alice", "admin")
        approval = await ask_to_delete(quorate, token)
        async with browser(quorate, token) as person:
            page = await person.get(f"/approvals/{approval}")
            done = await person.submit(form_with(page, decision="approve"), word="test-vm", passphrase=PASSPHRASE)
            assert "Approved by the operator over HTTP, token alice" in done.text
            assert "Not carried out yet" in done.text
        async with quorate.client(token) as client:
            answer = await client.call_tool("guest_delete", {"guest": "test-vm", "wait": 0})
            assert not answer.is_error, answer.content
        assert 108 not in quorate.rig.sim.world.guests or quorate.rig.audit()[-1]["approval"].startswith("approved")


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ({"word": "other-vm", "passphrase": PASSPHRASE}, "something other than"),
        ({"word": "test-vm", "passphrase": "wrong"}, "not the operator"),
        ({"word": "", "passphrase": PASSPHRASE}, "something other than"),
    ],
)
async def test_a_wrong_name_or_passphrase_approves_nothing(tmp_path, typed, says):
    async with console(tmp_path) as quorate:
        token = await quorate.token("alice", "admin")
        approval = await ask_to_delete(quorate, token)
        async with browser(quorate, token) as person:
            page = await person.get(f"/approvals/{approval}")
            refused = await person.submit(form_with(page, decision="approve"), **typed)
            assert refused.status_code in (400, 403)
            assert says in refused.text
            assert "What will be lost" in refused.text, "the card stays"
            assert form_with(refused, decision="approve").fields["word"] == typed["word"]
            assert PASSPHRASE not in refused.text
            assert "Approve</button>" in (await person.get(f"/approvals/{approval}")).text


async def test_denying_takes_a_reason_and_the_caller_reads_it(tmp_path):
    async with console(tmp_path) as quorate:
        token = await quorate.token("alice", "admin")
        approval = await ask_to_delete(quorate, token)
        async with browser(quorate, token) as person:
            page = await person.get(f"/approvals/{approval}")
            done = await person.submit(
                form_with(page, decision="deny"), reason="still needed by Bob", passphrase=PASSPHRASE
            )
            assert "Denied" in done.text
        async with quorate.client(token) as client:
            answer = await client.call_tool("guest_delete", {"guest": "test-vm", "wait": 0})
            assert "still needed by Bob" in text_of(answer)


async def test_an_answered_request_cannot_be_answered_again(tmp_path):
    async with console(tmp_path) as quorate:
        token = await quorate.token("alice", "admin")
        approval = await ask_to_delete(quorate, token)
        async with browser(quorate, token) as first_person, browser(quorate, token) as other:
            first, second = await first_person.get(f"/approvals/{approval}"), await other.get(f"/approvals/{approval}")
            await first_person.submit(form_with(first, decision="deny"), passphrase=PASSPHRASE)
            late = await other.submit(form_with(second, decision="approve"), word="test-vm", passphrase=PASSPHRASE)
            assert late.status_code == 409
            assert "cannot be answered (denied" in late.text


async def test_a_stale_approval_does_not_reach_a_changed_guest(tmp_path):
    async with console(tmp_path) as quorate:
        token = await quorate.token("alice", "admin")
        approval = await ask_to_delete(quorate, token)
        quorate.rig.sim.world.guests[108].config["memory"] = "4096"
        async with browser(quorate, token) as person:
            page = await person.get(f"/approvals/{approval}")
            await person.submit(form_with(page, decision="approve"), word="test-vm", passphrase=PASSPHRASE)
        async with quorate.client(token) as client:
            answer = await client.call_tool("guest_delete", {"guest": "test-vm", "wait": 0})
            assert answer.is_error
        assert 108 in quorate.rig.sim.world.guests


async def test_a_changed_setting_is_shown_before_and_after(tmp_path):
    async with console(tmp_path, approve_changes=True) as quorate:
        token = await quorate.token("alice", "admin")
        async with quorate.client(token) as client:
            await client.call_tool("guest_configure", {"guest": "docker01", "cores": 8, "wait": 0})
        async with browser(quorate, token) as person:
            text = (await person.get()).text
            assert "vm 102 docker01: cores" in text
            assert "<del>4</del>" in text
            assert "<ins>8</ins>" in text


async def test_similar_recent_requests_are_listed_with_their_answers(tmp_path):
    async with console(tmp_path) as quorate:
        token = await quorate.token("alice", "admin")
        first = await ask_to_delete(quorate, token, "win11")
        async with browser(quorate, token) as person:
            page = await person.get(f"/approvals/{first}")
            await person.submit(form_with(page, decision="deny"), reason="no", passphrase=PASSPHRASE)
            await ask_to_delete(quorate, token, "test-vm")
            text = (await person.get()).text
            assert "1 similar recent request" in text
            assert "Delete vm 107 win11" in text


async def test_tokens_without_admin_see_no_approvals_and_answer_none(tmp_path):
    async with console(tmp_path) as quorate:
        token, reader = await quorate.token("alice", "admin"), await quorate.token("bob", "operate")
        approval = await ask_to_delete(quorate, token)
        async with browser(quorate, token) as operator, browser(quorate, reader) as person:
            page = await operator.get(f"/approvals/{approval}")
            form = form_with(page, decision="approve")
            assert "Waiting for you" not in (await person.get()).text
            assert (await person.get("/part/waiting")).status_code == 403
            assert (await person.get(f"/approvals/{approval}")).status_code == 403
            form.fields["csrf"] = form_with(await person.get("/inventory")).fields["csrf"]
            refused = await person.submit(form, word="test-vm", passphrase=PASSPHRASE)
            assert refused.status_code == 403


async def test_the_page_says_how_an_approved_request_ended_and_links_to_its_journal_entry(tmp_path):
    async with console(tmp_path) as quorate:
        token = await quorate.token("alice", "admin")
        approval = await ask_to_delete(quorate, token)
        async with browser(quorate, token) as person:
            page = await person.get(f"/approvals/{approval}")
            await person.submit(form_with(page, decision="approve"), word="test-vm", passphrase=PASSPHRASE)
            async with quorate.client(token) as client:
                answer = await client.call_tool("guest_delete", {"guest": "test-vm"})
            assert not answer.is_error, answer.content
            page = await person.get(f"/approvals/{approval}")
            assert "Approved by the operator over HTTP, token alice" in page.text
            assert re.search(r"Done 2026-\S+ \S+Z\.", page.text)
            assert "not used yet" not in page.text
            (entry,) = re.findall(r'href="/console(/timeline/\d+)"', page.text)
            assert f"approved {approval} by" in (await person.get(entry)).text
            assert "Done 2026-" in (await person.get()).text, "in the list of answered requests"


async def test_an_earlier_denial_is_the_first_thing_on_the_card(tmp_path):
    async with console(tmp_path) as quorate:
        token = await quorate.token("alice", "admin")
        approval = await ask_to_delete(quorate, token)
        async with browser(quorate, token) as person:
            page = await person.get(f"/approvals/{approval}")
            await person.submit(form_with(page, decision="deny"), reason="<b>still</b> needed", passphrase=PASSPHRASE)
            async with quorate.client(token) as client:
                await client.call_tool("guest_delete", {"guest": "test-vm", "purge": True, "wait": 0})
            text = (await person.get()).text
            said = text.index("You denied this just now: &lt;b&gt;still&lt;/b&gt; needed")
            assert said < text.index('<h2 id="title-') < text.index("What will be lost")


async def test_a_restore_drill_asks_for_the_guests_name_and_threatens_nothing(tmp_path):
    async with console(tmp_path, toolsets=("all",)) as quorate, browser(quorate) as person:
        async with quorate.client() as client:
            await client.call_tool("run_restore_drill", {"guest": "docker01", "wait": 0})
        card = (await person.get()).text
        assert "Prove 1 backup: vm 102" in card
        assert "Type <b>docker01</b> to approve" in card
        assert "it deletes guests, but only the copies that it restores itself" in card
        assert "This cannot be undone" not in card
        assert "a command on a Proxmox VE node" not in card
