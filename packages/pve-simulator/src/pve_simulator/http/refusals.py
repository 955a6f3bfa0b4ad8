"""PVE's refusals: one exception with status, reason and error map."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

_T = TypeVar("_T")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


class Refusal(Exception):
    """An API answer other than success.

    `message` is PVE's text; nearly all of its errors end with a newline in the body.
    """

    def __init__(self, status: int, message: str, errors: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.errors = dict(errors) if errors else None

    @property
    def reason(self) -> str:
        """The first line, which PVE sends in the status line."""
        return first_line(self.message)

    def as_task_error(self) -> str:
        """Everything in one line, with the status unless it is 500."""
        status = "" if self.status == 500 else f"{self.status} "
        lines = "".join(f"{name}: {text}\n" for name, text in (self.errors or {}).items())
        return f"{status}{self.message}{lines}".removesuffix("\n").replace("\n", " ")


def first_line(text: str) -> str:
    """The part of a text that fits a status line: no line breaks or control characters."""
    return _CONTROL.sub("", re.split(r"[\r\n]", text, maxsplit=1)[0])


def failure(text: str) -> Refusal:
    """The usual error: HTTP 500 with a text, also for missing objects."""
    return Refusal(500, f"{text}\n")


def bad_parameters(errors: Mapping[str, str]) -> Refusal:
    """HTTP 400 with a text for every invalid parameter."""
    return Refusal(400, "Parameter verification failed.\n", errors)


def existing(value: _T | None, missing: str | Exception) -> _T:
    """The value, or if it is None a refusal: HTTP 500 with this text, or the given error."""
    if value is None:
        raise failure(missing) if isinstance(missing, str) else missing
    return value


@contextmanager
def flatten_errors() -> Iterator[None]:
    """Errors under PVE's file lock are flattened: HTTP 500 with all errors in the text."""
    try:
        yield
    except Refusal as refusal:
        if not refusal.errors:
            raise
        lines = "".join(f"{name}: {text.rstrip()}\n" for name, text in refusal.errors.items())
        raise Refusal(500, f"{refusal.status} {refusal.message}{lines}") from refusal


def forbidden(what: str | None = None) -> Refusal:
    """HTTP 403; `what` names path and privilege where PVE does."""
    return Refusal(403, f"Permission check failed ({what})\n" if what else "Permission check failed\n")


def unimplemented_method(method: str, path: str) -> Refusal:
    """HTTP 501, the only error of the API whose message has no newline."""
    return Refusal(501, f"Method '{method} {path}' not implemented")


class ProxyFailure(Exception):
    """The target node cannot be reached: 595 or 596 with an empty body."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


class ServerRefusal(Exception):
    """An error of the HTTP server itself, before the API: the reason again as plain text, no JSON."""

    def __init__(self, status: int, reason: str, *, empty: bool = False) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.text = "" if empty else reason
