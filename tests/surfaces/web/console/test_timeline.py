"""What the timeline says about a change: the settings that it replaced, and what was run."""

from __future__ import annotations

import re

import pytest

from quorate.config import Approval
from quorate.console.timeline import alterations, steps
from tests.rigs.console import ask_to_delete, browser, console

pytestmark = pytest.mark.anyio
EVIL = "<script>alert(1)</script>"


def _text(page):
    """The words of a page, without markup."""
    return " ".join(re.sub(r"<[^>]+>", " ", page.text).split())


async def test_a_change_of_settings_is_shown_with_the_old_and_the_new_values(tmp_path):
    async with console(tmp_path, approval=Approval.NONE) as quorate:
        token = await quorate.token("alice", "admin")
        quorate.rig.sim.world.guests[102].config["description"] = "the old words"
        async with quorate.client(token) as client:
            await client.call_tool("guest_configure", {"guest": 102, "description": EVIL, "cores": 3, "onboot": False})
            await client.call_tool("guest_configure", {"guest": 102, "unset": ["description"]})
        async with browser(quorate, token) as person:
            for path in ("/timeline", "/guests/102", ""):
                page = await person.get(path)
                assert "description the old words → &lt;script&gt;alert(1)&lt;/script&gt;" in _text(page), path
                assert "description &lt;script&gt;alert(1)&lt;/script&gt; → removed" in _text(page), path
                assert "→ order=scsi0" not in _text(page), "it is the same as before"
            first = re.findall(r'href="/console(/timeline/\d+)"', (await person.get("/timeline")).text)[-1]
            entry = await person.get(first)
            assert "What changed Setting Before After" in _text(entry)
            assert re.search(r"cores</th><td[^>]*><del[^>]*>4</del></td><td[^>]*><ins[^>]*>3</ins>", entry.text)
            assert re.search(r"Steps PUT /nodes/pve1/qemu/102/config .* done ", _text(entry))
            assert "<script>alert" not in entry.text


async def test_a_command_is_shown_as_it_was_run(tmp_path):
    async with console(tmp_path, approval=Approval.NONE, toolsets=("all",)) as quorate:
        token = await quorate.token("alice", "admin")
        async with quorate.client(token) as client:
            await client.call_tool("guest_exec", {"guest": 102, "command": "uname -a"})
            await client.call_tool("guest_power", {"guest": 108, "action": "start"})
            await client.call_tool("guest_configure", {"guest": 102, "cors": 3})
        async with browser(quorate, token) as person:
            page = await person.get("/timeline")
            assert "<code>guest agent of vm 102 docker01: uname -a</code>" in page.text
            assert "has no argument" in _text(page), "why a call failed that planned nothing"
            started = next(
                link for link, words in re.findall(r'href="/console(/timeline/\d+)">([^<]+)<', page.text)
                if words.startswith("Start")
            )  # fmt: skip
            task = re.search(r'href="/console(/tasks/UPID[^"]+)">Task<', (await person.get(started)).text)
            assert task is not None
            assert (await person.get(task[1])).status_code == 200


async def test_an_entry_that_waited_for_approval_leads_to_the_request(tmp_path):
    async with console(tmp_path) as quorate:
        token = await quorate.token("alice", "admin")
        approval = await ask_to_delete(quorate, token)
        async with browser(quorate, token) as person:
            link = re.search(r'href="/console(/timeline/\d+)"', (await person.get("/timeline")).text)
            assert link is not None
            entry = (await person.get(link[1])).text
            assert f'<a href="/console/approvals/{approval}">waiting {approval}</a>' in entry
            assert "Delete vm 108 test-vm" in (await person.get(f"/approvals/{approval}")).text


async def test_a_password_that_was_set_is_named_and_not_shown(tmp_path):
    async with console(tmp_path, approval=Approval.NONE, toolsets=("all",)) as quorate:
        token = await quorate.token("alice", "admin")
        quorate.rig.sim.world.guests[102].config["cipassword"] = "old-secret-words"
        async with quorate.client(token) as client:
            answer = await client.call_tool("cloudinit_set", {"guest": 102, "password": "new-secret-words"})
            assert not answer.is_error, answer
        async with browser(quorate, token) as person:
            page = await person.get("/timeline")
            assert "cipassword a secret → a secret" in _text(page)
            assert "-secret-words" not in page.text


def test_an_entry_that_was_too_large_to_be_kept_whole_is_shown_without_what_is_missing():
    entry = {"replaced": "(90000 bytes; in all …)", "calls": "(5 bytes)", "steps": "(5 bytes)", "wire": "(5 bytes)"}
    assert (alterations(entry), steps(entry)) == ([], [])
    several = {
        "wire": [{"target": "vm 1 a"}, {"target": "vm 2 b"}],
        "replaced": [{"step": 2, "values": {"tags": [None, "x"], "cores": [2, 2]}}],
        "calls": ["PUT a", "PUT b"],
        "steps": [{"step": 1, "state": "done"}],
    }
    assert [(row.target, row.setting, row.before, row.after) for row in alterations(several)] == [
        ("vm 2 b", "tags", "", "x")
    ]
    assert [(step.line, step.state) for step in steps(several)] == [("PUT a", "done"), ("PUT b", "")]
