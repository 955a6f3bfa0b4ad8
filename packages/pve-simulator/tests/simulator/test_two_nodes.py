"""The simulator's answers compared with those of a real cluster of two nodes, one of which dies and returns."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from simulator.conftest import Figure
from simulator.fidelity import two_nodes_in_document, two_nodes_part
from simulator.two_nodes import Outcome, recordings, replay

KNOWN = json.loads(Path(__file__).with_name("known_two_nodes_differences.json").read_text())
WANTED = 0.97


@pytest.fixture(scope="module")
def outcomes() -> list[Outcome]:
    return asyncio.run(replay())


def test_all_recorded_requests_are_replayed(outcomes: list[Outcome]) -> None:
    assert len(outcomes) == len(recordings()) == 219


def test_nearly_all_answers_are_those_of_a_real_cluster(outcomes: list[Outcome], figure: Figure) -> None:
    figure("requests to two nodes", outcomes)
    assert sum(outcome.agrees for outcome in outcomes) / len(outcomes) >= WANTED


def test_the_differences_are_the_known_ones(outcomes: list[Outcome]) -> None:
    differing = {outcome.number: "; ".join(outcome.differences) for outcome in outcomes if not outcome.agrees}
    assert differing == {entry["number"]: entry["differences"] for entry in KNOWN}


def test_the_document_shows_the_figures_of_today(outcomes: list[Outcome]) -> None:
    assert two_nodes_in_document() == two_nodes_part(outcomes)


def test_every_known_difference_has_a_reason() -> None:
    assert [entry["request"] for entry in KNOWN if not entry["reason"]] == []
