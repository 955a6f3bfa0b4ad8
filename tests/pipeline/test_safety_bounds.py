"""Rows of the tables in docs/safety.md about too much of something, and about what is hidden."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web as plain_web

from quorate.config.http import HttpSettings
from tests.pipeline import test_hidden_guests as hidden_guests
from tests.pipeline.test_bounds import beside, packed
from tests.pipeline.test_hidden_guests import canary
from tests.pipeline.test_safety_table import raw, tries
from tests.rigs.homelab import house
from tests.rigs.mcp_session import rig, text_of
from tests.runs import test_evacuate as evacuation
from tests.surfaces.web.test_limits import dialling, post_of

pytestmark = pytest.mark.anyio


@tries("an endless argument")
@pytest.mark.parametrize("surface", ["native", "lean"])
async def test_an_argument_without_end_is_refused_before_anything_reads_it(tmp_path: Path, surface: str) -> None:
    long = {"guest": "x" * 1_000_000}
    async with rig(tmp_path, more={"surfaces": (surface,)}) as quorate:
        call = (
            ("guest_get", long) if surface == "native" else ("pve_read", {"operation": "guest_get", "arguments": long})
        )
        refusal = await quorate.refusal(call[0], **call[1])
        assert "guest is 1000000 characters long. The limit is 16384" in refusal
        assert quorate.sim.requests == []


@tries("an argument of an unexpected shape")
@pytest.mark.parametrize("vmid", [[700, 701], {"a": 700}, [[]], True])
async def test_an_id_that_is_no_id_is_refused_and_nothing_is_sent(tmp_path: Path, vmid: Any) -> None:
    async with rig(tmp_path) as quorate:
        for path, name in (("/nodes/pve1/qemu", "vmid"), ("/nodes/pve1/qemu/108/clone", "newid")):
            answer = await raw(quorate, "POST", path, **{name: vmid})
            assert "defect" not in answer
        assert quorate.writes == []


@tries("a document that takes forever to parse")
async def test_a_document_is_given_up_before_it_costs_anything(tmp_path: Path) -> None:
    async with house(tmp_path, register=False) as home:
        for document in ("[" * 5000, "a: &a [x,x]\nb: [*a,*a]", "- a\n" * 60_000):
            refusal = await home.quorate.refusal("infra_validate", document=document, level="basic")
            assert "The document" in refusal
            assert "defect" not in refusal


@tries("endlessly nested JSON", "a small gzip that expands enormously")
async def test_an_answer_that_would_fill_the_memory_or_the_stack_is_not_read(tmp_path: Path) -> None:
    bomb = gzip.compress(b'{"data":"' + b"0" * 100_000_000)

    def answer_deeply(_: plain_web.Request) -> plain_web.Response:
        return plain_web.Response(body=b'{"data":' + b"[" * 100_000)

    def answer_hugely(_: plain_web.Request) -> plain_web.Response:
        return packed(bomb)

    for answering in (answer_deeply, answer_hugely):
        async with beside(tmp_path, answering) as quorate:
            refusal = await quorate.refusal("api_call", method="GET", path="/version")
            assert "defect" not in refusal
            assert "nested more than 64" in refusal or "is longer than" in refusal


@tries("a request that never ends", "one caller takes all connections")
async def test_a_caller_who_sends_nothing_does_not_keep_others_out(tmp_path: Path) -> None:
    settings = HttpSettings(sessions=False, caller_limit=2, address_limit=50, body_seconds=0.5, rate_limit=0)
    async with dialling(tmp_path, settings) as (quorate, dial):
        mallory, alice = await quorate.token("mallory"), await quorate.token("alice")
        lines = [await dial(post_of(1000, mallory)) for _ in range(20)]
        assert (await quorate.post(alice)).status_code == 200
        statuses = [await line.status() for line in lines]
        assert statuses.count(429) >= 10
        assert set(statuses) == {429, 408}


@tries("a caller fishes for the name of a hidden guest")
async def test_a_hidden_guest_is_named_to_nobody(tmp_path: Path) -> None:
    async with canary(tmp_path) as (_, veiled):
        for tool, arguments, asked in (
            ("guest_get", {"guest": hidden_guests.VMID}, str(hidden_guests.VMID)),
            ("guest_get", {"guest": hidden_guests.NAME[:-1]}, ""),
            ("guest_power", {"guest": hidden_guests.NAME, "action": "start"}, hidden_guests.NAME),
            ("api_call", {"method": "POST", "path": "/nodes/pve1/stopall"}, ""),
            ("pool_set", {"pool": "canaries", "comment": "x", "dry_run": True}, ""),
            ("backup_job_list", {}, ""),
        ):
            assert not hidden_guests.leaked_marks(text_of(await veiled.call(tool, **arguments)), asked=asked), tool


@tries("a run does more than was approved with it")
async def test_a_run_keeps_to_what_was_approved(tmp_path: Path) -> None:
    for name, attempt in (
        ("risk", evacuation.test_what_was_approved_as_a_change_does_not_become_a_destruction_on_the_way),
        ("guest", evacuation.test_another_guest_under_the_same_id_is_not_moved),
        ("more", evacuation.test_a_guest_that_arrives_later_is_not_moved_without_asking),
    ):
        (tmp_path / name).mkdir()
        await attempt(tmp_path / name)
