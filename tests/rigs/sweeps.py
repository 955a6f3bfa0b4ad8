"""Sweeps over many cases in `make thorough`: more of them with FULL_WIDTH=1."""

from __future__ import annotations

import os


def sweep_size(usual: int, full: int) -> int:
    """The number of cases in a sweep of `make thorough`."""
    return full if os.environ.get("FULL_WIDTH") == "1" else usual
