"""What went wrong, as one typed error that a person can act on: what happened, why, what to do next."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum
from typing import Any, ClassVar, TypeVar

from quorate.hints import Advice, Naming, Paragraph, Sentence, Wording, end_sentence, to_advice


class ProblemCode(StrEnum):
    """Which kind of problem it is: for programs, and for our own decisions. Sentences are for people only."""

    PROBLEM = "problem"
    ARGUMENT = "argument"
    REFUSED = "refused"
    CONFIGURATION = "configuration"
    UNREACHABLE = "unreachable"
    TLS = "tls"
    AUTHENTICATION = "authentication"
    PERMISSION = "permission"
    PARAMETER = "parameter"
    NOT_FOUND = "not_found"
    CONFLICT = "conflict"
    NO_QUORUM = "no_quorum"
    NODE_OFFLINE = "node_offline"
    TIMEOUT = "timeout"
    OUTCOME_UNKNOWN = "outcome_unknown"
    TASK_FAILED = "task_failed"
    SERVER = "server"
    HOST_KEY = "host_key"
    GUEST = "guest"
    APPROVAL = "approval"
    AUDIT = "audit"
    PASSPHRASE = "passphrase"  # noqa: S105 - a code, not a secret
    STATE = "state"


class Problem(Exception):
    """What a caller gets instead of a result."""

    code: ClassVar[ProblemCode] = ProblemCode.PROBLEM

    def __init__(
        self,
        what: str | Sentence,
        *,
        why: str | Sentence | None = None,
        next_step: str | Advice | None = None,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        self._what = _to_sentence(what)
        self._why = _to_sentence(why) if why else None
        self.advice = to_advice(next_step) if next_step else None
        self.facts = dict(facts or {})
        super().__init__(self.what)

    # As text, these have the native names of tools and arguments.

    @property
    def what(self) -> str:
        return end_sentence(str(self._what))

    @what.setter
    def what(self, what: str | Sentence) -> None:
        self._what = _to_sentence(what)

    @property
    def why(self) -> str | None:
        return end_sentence(str(self._why)) if self._why else None

    @why.setter
    def why(self, why: str | Sentence | None) -> None:
        self._why = _to_sentence(why) if why else None

    @property
    def next_step(self) -> str | None:
        return end_sentence(str(self.advice)) if self.advice else None

    @next_step.setter
    def next_step(self, advice: str | Advice | None) -> None:
        self.advice = to_advice(advice) if advice else None

    def transform(self, change: Callable[[Any], Any]) -> None:
        """Pass what happened, why, and the advice through `change`."""
        self._what = self._what.transform(change)
        self._why = self._why and self._why.transform(change)
        self.advice = self.advice and self.advice.transform(change)

    def translate(self, name: Naming) -> None:
        """Use these names of tools and arguments from here on."""
        self.what = self._what.render(name)
        self.why = self._why and self._why.render(name)
        self.next_step = self.advice and self.advice.render(name)

    def __str__(self) -> str:
        return self.render(str)

    def render(self, name: Naming) -> str:
        """What happened, why, and what to do next, with tools and arguments as `name` writes them."""
        return self.wording.render(name)

    @property
    def wording(self) -> Wording:
        """The whole text, for results that each surface renders with its own names."""
        return Paragraph(tuple(part for part in (self._what, self._why, self.advice) if part))


class BadArgument(Problem):
    """An argument of the caller is unusable."""

    code = ProblemCode.ARGUMENT


class BadTaskId(BadArgument):
    """The argument is not the id of a task."""


class Refused(Problem):
    """Access level, policy, approval or another check of Quorate forbids it."""

    code = ProblemCode.REFUSED


class NotConfigured(Problem):
    """No cluster is configured, so there is nothing to ask."""

    code = ProblemCode.CONFIGURATION


class Unreachable(Problem):
    """No connection was established; the request was not sent."""

    code = ProblemCode.UNREACHABLE


class UntrustedCertificate(Problem):
    code = ProblemCode.TLS


REFUSED_LOGIN = "refused_login"
"""The fact of a problem that names the user whom a host did not let in."""


class AuthenticationFailed(Problem):
    code = ProblemCode.AUTHENTICATION


class PermissionMissing(Problem):
    code = ProblemCode.PERMISSION


class ParameterRejected(Problem):
    code = ProblemCode.PARAMETER


class NotFound(Problem):
    code = ProblemCode.NOT_FOUND


class GuestNotFound(NotFound):
    """No guest has this id or name."""


class HostNotFound(NotFound):
    """No host is registered under this name."""


class Conflict(Problem):
    """The target is in the wrong state: running, stopped, locked, existing, protected, changed since it was read."""

    code = ProblemCode.CONFLICT


class Overtaken(Conflict):
    """Someone else was faster: the id is taken or the guest has moved. A new plan would succeed."""


class AgentSilent(Conflict):
    """The guest agent does not answer."""


class NoQuorum(Problem):
    code = ProblemCode.NO_QUORUM


class NodeOffline(Problem):
    code = ProblemCode.NODE_OFFLINE


class TimedOut(Problem):
    code = ProblemCode.TIMEOUT


class OutcomeUnknown(Problem):
    """A write was sent and its answer was lost. It may or may not have happened; it is never sent again."""

    code = ProblemCode.OUTCOME_UNKNOWN


class TaskFailed(Problem):
    code = ProblemCode.TASK_FAILED


class ServerFailed(Problem):
    """PVE answered with an error that fits no other kind."""

    code = ProblemCode.SERVER


class ListingRaced(ServerFailed):
    """PVE gave up a list because something in it was deleted while it was made: asking again helps."""


class AgentNotConfigured(ServerFailed):
    """The VM has no guest agent: its option is off."""


class HostKeyRefused(Problem):
    """The host key is unknown or has changed; nothing was sent."""

    code = ProblemCode.HOST_KEY


class GuestRefused(Problem):
    """The system inside a guest refused, in its own words."""

    code = ProblemCode.GUEST


class SudoRefused(GuestRefused):
    """The login may not become the user that a command needs."""


Result = TypeVar("Result")


async def catch_problem(work: Awaitable[Result]) -> Result | Problem:
    """The result, or the Problem that it raises: for reads in parallel of which one may fail."""
    try:
        return await work
    except Problem as problem:
        return problem


async def answer_within(seconds: float, name: str, work: Awaitable[Result]) -> Result | Problem:
    """The answer of one of several that are asked side by side; a Problem if it fails or is silent for so long."""
    try:
        async with asyncio.timeout(seconds):
            return await catch_problem(work)
    except TimeoutError:
        return TimedOut(f"{name} did not answer within {seconds:g} s")


def _to_sentence(text: str | Sentence) -> Sentence:
    return Sentence(text) if isinstance(text, str) else text
