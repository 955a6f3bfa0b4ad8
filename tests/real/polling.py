"""Polls real machines until a condition holds."""

from __future__ import annotations

import time
from collections.abc import Callable

_STEP = 0.02


def wait_until(condition: Callable[[], object], what: str, seconds: float = 60.0) -> None:
    """Return as soon as the condition is true; fail after `seconds`."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"waited {seconds:.0f} s in vain for {what}"
        time.sleep(_STEP)
