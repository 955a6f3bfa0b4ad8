"""What went wrong, as one typed error that a person can act on: what happened, why, what to do next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar


class Problem(Exception):
    """Anything Quorate tells its caller instead of an answer."""

    kind: ClassVar[str] = "problem"

    def __init__(
        self,
        what: str,
        *,
        why: str | None = None,
        next_step: str | None = None,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        self.what = _sentence(what)
        self.why = _sentence(why) if why else None
        self.next_step = _sentence(next_step) if next_step else None
        self.facts = dict(facts or {})
        super().__init__(self.what)

    def __str__(self) -> str:
        return " ".join(part for part in (self.what, self.why, self.next_step) if part)


class BadArgument(Problem):
    """The caller's argument cannot be used."""

    kind = "argument"


class Refused(Problem):
    """Quorate's own gate said no."""

    kind = "refused"


class NotConfigured(Problem):
    """No cluster is set up, so nothing can be asked."""

    kind = "configuration"


class Unreachable(Problem):
    """No connection could be made; the request was not sent."""

    kind = "unreachable"


class UntrustedCertificate(Problem):
    kind = "tls"


class AuthenticationFailed(Problem):
    kind = "authentication"


class PermissionMissing(Problem):
    kind = "permission"


class ParameterRejected(Problem):
    kind = "parameter"


class NotFound(Problem):
    kind = "not_found"


class Conflict(Problem):
    """The target is in the wrong state: running, stopped, locked, existing, protected, changed meanwhile."""

    kind = "conflict"


class NoQuorum(Problem):
    kind = "no_quorum"


class NodeOffline(Problem):
    kind = "node_offline"


class TimedOut(Problem):
    kind = "timeout"


class OutcomeUnknown(Problem):
    """A write was sent and no answer came back. It may or may not have happened; it is never sent again."""

    kind = "outcome_unknown"


class TaskFailed(Problem):
    kind = "task_failed"


class ServerFailed(Problem):
    """PVE answered with an error that fits no other kind."""

    kind = "server"


class HostKeyRefused(Problem):
    """A host is not known, or not the one it was: nothing was sent to it."""

    kind = "host_key"


class GuestRefused(Problem):
    """The system inside a guest said no, in its own words."""

    kind = "guest"


def _sentence(text: str) -> str:
    text = text.strip()
    return text if text.endswith((".", "!", "?", ":", "`")) else text + "."
