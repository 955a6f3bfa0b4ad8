"""These tests take their time and the whole machine: they are collected only where LOAD_SECONDS is set."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator
from typing import Any

import pytest

from tests.rigs.postgres import postgres, postgres_server

__all__ = ["postgres", "postgres_server"]

SECONDS = "LOAD_SECONDS"
IN_CI = os.environ.get("CI") == "true"

collect_ignore_glob = [] if SECONDS in os.environ else ["test_*.py"]


@pytest.fixture(scope="session")
def load_seconds() -> float:
    return float(os.environ[SECONDS])


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """The numbers, which are wanted also where everything is as it should be."""

    def out(line: str) -> None:
        with capsys.disabled():
            sys.stdout.write(f"\nload: {line}")
            sys.stdout.flush()

    return out


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, Any, Any]:
    """CI installs what is needed: there, whatever is skipped is missing."""
    report = yield
    if IN_CI and report.skipped:
        report.outcome = "failed"
        report.longrepr = f"skipped, although CI has to have it: {report.longrepr}"
    return report
