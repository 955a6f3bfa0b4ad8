"""What went wrong, as one typed error that a person can act on: what happened, why, what to do next."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, ClassVar

from quorate.hints import Advice, Naming


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
        what: str,
        *,
        why: str | None = None,
        next_step: str | Advice | None = None,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        self.what = _sentence(what)
        self.why = _sentence(why) if why else None
        self.advice = Advice(next_step) if isinstance(next_step, str) and next_step else next_step or None
        self.facts = dict(facts or {})
        super().__init__(self.what)

    @property
    def next_step(self) -> str | None:
        """The advice with the native tool names."""
        return _sentence(str(self.advice)) if self.advice else None

    @next_step.setter
    def next_step(self, advice: str | Advice | None) -> None:
        self.advice = Advice(advice) if isinstance(advice, str) and advice else advice or None

    def __str__(self) -> str:
        return self.render(str)

    def render(self, name: Naming) -> str:
        """What happened, why, and what to do next, with tools as `name` writes them."""
        next_step = _sentence(self.advice.render(name)) if self.advice else None
        break_ = "\n" if "\n- " in self.what else " "  # what follows a list starts a line of its own
        return break_.join(part for part in (self.what, self.why, next_step) if part)


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


def _sentence(text: str) -> str:
    text = text.strip()
    return text if text.endswith((".", "!", "?", ":", "`")) else text + "."
