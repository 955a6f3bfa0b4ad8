"""The audit trail: every change leaves an entry, and no entry can be tampered with unseen."""

from __future__ import annotations

import asyncio
import csv
import fcntl
import io
import json
import logging
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from pathlib import Path, PosixPath
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorate.state.chain import Link, first_link, link_entry, verify
from quorate.state.store import Store, open_store
from quorate.state.trail import AuditTrail, AuditUnwritable, Filters, open_trail
from tests.rigs import races
from tests.rigs.manual_clock import HandClock
from tests.rigs.processes import FORKED

pytestmark = pytest.mark.anyio


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "trail" / "audit.jsonl"


@pytest.fixture
async def trail(store: Store, file: Path) -> AsyncIterator[AuditTrail]:
    opened = open_trail(store, file)
    yield opened
    await opened.close()


@pytest.fixture
async def file_trail(anyio_backend: str, tmp_path: Path, file: Path, clock: HandClock) -> AsyncIterator[AuditTrail]:
    async with open_store(str(tmp_path / "quorate.db"), clock=clock) as store:
        opened = open_trail(store, file)
        yield opened
        await opened.close()


def entry(number: int = 0, **more: Any) -> dict[str, Any]:
    time = datetime.fromtimestamp(1_750_000_000 + number, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    caller = {"client": "some-client", "transport": "stdio"}
    return {"time": time, "caller": caller, "cluster": "prod", "tool": "guest_power", "outcome": "done"} | more


async def fill(trail: AuditTrail, count: int = 5) -> None:
    for number in range(1, count + 1):
        await trail.record(entry(number, arguments={"guest": f"web{number:02}"}))


# -- writing ---------------------------------------------------------------------------------------------------------


async def test_entries_are_numbered_linked_and_kept(trail: AuditTrail):
    await fill(trail, 3)
    entries = await trail.entries()
    assert [entry["seq"] for entry in entries] == [1, 2, 3]
    assert [entry["arguments"]["guest"] for entry in entries] == ["web01", "web02", "web03"]
    assert [entry["prev"] for entry in entries[1:]] == [entry["hash"] for entry in entries[:2]]
    checked = await trail.verify()
    assert checked.intact
    assert (checked.entries, checked.older, checked.remarks) == (3, 0, ())


INSTALLED_RECORDS = [
    (
        '{"seq":1,"time":"2026-01-02 03:04:05Z","caller":{"client":"some-client","transport":"stdio"},'
        '"tool":"guest_power","arguments":{"vmid":100,"name":"büro"},'
        '"prev":"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",'
        '"hash":"2a5d02b3e6ba48ce3a042a080434310b9eb5bf047e5bea4354c6d7453504689c"}'
    ),
    (
        '{"seq":2,"change":"feedfeedfeedfeed","phase":"intent","tool":"guest_delete",'
        '"wire":[{"method":"DELETE","path":"/nodes/pve1/qemu/100"}],'
        '"prev":"2a5d02b3e6ba48ce3a042a080434310b9eb5bf047e5bea4354c6d7453504689c",'
        '"hash":"f16338012e3e88495e2fff65c5d1592f8028b15fee190b89c3f27fdd54e229f3"}'
    ),
]
"""As earlier versions wrote them."""


async def test_records_keep_the_form_and_the_hashes_that_installed_trails_have(file_trail: AuditTrail, file: Path):
    caller = {"client": "some-client", "transport": "stdio"}
    arguments = {"vmid": 100, "name": "büro"}
    await file_trail.append(
        {"time": "2026-01-02 03:04:05Z", "caller": caller, "tool": "guest_power", "arguments": arguments}
    )
    wire = [{"method": "DELETE", "path": "/nodes/pve1/qemu/100"}]
    await file_trail.append({"change": "feedfeedfeedfeed", "phase": "intent", "tool": "guest_delete", "wire": wire})
    assert file.read_text().splitlines() == INSTALLED_RECORDS  # noqa: ASYNC240


async def test_an_empty_trail_is_intact(trail: AuditTrail):
    checked = await trail.verify()
    assert checked.intact
    assert (checked.entries, checked.remarks) == (0, ())
    assert await trail.entries() == []


async def test_another_server_goes_on_with_the_same_chain(trail: AuditTrail, replica: Store, file):
    other = open_trail(replica, file)
    for number in range(3):
        await trail.record(entry(number))
        await other.record(entry(number))
    assert [entry["seq"] for entry in await other.entries()] == [1, 2, 3, 4, 5, 6]
    assert (await trail.verify()).intact


async def test_many_processes_append_to_one_chain(trail: AuditTrail, location: str, file):
    loop = asyncio.get_running_loop()
    with ProcessPoolExecutor(4, mp_context=FORKED) as processes:
        done = [loop.run_in_executor(processes, races.record, location, file, f"p{n}", 25) for n in range(4)]
        await asyncio.gather(*done)
    checked = await trail.verify()
    assert checked.intact, checked.broken
    assert (checked.entries, checked.remarks) == (100, ())
    entries = await trail.entries(limit=1000)
    assert {(entry["who"], entry["n"]) for entry in entries} == {(f"p{n}", m) for n in range(4) for m in range(25)}


async def test_an_entry_is_written_to_its_end_when_its_call_is_cancelled(trail: AuditTrail):
    with anyio.CancelScope() as scope:
        scope.cancel()  # every await below is interrupted at once, as in a call that the client has canceled
        await trail.record(entry(1))
    await trail.close()
    assert [entry["seq"] for entry in await trail.entries()] == [1]


async def test_an_entry_that_is_lost_after_its_call_is_cancelled_is_at_least_logged(
    file_trail: AuditTrail, file, caplog: pytest.LogCaptureFixture
):
    file.mkdir(parents=True)
    with caplog.at_level(logging.ERROR), anyio.CancelScope() as scope:
        scope.cancel()
        await file_trail.record(entry(1))
    await file_trail.close()
    await anyio.lowlevel.checkpoint()
    assert "guest_power is not recorded" in caplog.text


async def test_the_file_is_private(file_trail: AuditTrail, file):
    await file_trail.ensure_writable()
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700


async def test_anything_can_be_recorded(trail: AuditTrail):
    strange: dict[Any, Any] = {
        "text": "ünïcode \u2028 \0 \ud800 \U0001f600 ' \" \\",
        "pair": "\ud83d" + "\ude00",
        "numbers": [0.1, 1e22, -0.0, 2**70, float("inf")],
        "tuple": (1, None, True),
        "set": {"one"},
        "path": Path("/etc"),
        "bytes": b"\xff",
        1: "number as name",
        "seq": 99,
        "hash": "mine",
        "prev": "mine",
    }
    await trail.record(strange)
    await trail.record(entry(1))
    assert (await trail.verify()).intact
    first = (await trail.entries())[0]
    assert (first["seq"], first["1"], first["set"], first["path"]) == (1, "number as name", ["one"], "/etc")


async def test_an_unwritable_file_stops_changes(file_trail: AuditTrail, file):
    file.parent.write_text("in the way")
    with pytest.raises(AuditUnwritable, match="so nothing is changed"):
        await file_trail.ensure_writable()
    with pytest.raises(AuditUnwritable, match="guest_power is not recorded there; it ended with: done"):
        await file_trail.record(entry(1))


async def test_state_that_is_away_stops_changes_but_an_entry_is_still_written(tmp_path, file, clock):
    place = tmp_path / "state"
    place.write_text("in the way")
    async with open_store(str(place / "quorate.db"), clock=clock) as store:
        trail = open_trail(store, file)
        with pytest.raises(AuditUnwritable, match="so nothing is changed"):
            await trail.ensure_writable()
        await trail.record(entry(1))
        place.unlink()
        await trail.record(entry(2))
        await trail.record(entry(3))
        assert (await trail.verify()).intact
        assert [entry["seq"] for entry in await trail.entries()] == [1, 2, 3]


async def test_a_postgres_that_is_away_stops_changes(clock, file):
    pytest.importorskip("asyncpg")
    async with open_store("postgresql://ada:hunter2@127.0.0.1:1/quorate", clock=clock) as store:
        trail = open_trail(store, file)
        with pytest.raises(AuditUnwritable, match="so nothing is changed") as refusal:
            await trail.ensure_writable()
        assert "hunter2" not in str(refusal.value)
        assert not file.exists()


async def test_an_entry_that_the_disk_has_no_room_for_leaves_nothing_behind(
    file_trail: AuditTrail, file, tmp_path: Path
):
    await fill(file_trail, 5)
    before = file.read_bytes()
    with ProcessPoolExecutor(1, mp_context=FORKED) as processes:
        message = await asyncio.get_running_loop().run_in_executor(
            processes, races.record_with_little_room, str(tmp_path / "other.db"), file, len(before) + 200
        )
    assert "guest_power is not recorded" in message
    assert "The disk is full" in message
    assert file.read_bytes() == before
    await file_trail.record(entry(6))
    assert (await file_trail.verify()).entries == 6


# -- tampering -------------------------------------------------------------------------------------------------------

Lines = list[bytes]


def rewritten(line: bytes, **other: Any) -> bytes:
    """The line with something else in it and a hash that fits, as someone who knows how would make it."""
    record = json.loads(line)
    return link_entry({**record, **other}, Link(record["seq"] - 1, record["prev"]))[0]


TAMPERING: dict[str, tuple[Callable[[Lines], Lines], str, int]] = {
    "a word": (lambda old: [old[0], old[1].replace(b"web02", b"web99"), *old[2:]], "changed", 2),
    "a word and its hash": (lambda old: [old[0], rewritten(old[1], tool="other"), *old[2:]], "changed", 2),
    "a second spelling of a name": (
        lambda old: [old[0], old[1].replace(b'"tool":', b'"tool":"guest_list","tool":'), *old[2:]],
        "changed",
        2,
    ),
    "its hash taken away": (lambda old: [old[0], old[1].replace(b'"hash"', b'"hush"'), *old[2:]], "changed", 2),
    "made unreadable": (lambda old: [old[0], b"#" + old[1], *old[2:]], "changed", 2),
    "the first one taken out": (lambda old: old[1:], "removed", 1),
    "one taken out": (lambda old: [*old[:2], *old[3:]], "removed", 3),
    "several taken out": (lambda old: [old[0], *old[4:]], "removed", 2),
    "one put in that links": (
        lambda old: [old[0], link_entry(entry(), Link(1, json.loads(old[0])["hash"]))[0], *old[1:]],
        "inserted",
        3,
    ),
    "one put in without a hash": (lambda old: [*old[:2], b'{"tool":"guest_power"}\n', *old[2:]], "inserted", 3),
    "words put in": (lambda old: [*old[:2], b"hello\n", *old[2:]], "inserted", 3),
    "words put in at the end": (lambda old: [*old, b"hello\n"], "inserted", 6),
    "one doubled": (lambda old: [*old[:2], old[1], *old[2:]], "inserted", 3),
    "two swapped": (lambda old: [old[0], old[2], old[1], *old[3:]], "reordered", 2),
    "the last moved to the front": (lambda old: [old[-1], *old[:-1]], "reordered", 1),
    "the end cut off": (lambda old: old[:3], "cut", 3),
    "half of the last one cut off": (lambda old: [*old[:4], old[4][:20]], "cut", 5),
    "the last one replaced": (lambda old: [*old[:4], rewritten(old[4], tool="other")], "cut", 5),
    "everything taken out": (lambda old: [], "cut", 0),
}


@pytest.mark.parametrize("what", TAMPERING)
async def test_tampering_with_the_file_is_found_and_named(file_trail: AuditTrail, file, what: str):
    tamper, how, line = TAMPERING[what]
    await fill(file_trail)
    file.write_bytes(b"".join(tamper(file.read_bytes().splitlines(keepends=True))))
    checked = await file_trail.verify()
    assert checked.broken is not None
    assert (checked.broken.how, checked.broken.line) == (how, line), checked.broken.says


@pytest.mark.parametrize("what", TAMPERING)
async def test_what_is_written_afterwards_does_not_hide_it(file_trail: AuditTrail, file, what: str):
    tamper, _, _ = TAMPERING[what]
    await fill(file_trail)
    file.write_bytes(b"".join(tamper(file.read_bytes().splitlines(keepends=True))))
    for number in range(10):
        await file_trail.record(entry(number))
        assert (await file_trail.verify()).broken is not None


async def test_a_file_that_was_taken_away_is_missed(file_trail: AuditTrail, file):
    await fill(file_trail, 3)
    file.unlink()
    checked = await file_trail.verify()
    assert checked.broken is not None
    assert (checked.broken.how, checked.broken.says) == ("cut", "Records 1 to 3 were cut off at the end")
    await fill(file_trail, 10)
    checked = await file_trail.verify()
    assert checked.broken is not None
    assert (checked.broken.how, checked.broken.says) == ("removed", "Records 1 to 3 were removed")


async def test_a_forged_entry_at_the_end_is_remarked(file_trail: AuditTrail, file):
    """Anyone who may write the file can append to the chain as we do; but the store does not have it."""
    await fill(file_trail, 2)
    last = json.loads(file.read_bytes().splitlines()[-1])
    with file.open("ab") as opened:
        opened.write(link_entry(entry(tool="forged"), Link(2, last["hash"]))[0])
    assert (await file_trail.verify()).remarks == ("Record 3 is newer than what the store knows",)
    await file_trail.record(entry(4))
    checked = await file_trail.verify()
    assert checked.intact
    assert len(checked.remarks) == 1
    assert "Record 3 was unknown to the store when record 4 was written" in checked.remarks[0]


@pytest.mark.parametrize(
    ("statement", "how"),
    [
        ("UPDATE quorate_audit SET entry = replace(entry, 'web02', 'web99') WHERE seq = 2", "changed"),
        ("DELETE FROM quorate_audit WHERE seq = 3", "removed"),
        ("DELETE FROM quorate_audit WHERE seq > 3", "cut"),
        ("DELETE FROM quorate_audit", "cut"),
        ("INSERT INTO quorate_audit SELECT 0, entry FROM quorate_audit WHERE seq = 2", "reordered"),
        ("UPDATE quorate_audit SET seq = seq + 100 WHERE seq = 2", "reordered"),
        ('INSERT INTO quorate_audit VALUES (-5, \'{"tool":"x"}\')', "changed"),
    ],
)
async def test_tampering_with_the_table_is_found(postgres: str, clock: HandClock, file, statement, how):
    async with open_store(postgres, clock=clock) as store:
        trail = open_trail(store, file)
        await fill(trail)
        assert await store.execute(statement) > 0
        checked = await trail.verify()
        assert checked.broken is not None
        assert checked.broken.how == how, checked.broken.says
        await trail.record(entry(6))
        assert (await trail.verify()).broken is not None


# -- crashes and older files -----------------------------------------------------------------------------------------


async def test_an_unfinished_last_line_is_named_and_the_chain_goes_on(file_trail: AuditTrail, file):
    await fill(file_trail, 2)
    with file.open("ab") as opened:
        opened.write(b'{"seq":3,"time":"2025-06-15 15:0')  # the server died here
    checked = await file_trail.verify()
    assert checked.intact
    assert checked.remarks == ("Line 3 is incomplete: a crash interrupted the writing of a record",)
    await file_trail.record(entry(3))
    with file.open("ab") as opened:
        opened.write(b'{"seq":4,"ti')
    await file_trail.record(entry(4))
    checked = await file_trail.verify()
    assert checked.intact, checked.broken
    assert checked.entries == 4
    assert checked.remarks == (
        "Line 3 is incomplete: a crash interrupted it, as record 3 says",
        "Line 5 is incomplete: a crash interrupted it, as record 4 says",
    )
    assert [entry["seq"] for entry in await file_trail.entries()] == [1, 2, 3, 4]


async def test_what_the_next_entry_says_of_an_unfinished_line_cannot_be_changed(file_trail: AuditTrail, file):
    await fill(file_trail, 2)
    with file.open("ab") as opened:
        opened.write(b'{"seq":3,"tool":"guest_del')
    await file_trail.record(entry(3))
    file.write_bytes(file.read_bytes().replace(b"guest_del", b"guest_lis"))
    checked = await file_trail.verify()
    assert checked.broken is not None
    assert checked.broken.line == 3


async def test_a_line_that_lacks_only_its_end_is_an_entry(file_trail: AuditTrail, file):
    await fill(file_trail, 2)
    file.write_bytes(file.read_bytes()[:-1])
    assert (await file_trail.verify()).intact
    await file_trail.record(entry(3))
    checked = await file_trail.verify()
    assert checked.intact, checked.broken
    assert (checked.entries, checked.remarks) == (3, ())


async def test_a_file_from_before_the_chain_is_taken_as_it_is(file_trail: AuditTrail, file):
    file.parent.mkdir()
    file.write_text('{"tool":"guest_power","outcome":"done"}\n{"tool":"guest_stop","outcome":"failed"}\n')
    checked = await file_trail.verify()
    assert checked.intact
    assert checked.remarks == ("2 lines without a hash, from before the chain",)
    await fill(file_trail, 2)
    checked = await file_trail.verify()
    assert checked.intact
    assert (checked.entries, checked.older) == (2, 2)
    assert checked.remarks == ("2 lines without a hash, from before the chain: record 1 covers their content",)
    assert [entry["tool"] for entry in await file_trail.entries()] == [
        "guest_power",
        "guest_stop",
        "guest_power",
        "guest_power",
    ]
    file.write_text(file.read_text().replace("failed", "done"))
    checked = await file_trail.verify()
    assert checked.broken is not None
    assert (checked.broken.how, checked.broken.line) == ("changed", 1)


async def test_an_older_file_with_an_unfinished_line_is_taken_as_it_is(file_trail: AuditTrail, file):
    file.parent.mkdir()
    file.write_text('{"tool":"guest_power"}\n{"tool":"gue')
    await fill(file_trail, 2)
    checked = await file_trail.verify()
    assert checked.intact
    assert (checked.entries, checked.older) == (2, 2)


async def test_without_the_stores_record_the_file_is_believed_and_that_is_said(
    file_trail: AuditTrail, file, tmp_path: Path, clock: HandClock
):
    await fill(file_trail, 2)
    async with open_store(str(tmp_path / "new.db"), clock=clock) as store:
        trail = open_trail(store, file)
        checked = await trail.verify()
        assert checked.intact
        assert "a cut-off end would go unnoticed" in checked.remarks[0]
        await trail.record(entry(3))
        checked = await trail.verify()
        assert (checked.intact, checked.entries, checked.remarks) == (True, 3, ())


@given(
    entries=st.lists(st.dictionaries(st.text(), st.text() | st.integers() | st.floats(allow_nan=False)), max_size=6),
    at=st.integers(min_value=0),
    flip=st.integers(min_value=1, max_value=255),
)
def test_no_byte_of_a_chain_can_be_changed_unseen(entries, at, flip):
    lines, link = [], first_link()
    for entry in entries:
        line, link = link_entry(entry, link)
        lines.append(line)
    trail = b"".join(lines)
    assert asyncio.run(checked_bytes(trail, link)).intact
    if trail:
        at %= len(trail)
        changed = trail[:at] + bytes([trail[at] ^ flip]) + trail[at + 1 :]
        assert not asyncio.run(checked_bytes(changed, link)).intact or at == len(trail) - 1


async def checked_bytes(trail: bytes, head: Link):
    async def lines():
        for line in io.BytesIO(trail):
            yield line

    return await verify(lines(), head)


# -- reading ---------------------------------------------------------------------------------------------------------


async def test_the_newest_entries_come_last_and_no_more_than_asked_for(trail: AuditTrail):
    await fill(trail, 7)
    assert [entry["seq"] for entry in await trail.entries(limit=3)] == [5, 6, 7]
    assert await trail.entries(limit=0) == []


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        (Filters(tool="guest_stop"), [2]),
        (Filters(tool="guest_*"), [1, 2]),
        (Filters(outcome="refused"), [3]),
        (Filters(caller="other-client"), [2]),
        (Filters(caller="stdio"), [1, 3]),
        (Filters(cluster="lab"), [3]),
        (Filters(since=1_750_000_002), [2, 3]),
        (Filters(until=1_750_000_002), [1]),
        (Filters(since=1_750_000_002, until=1_750_000_003), [2]),
        (Filters(tool="guest_*", caller="nobody"), []),
    ],
)
async def test_entries_are_found_by_what_they_say(trail: AuditTrail, filters: Filters, expected):
    await trail.record(entry(1))
    await trail.record(entry(2, tool="guest_stop", caller={"subject": "ada", "client": "other-client"}))
    await trail.record(entry(3, tool="snapshot_create", outcome="refused", cluster="lab"))
    assert [entry["seq"] for entry in await trail.entries(filters)] == expected
    exported = [json.loads(line)["seq"] async for line in trail.export("jsonl", filters)]
    assert exported == expected


