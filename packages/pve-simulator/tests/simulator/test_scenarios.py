"""Scenarios recorded on a real PVE have the same results on the simulator; see scenarios.py."""

from __future__ import annotations

import pytest

from simulator.conftest import Figure
from simulator.fidelity import (
    KNOWN_IN_SCENARIOS,
    known_disagreements,
    scenario_differences,
    scenarios_in_document,
    scenarios_part,
)
from simulator.scenario_words import errors_agree, shapes_differ, values_differ
from simulator.scenarios import play


def test_the_scenarios_go_as_on_a_real_pve_except_for_the_known_differences(figure: Figure):
    outcomes = play()
    figure("steps of scenarios", outcomes)
    known = {number: entry["differences"] for number, entry in known_disagreements(KNOWN_IN_SCENARIOS).items()}
    assert len(outcomes) == 1920
    assert scenario_differences(outcomes) == known
    assert scenarios_in_document() == scenarios_part(outcomes)


def test_every_known_difference_has_a_reason():
    known = known_disagreements(KNOWN_IN_SCENARIOS).values()
    assert [entry["request"] for entry in known if not entry["reason"]] == []


@pytest.mark.parametrize(
    ("shape", "data"),
    [
        ("string", 1),
        ("UPID", "text"),
        ({"a": "number"}, {"a": "1"}),
        ({"a": "number"}, {}),
        ({}, {"a": 1}),
        (["empty"], [1]),
        (["string"], []),
        ([{"a": {"is": "number", "always": True}}], [{"a": 1}, {}]),
        ([{"a": {"is": "number", "always": False}}], [{"a": 1}]),
    ],
)
def test_another_shape_is_reported(shape: object, data: object):
    assert shapes_differ(shape, data, None, narrow=True)


def test_another_value_is_reported():
    assert not values_differ({"a": "<string>", "b": None}, {"a": "x", "c": 1}, None, narrow=True)
    assert values_differ({"a": 1}, {"a": 2}, None, narrow=True)
    assert values_differ([{"vmid": "<id0>"}], [{"vmid": "<id0>"}, {"vmid": "<id1>"}], None, narrow=True)
    assert not values_differ([{"vmid": "<id0>"}], [{"vmid": "<id0>"}, {"vmid": "<id1>"}], None, narrow=False)


def test_the_lines_of_an_error_may_come_in_any_order():
    assert errors_agree({"a": "x\ny\n"}, {"a": "y\nx\n"})
    assert not errors_agree({"a": "x"}, {"b": "x"})
