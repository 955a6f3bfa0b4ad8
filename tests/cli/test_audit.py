"""The audit trail from the shell: shown, filtered, exported, proven."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from quorate.pve.connection import SystemClock
from quorate.state.store import open_store
from quorate.state.trail import open_trail
from tests.rigs.cli import quorate


@pytest.fixture
def trail(environ: Mapping[str, str]) -> Path:
    file = Path(environ["QUORATE_AUDIT_FILE"])
    entries = [
        {
            "time": "2026-01-01T10:00:00Z",
            "tool": "guest_power",
            "outcome": "done",
            "cluster": "home",
            "plan": "Start vm 1",
        },
        {
            "time": "2026-01-02T10:00:00Z",
            "tool": "guest_delete",
            "outcome": "refused",
            "cluster": "home",
            "plan": "Delete",
        },
        {
            "time": "2026-01-03T10:00:00Z",
            "tool": "guest_stop",
            "outcome": "failed",
            "cluster": "lab",
            "plan": "Stop \x1b[2J",
        },
    ]

    async def write() -> None:
        async with open_store(environ["QUORATE_STATE"], clock=SystemClock()) as store:
            opened = open_trail(store, file)
            for entry in entries:
                await opened.record({"caller": {"client": "test"}, "approval": "not needed", "error": "", **entry})
            await opened.close()

    asyncio.run(write())
    return file


def audit(environ: Mapping[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return quorate("audit", *arguments, environ=environ)


def test_the_newest_entries_come_last_one_line_each(environ: Mapping[str, str], trail: Path) -> None:
    lines = audit(environ, "--tail", "2").stdout.splitlines()
    assert len(lines) == 2
    assert "Delete" in lines[0]
    assert "Stop" in lines[1]
    assert "\x1b" not in lines[1]


@pytest.mark.parametrize(
    ("filters", "tools"),
    [
        (("--tool", "guest_d*"), ["guest_delete"]),
        (("--outcome", "failed"), ["guest_stop"]),
        (("--cluster", "home"), ["guest_power", "guest_delete"]),
        (("--since", "2026-01-02", "--until", "2026-01-03"), ["guest_delete"]),
        (("--caller", "nobody"), []),
    ],
)
def test_filters_narrow_what_is_shown(
    environ: Mapping[str, str], trail: Path, filters: tuple[str, ...], tools: list[str]
) -> None:
    shown = [json.loads(line)["tool"] for line in audit(environ, "--json", *filters).stdout.splitlines()]
    assert shown == tools


def test_an_export_holds_every_entry(environ: Mapping[str, str], trail: Path) -> None:
    lines = audit(environ, "--export", "jsonl").stdout.splitlines()
    assert [json.loads(line)["tool"] for line in lines] == ["guest_power", "guest_delete", "guest_stop"]
    table = list(csv.DictReader(io.StringIO(audit(environ, "--export", "csv").stdout)))
    assert [row["tool"] for row in table] == ["guest_power", "guest_delete", "guest_stop"]


def test_a_whole_chain_is_proven(environ: Mapping[str, str], trail: Path) -> None:
    done = audit(environ, "--verify")
    assert done.returncode == 0
    assert "3 entries" in done.stdout


@pytest.mark.parametrize(
    "tamper",
    [
        lambda lines: [lines[0].replace("done", "none"), *lines[1:]],
        lambda lines: [lines[0], *lines[2:]],
        lambda lines: [lines[1], lines[0], lines[2]],
        lambda lines: lines[:-1],
        lambda lines: [],
    ],
    ids=["changed", "removed", "reordered", "cut", "emptied"],
)
def test_a_broken_chain_is_found(environ: Mapping[str, str], trail: Path, tamper) -> None:
    trail.write_text("".join(tamper(trail.read_text().splitlines(keepends=True))))
    done = audit(environ, "--verify")
    assert done.returncode == 1
    assert "broken" in done.stderr


def test_a_time_that_is_none_is_refused(environ: Mapping[str, str]) -> None:
    done = audit(environ, "--since", "yesterday-ish")
    assert done.returncode == 2
    assert "is not a time" in done.stderr
