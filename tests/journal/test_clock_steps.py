"""The cluster's clock jumps while a change is under way, and the server dies: nothing is closed as "not done" that was
done, and nothing as "done" that was not."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.journal.kills import Requests, Scene, run_and_kill, scene
from tests.journal.truth import calls_of, resolved_on
from tests.pipeline.test_interrupted_writes import CHANGES

pytestmark = pytest.mark.anyio

Calls = tuple[tuple[str, Mapping[str, Any]], ...]
JUMPS = ["clock:+240", "clock:-240"]
SNAPSHOT = {"guest": 204, "snapshot": "s1"}
RESTART = {"node": "pve1", "service": "pvestatd", "action": "restart"}
NOTHING_RECORDED, ANSWERED = "after intent", "before step"
"""The server dies when its intent is written, or when its first answer has arrived and is about to be recorded."""


class JumpingClock(Requests):
    """The clock jumps as the cluster receives the first write."""

    def __init__(self, stage: Scene, jump: str) -> None:
        super().__init__(stage.sim.requests)
        self._stage = stage
        self._jump = jump

    def heard(self, method: str, path: str) -> None:
        if method != "GET" and self._jump:
            self._stage.sim.faults.add(self._jump)
            self._jump = ""


@pytest.mark.parametrize("jump", JUMPS)
@pytest.mark.parametrize(("tool", "arguments"), [("snapshot_create", SNAPSHOT), ("node_service_control", RESTART)])
async def test_a_clock_that_jumps_makes_nothing_done_undone(
    tmp_path: Path, tool: str, arguments: dict[str, Any], jump: str
) -> None:
    for number, moment in enumerate((NOTHING_RECORDED, ANSWERED)):
        await dies_truthfully(tmp_path / str(number), (), tool, arguments, jump, moment)


async def test_a_snapshot_is_found_although_the_clock_jumped(tmp_path: Path) -> None:
    for jump in JUMPS:
        outcome = await dies_truthfully(tmp_path / jump, (), "snapshot_create", SNAPSHOT, jump, ANSWERED)
        assert outcome == "done"


@pytest.mark.thorough
@pytest.mark.parametrize("jump", JUMPS)
@pytest.mark.parametrize("moment", [NOTHING_RECORDED, ANSWERED])
@pytest.mark.parametrize(("before", "tool", "arguments"), CHANGES)
async def test_no_change_is_misjudged_after_a_jump_of_the_clock(
    tmp_path: Path, before: Calls, tool: str, arguments: dict[str, Any], moment: str, jump: str
) -> None:
    await dies_truthfully(tmp_path / "it", before, tool, arguments, jump, moment)


async def dies_truthfully(
    folder: Path, before: Calls, tool: str, arguments: Mapping[str, Any], jump: str, moment: str
) -> str:
    """The outcome that the next server finds. It may be "unknown", but what it claims has to be so."""
    async with scene(make(folder)) as stage:
        await stage.prepare(before)
        if moment == ANSWERED:
            stage.sim.requests = stage.sim.server.requests = JumpingClock(stage, jump)
        death = await run_and_kill(stage, tool, arguments, 1, moment)
        assert death.killed
        if moment == NOTHING_RECORDED:
            stage.sim.faults.add(jump)
        sent = stage.writes()
        assert bool(sent) == (moment == ANSWERED)
        entry = (await resolved_on(stage))[-1]
        assert stage.writes() == sent, "finding out has changed something"
        for state, call in calls_of(entry):
            if state in ("done", "warnings"):
                assert sent[call], f"{call} was not sent, and the entry says {state}: {entry}"
            elif state in ("not tried", "failed"):
                assert not sent[call], f"{call} was sent, and the entry says {state}: {entry}"
            elif state == "unknown":
                assert any("Look at it" in line for line in entry["found"])
        return str(entry["outcome"])


def make(folder: Path) -> Path:
    folder.mkdir()
    return folder
