"""Approvals over HTTP: a person answers with the passphrase; neither a token alone, nor another page, nor a guess."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

from quorate.config import Approval
from quorate.config.http import HttpSettings
from quorate.state.passphrase import Passphrase
from tests.rigs.mcp_session import text_of
from tests.rigs.web_server import Web, web

pytestmark = pytest.mark.anyio
PHRASE = "correct horse battery staple"
ISO_TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"


@pytest.fixture
async def quorate(anyio_backend, tmp_path) -> AsyncIterator[Web]:
    async with web(tmp_path, approval=Approval.ASK) as running:
        await running.token("model", "admin")
        await running.token("person", "admin", toolsets=[])
        await Passphrase(running.rig.app.store).set(PHRASE)
        yield running


async def request_approval(quorate: Web) -> str:
    """The model wants to destroy something; the id of the approval that waits then."""
    said = await asked(quorate)
    assert "waits for an operator's approval" in said
    waiting = (await quorate.get("/approvals", quorate.made["person"])).json()["approvals"]
    return str(waiting[0]["id"])


async def asked(quorate: Web) -> str:
    async with quorate.client(quorate.made["model"]) as client:
        return text_of(await client.call_tool("guest_stop", {"guest": 100}))


async def answer(
    quorate: Web, approval: str, token: str = "person", body=None, /, **changes
) -> tuple[int, dict[str, Any]]:
    sent = {"decision": "approve", "passphrase": PHRASE, **changes} if body is None else body
    answered = await quorate.plain.post(
        f"/approvals/{approval}", json=sent, headers={"Authorization": f"Bearer {quorate.made[token]}"}
    )
    return answered.status_code, answered.json()


async def test_what_a_person_approves_is_done_once(quorate):
    approval = await request_approval(quorate)
    shown = (await quorate.get(f"/approvals/{approval}", quorate.made["person"])).json()
    assert shown["tool"] == "guest_stop"
    assert shown["caller"].startswith("http:token model (")
    assert shown["state"] == "pending"
    assert re.fullmatch(ISO_TIME, shown["created"])
    assert re.fullmatch(ISO_TIME, shown["expires"])
    assert shown["answered_at"] is None
    status, told = await answer(quorate, approval, reason="go on")
    assert (status, told["state"], told["reason"]) == (200, "approved", "go on")
    assert told["answered_by"].startswith("the operator over HTTP, token person (")
    assert "Not carried out yet" in told["history"]
    assert "result: done" in await asked(quorate)
    used = (await quorate.get(f"/approvals/{approval}", quorate.made["person"])).json()
    assert (used["standing"], used["outcome"]) == ("approved, done", "done")
    assert used["change_id"] == quorate.rig.audit()[-1]["change"]
    assert re.fullmatch(ISO_TIME, used["ended"].replace(" ", "T"))
    assert re.fullmatch(
        r"Approved by the operator over HTTP, token person \(.*\) .*Z: go on\. Done .*Z\.", used["history"]
    )
    await quorate.rig.facts("guest_power", guest=100, action="start")
    assert "waits for" in await asked(quorate)


async def test_a_person_reads_a_long_step_to_its_end(tmp_path):
    end = "-drive file=/dev/sdz"
    arguments = {
        "method": "PUT",
        "path": "/nodes/pve1/qemu/108/config",
        "params": {"args": f"{'-no-shutdown ' * 600}{end}"},
    }
    async with web(tmp_path, approval=Approval.ASK, toolsets=("all",)) as quorate:
        model, person = await quorate.token("model", "admin"), await quorate.token("person", "admin", toolsets=[])
        async with quorate.client(model) as client:
            assert "waits for" in text_of(await client.call_tool("api_call", arguments))
        (listed,) = (await quorate.get("/approvals", person)).json()["approvals"]
        shown = (await quorate.get(f"/approvals/{listed['id']}", person)).json()
        assert [described["plan"][0][-len(end) :] for described in (listed, shown)] == [end, end]


async def test_what_a_person_denies_is_not_done(quorate):
    approval = await request_approval(quorate)
    status, told = await answer(quorate, approval, decision="deny", reason="not today")
    assert (status, told["state"]) == (200, "denied")
    assert "not today" in await asked(quorate)
    async with quorate.client(quorate.made["model"]) as client:
        await client.call_tool("guest_stop", {"guest": [100], "wait": 0})
    (again,) = (await quorate.get("/approvals", quorate.made["person"])).json()["approvals"]
    assert again["reminder"].startswith("You denied this just now: not today")


async def test_the_models_token_alone_answers_nothing(quorate):
    approval = await request_approval(quorate)
    for body in (
        {"decision": "approve"},
        {"decision": "approve", "passphrase": ""},
        {"decision": "approve", "passphrase": None},
    ):
        status, _ = await answer(quorate, approval, "model", body)
        assert status in (400, 403)
    assert (await quorate.get(f"/approvals/{approval}", quorate.made["model"])).json()["state"] == "pending"


async def test_wrong_passphrases_lock_it(quorate):
    approval = await request_approval(quorate)
    tried = [await answer(quorate, approval, passphrase=f"wrong guess number {number}") for number in range(6)]
    assert [status for status, _ in tried] == [403] * 5 + [429]
    assert (await answer(quorate, approval))[0] == 429
    await quorate.rig.clock.advance(16 * 60)
    assert (await answer(quorate, await request_approval(quorate)))[0] == 200


async def test_guessing_addresses_are_not_listened_to(tmp_path):
    async with web(tmp_path, approval=Approval.ASK, http=HttpSettings(failure_limit=2)) as quorate:
        await quorate.token("model", "admin")
        await quorate.token("person", "admin")
        await Passphrase(quorate.rig.app.store).set(PHRASE)
        approval = await request_approval(quorate)
        tried = [(await answer(quorate, approval, passphrase=f"wrong guess number {number}"))[0] for number in range(3)]
        assert tried == [403, 403, 429]
        assert (await answer(quorate, approval))[0] == 200  # the passphrase has its own lock


async def test_wrong_tokens_do_not_keep_the_operator_from_answering(tmp_path):
    async with web(tmp_path, approval=Approval.ASK, http=HttpSettings(failure_limit=2)) as quorate:
        await quorate.token("model", "admin")
        await quorate.token("person", "admin")
        await Passphrase(quorate.rig.app.store).set(PHRASE)
        approval = await request_approval(quorate)
        tried = [(await quorate.get("/approvals", "qrt_000000000000_" + "0" * 64)).status_code for _ in range(5)]
        assert tried == [401, 401, 429, 429, 429]
        assert (await answer(quorate, approval))[0] == 200


async def test_an_answer_counts_once(quorate):
    approval = await request_approval(quorate)
    assert (await answer(quorate, approval))[0] == 200
    assert (await answer(quorate, approval, decision="deny"))[0] == 409
    assert (await answer(quorate, "zzzzz-zzzzz"))[0] == 404


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("text/plain", json.dumps({"decision": "approve", "passphrase": PHRASE})),
        ("application/x-www-form-urlencoded", f"decision=approve&passphrase={PHRASE}"),
        ("multipart/form-data", "x"),
        ("application/json", "[]"),
        ("application/json", '{"decision": "yes", "passphrase": "x"}'),
        ("application/json", '{"decision": "approve", "passphrase": "x", "force": true}'),
        ("application/json", json.dumps({"decision": "approve", "passphrase": PHRASE, "reason": "x" * 20_000})),
    ],
)
async def test_what_a_form_can_send_is_no_answer(quorate, content_type, body):
    approval = await request_approval(quorate)
    headers = {"Authorization": f"Bearer {quorate.made['person']}", "Content-Type": content_type}
    answered = await quorate.plain.post(f"/approvals/{approval}", content=body, headers=headers)
    assert answered.status_code in (400, 413, 415)
    assert (await quorate.get(f"/approvals/{approval}", quorate.made["person"])).json()["state"] == "pending"


async def test_pages_of_other_sites_do_not_answer(tmp_path):
    """Not even one that may call tools."""
    listed = "https://inspector.example.com"
    async with web(tmp_path, approval=Approval.ASK, http=HttpSettings(allowed_origins=(listed,))) as quorate:
        await quorate.token("model", "admin")
        await quorate.token("person", "admin")
        await Passphrase(quorate.rig.app.store).set(PHRASE)
        approval = await request_approval(quorate)
        body = {"decision": "approve", "passphrase": PHRASE}
        for headers in (
            {"Origin": listed},
            {"Origin": "null"},
            {"Sec-Fetch-Site": "cross-site"},
            {"Sec-Fetch-Site": "same-site"},
        ):
            answered = await quorate.plain.post(
                f"/approvals/{approval}",
                json=body,
                headers={"Authorization": f"Bearer {quorate.made['person']}", **headers},
            )
            assert answered.status_code == 403
        own = {
            "Authorization": f"Bearer {quorate.made['person']}",
            "Origin": quorate.url,
            "Sec-Fetch-Site": "same-origin",
        }
        assert (await quorate.plain.post(f"/approvals/{approval}", json=body, headers=own)).status_code == 200


async def test_who_may_not_do_everything_does_not_see_what_others_want(quorate):
    approval = await request_approval(quorate)
    reader = await quorate.token("reader", "operate")
    elsewhere = await quorate.token("elsewhere", "admin", clusters=["other"])
    for token, list_status in ((reader, 403), (None, 401)):
        assert (await quorate.get("/approvals", token)).status_code == list_status
        assert (await quorate.get(f"/approvals/{approval}", token)).status_code == list_status
    assert (await quorate.get("/approvals", elsewhere)).json() == {"approvals": []}
    assert (await quorate.get(f"/approvals/{approval}", elsewhere)).status_code == 404


async def test_a_persons_token_calls_no_tool(quorate):
    async with quorate.client(quorate.made["person"]) as client:
        assert (await client.list_tools()).tools == []
        assert (await client.call_tool("guest_list", {})).is_error


async def test_without_a_passphrase_nothing_can_be_approved(tmp_path):
    async with web(tmp_path, approval=Approval.ASK) as quorate:
        await quorate.token("model", "admin")
        await quorate.token("person", "admin")
        status, told = await answer(quorate, await request_approval(quorate))
        assert status == 409
        assert "quorate approvals passphrase" in told["error_description"]


async def test_a_browser_is_led_to_the_page_of_the_console(quorate):
    approval = await request_approval(quorate)
    for path, page in (("/approvals", "/console"), (f"/approvals/{approval}", f"/console/approvals/{approval}")):
        answer = await quorate.get(path, Accept="text/html,application/xhtml+xml")
        assert (answer.status_code, answer.headers["location"]) == (303, page)
        assert answer.headers["cache-control"] == "no-store"
        assert not answer.content
    strange = await quorate.get("/approvals/%0d%0aSet-Cookie:x", Accept="text/html")
    assert strange.headers["location"].startswith("/console/approvals/%0D%0A")


async def test_the_passphrase_is_nowhere_afterwards(quorate, tmp_path, caplog):
    approval = await request_approval(quorate)
    await answer(quorate, approval, passphrase="a wrong but secret phrase")
    assert (await answer(quorate, approval))[0] == 200
    for file in (path for path in tmp_path.rglob("*") if path.is_file()):
        assert PHRASE.encode() not in file.read_bytes()
        assert b"wrong but secret" not in file.read_bytes()
    assert PHRASE not in caplog.text
