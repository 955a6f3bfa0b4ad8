"""Plain words find the operation that is meant."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from quorate.operations.registry import operations
from quorate.surfaces.tool_search import Finder, stem
from tests.surfaces.search_requests import HELD_BACK, REQUESTS

FIRST = 3


@pytest.fixture(scope="module")
def finder() -> Finder:
    return Finder(operations().values())


def missed(finder: Finder, requests: Sequence[tuple[str, str]]) -> list[str]:
    return [
        f"{words!r} found {', '.join(first)}, not {right}"
        for words, right in requests
        if not set(first := [operation.name for operation in finder.find(words)[:FIRST]]) & set(right.split())
    ]


@pytest.mark.parametrize("requests", [REQUESTS, HELD_BACK], ids=["known", "held back"])
def test_the_right_operation_is_among_the_first_three_for_95_percent_of_requests(finder, requests):
    wrong = missed(finder, requests)
    assert len(wrong) <= len(requests) * 0.05, "\n".join(wrong)


def test_the_requests_are_about_most_operations_and_about_none_that_is_gone():
    asked = {name for _, right in (*REQUESTS, *HELD_BACK) for name in right.split()}
    assert asked <= set(operations())
    assert len(asked) >= 140


def test_an_operation_is_found_first_by_its_own_name(finder):
    for name in operations():
        assert finder.find(f"how do I use {name}?")[0].name == name


def test_every_operation_declares_what_people_call_it():
    assert [name for name, operation in operations().items() if not operation.search_words] == []


def test_questions_find_what_reads_before_what_changes(finder):
    asked = [operation.name for operation in finder.find("which snapshots are there?")]
    assert asked.index("snapshot_list") < asked.index("snapshot_delete")


def test_words_that_mean_nothing_here_find_nothing(finder):
    assert finder.find("xyzzy plugh") == []
    assert finder.find("") == []
    assert finder.find("please do it for me") == []


@pytest.mark.parametrize(
    ("words", "shortest"),
    [
        ("clone clones cloned cloning", "clon"),
        ("migrate migrates migrated migrating", "migrat"),
        ("copy copies", "copy"),
        ("stop stops stopped stopping", "stop"),
        ("box boxes", "box"),
        ("access", "access"),
        ("status", "status"),
    ],
)
def test_forms_of_a_word_are_one(words, shortest):
    assert {stem(word) for word in words.split()} == {shortest}
