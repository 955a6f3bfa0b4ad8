"""Who asks, and how far they may go."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from quorate.config import Access
from quorate.pve.tasks import Report


@dataclass(frozen=True, slots=True)
class Scope:
    """What a caller's own credentials allow at most; the operator's settings may allow less. None is no limit."""

    access: Access = Access.ADMIN
    toolsets: frozenset[str] | None = None
    clusters: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class Caller:
    """The client program, the way it came in, and the subject that its credentials name (none on stdio)."""

    client: str = "unknown"
    transport: str = "stdio"
    subject: str = ""
    scope: Scope = field(default_factory=Scope)


@dataclass(frozen=True, slots=True)
class Question:
    """Something that the person at the client has to answer, not the model."""

    id: str
    text: str
    wanted: str
    """What has to be typed for a yes, such as the guest's name."""


Ask = Callable[[Question], Awaitable[str | None]]
"""Puts a question to the person and gives back what was typed; None if they declined.

Raises AnswerLater where the answer comes with a second call, and TimeoutError where nobody answers.
"""


class AnswerLater(Exception):
    """The question is on its way to the person; the client makes the same call again with the answer."""

    def __init__(self, question: Question) -> None:
        super().__init__(question.text)
        self.question = question


@dataclass(frozen=True, slots=True)
class Exchange:
    """One call as it came in: who asks, where progress goes, and whether a person can be asked."""

    caller: Caller = field(default_factory=Caller)
    report: Report | None = None
    ask: Ask | None = None
