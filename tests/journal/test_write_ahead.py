"""The intent of a change is on the disk before its first request, every answer as it arrives, the outcome last."""

from __future__ import annotations

import asyncio
import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quorate.pipeline.caller import Exchange
from quorate.state.chain import MOST_BYTES, limit_size
from tests.rigs.mcp_session import Rig, rig, second_server
from tests.rigs.several_clusters import several_clusters

pytestmark = pytest.mark.anyio


def phases(quorate: Rig) -> list[str]:
    return [line.get("phase", "whole") for line in quorate.audit_lines()]


async def test_the_intent_is_written_before_the_first_request(tmp_path: Path) -> None:
    async with rig(tmp_path) as quorate:
        quorate.sim.faults.add("latency:3600:POST:*")
        change = asyncio.create_task(
            quorate.app.pipeline.run("guest_power", {"guest": 107, "action": "start"}, Exchange())
        )
        while not any(method == "POST" for method, _ in quorate.sim.requests):
            await asyncio.sleep(0.001)
        (intent,) = quorate.audit_lines()
        assert (intent["phase"], intent["tool"], intent["approval"]) == (
            "intent",
            "guest_power",
            "none by the operator, who switched approvals off",
        )
        assert intent["wire"][0]["path"] == "/nodes/pve2/qemu/107/status/start"
        (entry,) = quorate.audit()
        assert (entry["outcome"], entry["final"]) == ("unfinished", False)
        change.cancel()
        with pytest.raises(asyncio.CancelledError):
            await change


async def test_a_change_costs_its_intent_a_line_for_each_answer_and_its_outcome(tmp_path: Path) -> None:
    async with rig(tmp_path) as quorate:
        await quorate.facts("guest_bulk", action="tag", guests=[104, 204], tags=["x"])
        assert phases(quorate) == ["intent", "step", "step", "outcome"]
        (entry,) = quorate.audit()
        assert entry["outcome"] == "done"
        assert [step["state"] for step in entry["steps"]] == ["done", "done"]
        assert (await quorate.app.audit.verify()).unfinished == ()


async def test_dry_runs_refusals_and_changes_that_need_nothing_cost_one_line(tmp_path: Path) -> None:
    async with rig(tmp_path) as quorate:
        await quorate.facts("guest_power", guest=107, action="start", dry_run=True)
        await quorate.refusal("guest_power", guest=4711, action="start")
        await quorate.facts("guest_power", guest=104, action="start")
        assert phases(quorate) == ["whole", "whole", "whole"]


async def test_the_task_is_in_the_journal_before_it_is_followed(tmp_path: Path) -> None:
    async with rig(tmp_path) as quorate:
        quorate.sim.faults.add("latency:3600:GET:/nodes/*/tasks/*")
        change = asyncio.create_task(
            quorate.app.pipeline.run("guest_power", {"guest": 107, "action": "start"}, Exchange())
        )
        while not any("/tasks/" in path for _, path in quorate.sim.requests):
            await asyncio.sleep(0.001)
        (entry,) = quorate.audit()
        assert entry["tasks"] == [entry["answers"][0]["task"]]
        assert entry["tasks"][0].startswith("UPID:pve2:")
        change.cancel()
        with pytest.raises(asyncio.CancelledError):
            await change
        (entry,) = quorate.audit()
        assert (entry["outcome"], entry["final"]) == ("interrupted", False)
        assert [step["state"] for step in entry["steps"]] == ["sent"]


async def test_verify_names_what_is_unfinished(tmp_path: Path) -> None:
    async with rig(tmp_path) as quorate:
        change = quorate.app.pipeline.journal.change()
        await change.begin({"tool": "guest_power", "plan": "Start vm 107", "time": "2026-01-15 08:00:00Z"})
        verification = await quorate.app.audit.verify()
        assert verification.intact
        assert verification.unfinished == ("The entry in record 1 has no outcome: Start vm 107 (2026-01-15 08:00:00Z)",)
        await change.close({"outcome": "running"}, final=False)
        assert "no final outcome (running)" in (await quorate.app.audit.verify()).unfinished[0]


async def test_a_refused_call_of_many_megabytes_leaves_a_small_entry(tmp_path: Path) -> None:
    async with rig(tmp_path) as quorate:
        flood = {f"p{number}": "x" * 4000 for number in range(2000)}
        await quorate.refusal("api_call", method="POST", path="/nodes/pve1/none", params=flood)
        text = quorate.audit_file.read_text()
        assert len(text) < MOST_BYTES + 1000
        assert "sha256" in text
        assert (await quorate.app.audit.verify()).intact


