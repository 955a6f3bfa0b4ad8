"""Where the tests find the project's own files."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
DATA = ROOT / "tests" / "data"
SNAPSHOTS = ROOT / "tests" / "snapshots"
