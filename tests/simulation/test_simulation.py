"""Whatever fails and whenever servers die: nothing is doubled, nothing is lost, and every run ends."""

from __future__ import annotations

import os

import pytest

from tests.simulation.episode import KINDS, Kind, first_failure, run
from tests.simulation.kinds.evacuate import Evacuate
from tests.simulation.planted import (
    BUGS,
    BUGS_OF_KINDS,
    Bug,
    every_write_is_sent_twice,
    the_intent_is_not_written,
    what_a_drill_restored_stays,
)

FEW, BATCH = 200, 100
MANY = int(os.environ.get("SEEDS", "20000"))
"""Fewer where time is short: SEEDS=2000."""
SEEDS_FOR_A_BUG = 1500


@pytest.mark.parametrize("first", range(0, FEW, BATCH // 2))
def test_a_few_seeds(first: int) -> None:
    play(first, BATCH // 2)


@pytest.mark.thorough
@pytest.mark.parametrize("first", range(FEW, FEW + MANY, BATCH))
def test_many_seeds(first: int) -> None:
    play(first, BATCH)


def play(first: int, count: int) -> None:
    failure = first_failure(range(first, first + count))
    assert not failure, failure


@pytest.mark.thorough
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_found(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    bug(monkeypatch)
    assert first_failure(range(SEEDS_FOR_A_BUG), Evacuate)


@pytest.mark.thorough
@pytest.mark.parametrize("bug", BUGS_OF_KINDS, ids=lambda bug: bug.__name__)
def test_a_bug_planted_in_a_kind_is_found(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    bug(monkeypatch)
    assert first_failure(range(SEEDS_FOR_A_BUG), BUGS_OF_KINDS[bug])


def test_a_few_planted_bugs_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    for bug in (every_write_is_sent_twice, the_intent_is_not_written):
        with monkeypatch.context() as patch:
            bug(patch)
            assert first_failure(range(10), Evacuate), bug.__name__
    with monkeypatch.context() as patch:
        what_a_drill_restored_stays(patch)
        assert first_failure(range(10), BUGS_OF_KINDS[what_a_drill_restored_stays])


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_seed_replays_exactly(kind: Kind) -> None:
    assert run(7, kind) == run(7, kind)