def test_what_is_cut_leaves_its_length_and_digest() -> None:
    text = "long " * 1000
    cut = limit_size({"plan": text})["plan"]
    assert f"({len(text)} characters, sha256 {hashlib.sha256(text.encode()).hexdigest()})" in cut


def test_no_depth_is_too_deep() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    assert len(json.dumps(limit_size({"arguments": deep}))) < 500


anything = st.recursive(
    st.none() | st.integers() | st.floats() | st.builds(str.__mul__, st.text(max_size=5), st.integers(1, 3000)),
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text(max_size=5), inner, max_size=8),
    max_leaves=30,
)


@pytest.mark.thorough
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])  # the machine may be busy
@given(st.dictionaries(st.text(max_size=5), anything, max_size=8))
def test_an_entry_of_any_shape_is_bounded(entry: dict[str, Any]) -> None:
    assert len(json.dumps(limit_size(entry))) < MOST_BYTES + 10_000


@pytest.mark.parametrize("moment", range(12))
async def test_a_call_that_is_cancelled_while_its_intent_is_written_is_closed_after_it(
    tmp_path: Path, moment: int
) -> None:
    async with rig(tmp_path) as quorate:
        change = quorate.app.pipeline.journal.change()
        beginning = asyncio.create_task(change.begin({"tool": "guest_power", "outcome": "unfinished"}))
        for _ in range(moment):
            await asyncio.sleep(0)
        beginning.cancel()
        if not beginning.done():
            await asyncio.gather(beginning, return_exceptions=True)
        if change.begun:
            await change.close({"tool": "guest_power", "outcome": "interrupted"}, final=True)
            assert phases(quorate) == ["intent", "outcome"]
        assert (await quorate.app.audit.verify()).unfinished == ()
        assert await quorate.app.store.fetch("SELECT id FROM quorate_changes") == []


async def test_looking_into_changes_can_be_cut_short_and_begun_again(tmp_path: Path) -> None:
    async with rig(tmp_path) as quorate:
        pipeline = quorate.app.pipeline
        await quorate.facts("guest_power", guest=107, action="start")
        (done,) = quorate.audit()
        for _ in range(3):
            change = pipeline.journal.change()
            await change.begin({name: done[name] for name in ("tool", "time", "cluster", "plan", "wire")})
            await change.record_answer({"step": "1", "state": "sent", "task": done["tasks"][0]})
            await change.close({"outcome": "interrupted"}, final=False)
        slow = quorate.sim.faults.add("latency:3600:GET:/nodes/*/tasks/*")
        quorate.sim.requests.clear()
        looking = asyncio.create_task(pipeline.resolve_unfinished())
        while not any("/tasks/" in path for _, path in quorate.sim.requests):
            await asyncio.sleep(0.001)
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
        quorate.sim.faults.remove(slow)
        assert [resolution.outcome for resolution in await pipeline.resolve_unfinished()] == ["done"] * 3
        assert (await quorate.app.audit.verify()).unfinished == ()


async def test_a_server_of_another_cluster_says_nothing_about_a_change_it_cannot_know_of(tmp_path: Path) -> None:
    """On the same state: one with fewer clusters, and one whose cluster has the same name."""
    async with several_clusters(tmp_path, "prod", "lab") as quorate:
        await quorate.facts("guest_power", guest=107, action="start", cluster="prod")
        (done,) = quorate.audit()
        change = quorate.app.pipeline.journal.change()
        await change.begin({name: done[name] for name in ("tool", "time", "cluster", "plan", "wire", "endpoints")})
        await change.close({"outcome": "interrupted"}, final=False)
        _, lab = quorate.app.settings.clusters
        for clusters in ((lab,), (replace(lab, name="prod"),)):
            async with second_server(quorate, quorate.audit_file, clusters=clusters) as other:
                (resolution,) = await other.app.pipeline.resolve_unfinished()
                assert (resolution.outcome, "is not configured" in resolution.says[0]) == (None, True)
        assert len((await quorate.app.audit.verify()).unfinished) == 1
        (resolution,) = await quorate.app.pipeline.resolve_unfinished()
        assert resolution.outcome is not None
        assert (await quorate.app.audit.verify()).unfinished == ()


async def test_a_server_that_only_reads_creates_no_state(tmp_path: Path) -> None:
    async with rig(tmp_path) as quorate:
        await quorate.facts("guest_get", guest=107)
        assert await quorate.app.pipeline.resolve_unfinished() == []
        assert not quorate.app.store.exists
        await quorate.facts("guest_power", guest=107, action="start")
        assert quorate.app.store.exists
