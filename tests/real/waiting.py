"""Waiting for real machines, which take the time they take."""

from __future__ import annotations

import time
from collections.abc import Callable

_STEP = 0.02


def until(condition: Callable[[], object], what: str, seconds: float = 60.0) -> None:
    """Come back as soon as it is true; fail if that takes longer than anything healthy would."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"waited {seconds:.0f} s in vain for {what}"
        time.sleep(_STEP)