async def test_a_long_trail_is_read_from_its_end(trail: AuditTrail):
    """Lines that are longer than a block, and more of them than a batch, come back whole and in order."""
    for number in range(12):
        await trail.record(entry(number, calls=["ü" + "x" * 4_000] * number * 2))
    entries = await trail.entries(limit=1000)
    assert [len("".join(entry["calls"])) for entry in entries] == [8_002 * number for number in range(12)]
    assert (await trail.verify()).entries == 12


async def test_an_export_can_be_verified_and_opened_in_a_spreadsheet(trail: AuditTrail):
    await trail.record(
        entry(1, plan='=HYPERLINK("http://x")', error='a "quoted", line\nand another', rule="quiet hours")
    )
    await trail.record(entry(2, novelty="unheard of"))
    lines = [line.encode() async for line in trail.export("jsonl")]

    async def again():
        for line in lines:
            yield line

    assert (await verify(again(), None)).entries == 2
    rows = list(csv.DictReader(io.StringIO("".join([line async for line in trail.export("csv")]))))
    assert [row["seq"] for row in rows] == ["1", "2"]
    assert rows[0]["plan"] == '\'=HYPERLINK("http://x")'
    assert (rows[0]["error"], rows[0]["rule"]) == ('a "quoted", line\nand another', "quiet hours")
    assert json.loads(rows[0]["caller"]) == {"client": "some-client", "transport": "stdio"}
    assert json.loads(rows[1]["more"]) == {"novelty": "unheard of"}


