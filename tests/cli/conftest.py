"""Fixtures of the tests of commands."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "QUORATE_STATE": str(tmp_path / "state.sqlite"),
        "QUORATE_AUDIT_FILE": str(tmp_path / "audit.jsonl"),
    }
