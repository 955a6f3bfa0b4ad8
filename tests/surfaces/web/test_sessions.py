"""Sessions and replicas: progress and questions over HTTP, in both eras, with and without sessions."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest
from mcp.types import ElicitResult

from quorate.config import Approval
from quorate.config.http import HttpSettings
from quorate.state.approvals import Approvals
from tests.pipeline.test_safety_table import tries
from tests.rigs.mcp_session import second_server, text_of
from tests.rigs.web_server import LOOK, MCP_HEADERS, served, web

pytestmark = pytest.mark.anyio
ERAS = pytest.mark.parametrize("mode", ["auto", "legacy"])
SESSIONS = pytest.mark.parametrize("sessions", [True, False], ids=["sessions", "stateless"])


@ERAS
@SESSIONS
async def test_progress_reaches_the_client(tmp_path, mode, sessions):
    seen = []

    async def note(progress, total, message):
        seen.append((progress, total, message))

    async with web(tmp_path, http=HttpSettings(sessions=sessions)) as quorate, quorate.client(mode=mode) as client:
        answer = await client.call_tool("guest_power", {"guest": 101, "action": "shutdown"}, progress_callback=note)
        assert not answer.is_error, text_of(answer)
    assert seen[-1][0] == 100


@pytest.mark.parametrize(
    ("mode", "sessions", "asked"),
    [("auto", True, True), ("auto", False, True), ("legacy", True, True), ("legacy", False, False)],
)
async def test_the_person_at_the_client_is_asked_where_that_is_possible(tmp_path, mode, sessions, asked):
    """Older clients can be asked within a session only; without one, the operator is."""
    async with web(tmp_path, http=HttpSettings(sessions=sessions), approval=Approval.ASK) as quorate:
        name = (await quorate.rig.facts("guest_get", guest=100))["name"]

        async def consent(_, params):
            return ElicitResult(action="accept", content={"typed": name})

        async with quorate.client(mode=mode, elicitation_callback=consent) as client:
            answer = await client.call_tool("guest_stop", {"guest": 100})
        assert answer.is_error is not asked
        assert ("waits for an operator's approval" in text_of(answer)) is not asked


async def test_a_question_of_one_replica_is_answered_at_another(tmp_path):
    """What the client carries back is sealed with a key that the replicas share."""
    async with web(tmp_path, approval=Approval.ASK) as first:
        name = (await first.rig.facts("guest_get", guest=100))["name"]
        async with second_server(first.rig, tmp_path / "other.jsonl") as rig, served(rig) as second:
            meta = {
                "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}},
                "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
            }
            params = {"name": "guest_stop", "arguments": {"guest": 100}, "_meta": meta}
            call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
            headers = {"MCP_Protocol_Version": "2026-07-28", "Mcp_Method": "tools/call", "Mcp_Name": "guest_stop"}
            question = (await first.post(body=call, **headers)).json()["result"]
            assert question["resultType"] == "input_required"
            (asked,) = question["inputRequests"]
            again = params | {
                "inputResponses": {asked: {"action": "accept", "content": {"typed": name}}},
                "requestState": question["requestState"],
            }
            done = (await second.post(body=call | {"params": again}, **headers)).json()["result"]
            assert done["resultType"] == "complete"
            assert not done.get("isError"), done
            await first.rig.facts("guest_power", guest=100, action="start")
            repeated = (await first.post(body=call | {"params": again}, **headers)).json()["result"]
            assert repeated["resultType"] == "input_required"


async def test_without_sessions_any_replica_answers_any_request(tmp_path):
    stateless = HttpSettings(sessions=False)
    async with web(tmp_path, http=stateless) as first, served(first.rig, stateless) as second:
        token = await first.token("alice")
        for replica in (first, second, first):
            answer = await replica.post(token)
            assert answer.status_code == 200
            assert "mcp-session-id" not in answer.headers
        assert (await first.get("/mcp", token, Accept="text/event-stream")).status_code == 405


async def test_a_shared_state_means_no_sessions_unless_the_operator_says_otherwise(tmp_path):
    async with web(tmp_path) as quorate:
        store = quorate.rig.app.store
        assert (await quorate.post()).status_code == 400  # it wants a session
        store.shared = True
        async with served(quorate.rig) as replica:
            assert (await replica.post(body=LOOK)).status_code == 200
        async with served(quorate.rig, replace(HttpSettings(), sessions=True)) as sticky:
            assert (await sticky.post(body=LOOK)).status_code == 400
        store.shared = False


@tries("a client's answer is malformed")
@pytest.mark.parametrize(
    "answer", [{"result": []}, {"result": {"action": "maybe"}}, {"result": None}, {"error": "no"}, {"result": "accept"}]
)
async def test_a_malformed_answer_is_refused_at_once_and_the_operator_can_still_answer(tmp_path, answer):
    """In a session, the question is a request to the client; nothing may wait for an answer that has come."""
    async with web(tmp_path, http=HttpSettings(sessions=True), approval=Approval.ASK) as quorate:
        hello = {
            "protocolVersion": "2025-11-25",
            "capabilities": {"elicitation": {}},
            "clientInfo": {"name": "test", "version": "1"},
        }
        begun = await quorate.post(body={"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello})
        session = {"mcp_session_id": begun.headers["mcp-session-id"], "mcp_protocol_version": "2025-11-25"}
        await quorate.post(body={"jsonrpc": "2.0", "method": "notifications/initialized"}, **session)
        params = {"name": "guest_stop", "arguments": {"guest": 100}}
        call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        headers = {**MCP_HEADERS, **{name.replace("_", "-"): text for name, text in session.items()}}
        async with asyncio.timeout(20), quorate.plain.stream("POST", "/mcp", json=call, headers=headers) as stream:
            messages = (json.loads(line[6:]) async for line in stream.aiter_lines() if line.startswith("data: {"))
            question = await anext(messages)
            assert question["method"] == "elicitation/create"
            sent = await quorate.post(body={"jsonrpc": "2.0", "id": question["id"], **answer}, **session)
            assert sent.status_code == 202
            done = await anext(messages)
        (row,) = await Approvals(quorate.rig.app.store).list()
        text = done["result"]["content"][0]["text"]
        assert done["result"]["isError"]
        assert f"quorate approvals approve {row.id}" in text
        assert "malformed" in text
        assert quorate.rig.sim.world.guests[100].status == "running"