async def test_a_canceled_reader_is_canceled_even_if_a_thread_is_still_reading_for_it(
    tmp_path: Path, file: Path, clock: HandClock
):
    begun, released = threading.Event(), threading.Event()

    class SlowFile(PosixPath):
        def open(self, *positional: Any, **more: Any) -> Any:
            begun.set()
            released.wait()
            return super().open(*positional, **more)

    async with open_store(str(tmp_path / "quorate.db"), clock=clock) as store:
        trail = open_trail(store, SlowFile(file))
        await fill(trail)
        reading = asyncio.create_task(trail.entries(Filters(), 5))
        assert await asyncio.to_thread(begun.wait, 10)
        reading.cancel()
        try:
            with pytest.raises(asyncio.CancelledError):
                await reading
        finally:
            released.set()


async def test_a_canceled_verification_does_not_keep_the_trail_locked(file_trail: AuditTrail, file: Path):
    await fill(file_trail)
    with file.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        verifying = asyncio.create_task(file_trail.verify())
        for _ in range(5):  # a thread waits for the lock by then
            await asyncio.sleep(0)
        verifying.cancel()
        with pytest.raises(asyncio.CancelledError):
            await verifying
    async with asyncio.timeout(10):
        await file_trail.record(entry(6))
    assert (await file_trail.verify()).entries == 6
