"""The simulator's answers compared with those of a real PVE 9.1.8, request by request."""

from __future__ import annotations

import asyncio

import pytest

from simulator.comparison import Response, SentRequest, differences
from simulator.conftest import Figure
from simulator.fidelity import disagreements, document_part, generated_part, known_disagreements
from simulator.host_specific import HOST_SPECIFIC_PATHS
from simulator.replay import Outcome, recordings, replay

WANTED = 0.95
VERSION = SentRequest("/version", "")


@pytest.fixture(scope="module")
def outcomes() -> list[Outcome]:
    return asyncio.run(replay())


def test_all_recorded_requests_are_replayed(outcomes: list[Outcome]):
    assert len(outcomes) == len(recordings()) == 732


def test_nearly_all_answers_agree_with_the_recorded_ones(outcomes: list[Outcome], figure: Figure):
    figure("recorded requests", outcomes)
    assert sum(outcome.agrees for outcome in outcomes) / len(outcomes) >= WANTED


def test_the_disagreements_are_the_known_ones(outcomes: list[Outcome]):
    known = {number: entry["differences"] for number, entry in known_disagreements().items()}
    assert disagreements(outcomes) == known


def test_every_known_disagreement_has_a_reason():
    assert [entry["request"] for entry in known_disagreements().values() if not entry["reason"]] == []


def test_every_host_specific_place_has_a_reason():
    assert all(place.reason for place in HOST_SPECIFIC_PATHS)


def test_the_document_shows_the_figures_of_today(outcomes: list[Outcome]):
    assert document_part() == generated_part(outcomes)


def compare(recorded: object, answered: object, *, template: str = "/version") -> list[str]:
    return differences(
        SentRequest(template, ""), Response(200, "OK", recorded), Response(200, "OK", answered), lambda text: text
    )


def test_equal_shapes_agree_whatever_the_values():
    assert compare({"data": [{"a": 1}, {"b": "x"}]}, {"data": [{"a": 0.5, "b": ""}]}) == []


@pytest.mark.parametrize(
    ("recorded", "answered", "difference"),
    [
        ({"data": {"a": 1}}, {"data": {}}, "data.a: missing"),
        ({"data": {}}, {"data": {"a": 1}}, "data.a: not in PVE's answer"),
        ({"data": {"a": 1}}, {"data": {"a": "1"}}, "data.a: number -> string"),
        ({"data": []}, {"data": [1]}, "data.[]: nothing -> number"),
        ({"data": None, "message": "no\n"}, {"data": None, "message": "yes\n"}, "message 'no\\n' -> 'yes\\n'"),
        ({"data": None, "errors": {"a": "x"}}, {"data": None, "errors": {"b": "x"}}, "errors {'a': 'x'} -> {'b': 'x'}"),
    ],
)
def test_a_difference_is_reported(recorded: object, answered: object, difference: str):
    assert difference in compare(recorded, answered)


def test_another_status_or_reason_is_reported():
    recorded, answered = Response(500, "no such user ('x')", None), Response(500, "who?", None)
    assert differences(VERSION, recorded, answered, str) == ["reason \"no such user ('x')\" -> 'who?'"]
    assert differences(VERSION, Response(200, "OK", None), answered, str)[0].startswith("status 200 -> 500")


def test_another_type_or_outcome_of_a_task_is_reported():
    start = "UPID:pve1:00000001:00000001:60000000:qmstart:100:root@pam:"
    stop = "UPID:pve1:00000002:00000002:60000000:qmstop:100:root@pam:"
    assert compare({"data": start}, {"data": start.replace("00000001", "000000FF")}) == []
    assert compare({"data": start}, {"data": stop})[0].startswith("task ")
    status = "/nodes/{node}/tasks/{upid}/status"
    ended, failed = {"data": {"exitstatus": "OK"}}, {"data": {"exitstatus": "no"}}
    assert compare(ended, failed, template=status) == ["task exitstatus 'OK' -> 'no'"]


def test_another_entry_of_an_index_is_reported():
    assert compare({"data": [{"name": "a"}]}, {"data": [{"name": "b"}]}) == ["index without ['a'], with ['b']"]


def test_another_member_of_a_list_is_reported():
    assert compare({"data": [{"vmid": 100}]}, {"data": [{"vmid": 101}]}) == ["list without ['100'], with ['101']"]


def test_another_value_in_a_configuration_is_reported_unless_it_is_random():
    template = "/nodes/{node}/qemu/{vmid}/config"
    drawn = (
        {"data": {"net0": "virtio=BC:24:11:AA:BB:CC,bridge=vmbr0"}},
        {"data": {"net0": "virtio=BC:24:11:00:00:01,bridge=vmbr0"}},
    )
    assert compare(*drawn, template=template) == []
    difference = compare({"data": {"scsi0": "a:1,size=1G"}}, {"data": {"scsi0": "a:1,size=2G"}}, template=template)
    assert difference == ["scsi0: 'a:1,size=1G' -> 'a:1,size=2G'"]


def test_another_history_of_tasks_is_reported():
    def history(status: str) -> dict[str, object]:
        return {"data": [{"type": "qmstart", "id": "100", "user": "root@pam", "status": status}]}

    assert compare(history("OK"), history("OK"), template="/cluster/tasks") == []
    assert len(compare(history("OK"), history("no"), template="/cluster/tasks")) == 2
