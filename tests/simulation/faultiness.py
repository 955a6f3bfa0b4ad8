"""How often requests and answers are lost."""

from __future__ import annotations


class Faultiness:
    """How often a request or its answer is lost, while `active`."""

    def __init__(self, before: float, after: float) -> None:
        self.before = before
        self.after = after
        self.active = True
