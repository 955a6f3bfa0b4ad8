"""Sweeps over many cases: a sample of them in `make test`, more in `make thorough`, all with FULL_WIDTH=1."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest


def sample(cases: Iterable[Any], *, every: int) -> list[Any]:
    """Parameters for `parametrize`: every nth case runs in `make test`, the others in `make thorough`.

    This replaces the rule for long tables in tests/conftest.py.
    """
    usual, thorough = pytest.mark.every_case, pytest.mark.thorough
    return [_marked(case, thorough if number % every else usual) for number, case in enumerate(cases)]


def sweep_size(usual: int, full: int) -> int:
    """The number of cases in a sweep of `make thorough`."""
    return full if os.environ.get("FULL_WIDTH") == "1" else usual


def _marked(case: Any, mark: pytest.MarkDecorator) -> Any:
    if isinstance(case, type(pytest.param())):
        return pytest.param(*case.values, marks=(*case.marks, mark), id=case.id)
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=mark)
