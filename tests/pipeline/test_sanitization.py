"""A page of a table is searched as one text; the result is that of looking at every cell."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorate.operations.registry import Table
from quorate.pipeline.redaction import LONGEST, Redactor, Sanitizer, clean

SECRET = "correct|horse battery"
PIECES = (
    SECRET, "correct", "horse", "password=", "secret=x", "Authorization:", " hunter2", "https://", "user", ":", "pw",
    "@host", "***", " | ", "\t", "\n", "\u202e", "\u200b", "é", "web-01", "-----BEGIN PRIVATE KEY-----", "=", "running",
    "x" * LONGEST,
)  # fmt: skip
CELLS = st.one_of(
    st.lists(st.sampled_from(PIECES), max_size=4).map("".join), st.integers(), st.floats(), st.none(), st.booleans()
)


def by_cell(rows: list[list[Any]]) -> Any:
    return clean(Redactor([SECRET]).value(rows), LONGEST)


def sanitized(rows: list[list[Any]]) -> Any:
    return Sanitizer(lambda: [SECRET]).sanitize(Table(("a", "b"), rows, len(rows))).rows


@given(st.lists(st.lists(CELLS, max_size=3), max_size=4))
def test_a_table_leaves_as_if_every_cell_had_been_looked_at(rows):
    assert repr(sanitized(rows)) == repr(by_cell(rows))


@pytest.mark.parametrize(
    "cell", [SECRET, f"see {SECRET}", "secret=abc", "https://me:pw@host/", "a\u202eb", "x" * (LONGEST + 1), ["\u200b"]]
)
def test_one_cell_among_thousands_is_enough(cell):
    rows: list[list[Any]] = [[number, "web"] for number in range(3000)]
    rows[1500][1] = cell
    assert sanitized(rows)[1500] != [1500, cell]
    assert sanitized(rows)[:1500] == rows[:1500]
