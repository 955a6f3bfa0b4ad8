"""On whose behalf a call runs: what it starts belongs to them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

_caller: ContextVar[str] = ContextVar("who makes this call", default="")


@contextlib.contextmanager
def acting_for(subject: str) -> Iterator[None]:
    """What is started in this context belongs to `subject`; empty for the operator at this machine."""
    token = _caller.set(subject)
    try:
        yield
    finally:
        _caller.reset(token)


def current_owner() -> str:
    return _caller.get()
