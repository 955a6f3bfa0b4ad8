"""The log of a server: lines on standard error, as text or as JSON, and one line for each call."""

from __future__ import annotations

import contextlib
import enum
import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TextIO

LONGEST_VALUE = 300
"""Characters of one value in the line of a call: callers choose names of clients and tools."""
CALLS = logging.getLogger("quorate.calls")


class LogFormat(enum.StrEnum):
    TEXT = "text"
    JSON = "json"


class LogLevel(enum.StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


# -- lines -------------------------------------------------------------------------------------------------------------


class TextFormatter(logging.Formatter):
    """`2026-11-18T20:15:07.123Z INFO message`; further lines of an entry are indented, so that none can be forged."""

    def format(self, record: logging.LogRecord) -> str:
        text = " ".join([record.getMessage(), *_pairs(_fields(record))])
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return f"{_time(record)} {record.levelname} {text}".rstrip("\n").replace("\n", "\n  ")


class JsonFormatter(logging.Formatter):
    """One object per line."""

    def format(self, record: logging.LogRecord) -> str:
        import json

        entry = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            entry["trace"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


def _time(record: logging.LogRecord) -> str:
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03}Z"


def _fields(record: logging.LogRecord) -> Mapping[str, Any]:
    fields: Mapping[str, Any] = getattr(record, "fields", {})
    return fields


def _pairs(fields: Mapping[str, Any]) -> Iterator[str]:
    for name, value in fields.items():
        text = ",".join(value) if isinstance(value, list) else str(value)
        yield f"{name}={_quote(text)}"


def _quote(text: str) -> str:
    """A value that may contain blanks in quotes."""
    if text and not any(char in ' "=\\' or not char.isprintable() for char in text):
        return text
    import json

    return json.dumps(text, ensure_ascii=False)


class _Sanitizing(logging.Filter):
    """Removes the secrets of the clusters and hosts from whatever is logged, also by libraries."""

    def __init__(self, sanitize: Callable[[Any], Any]) -> None:
        super().__init__()
        self._sanitize = sanitize

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = self._sanitize(record.getMessage()), None
        if fields := _fields(record):
            record.fields = self._sanitize(dict(fields))
        return True


class _Handler(logging.StreamHandler[TextIO]):
    """The one that `set_up` made."""


def set_up(form: LogFormat, level: LogLevel) -> None:
    """Log to standard error from now on. Libraries report only warnings and errors: the rest is about their innards."""
    handler = _Handler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form is LogFormat.JSON else TextFormatter())
    root, own = logging.getLogger(), logging.getLogger("quorate")
    root.handlers[:] = [*(old for old in root.handlers if not isinstance(old, _Handler)), handler]
    own.setLevel(level.upper())
    root.setLevel(max(own.level, logging.WARNING))
    logging.captureWarnings(True)


def sanitize_lines(sanitize: Callable[[Any], Any]) -> None:
    """Pass every line through `sanitize`, once the application knows its secrets."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, _Handler):
            handler.filters[:] = [_Sanitizing(sanitize)]


# -- calls -------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class CallRecord:
    """What the log says about a call, filled in where it is known."""

    tool: str
    caller: str = ""
    """The subject of its credentials; none over stdio."""
    client: str = ""
    transport: str = ""
    operations: list[str] = field(default_factory=list)
    """What it ran, if the tool has another name."""
    outcome: str = "interrupted"
    result: str = ""
    """How a change ended, or the kind of problem."""
    error: str = ""
    requests: int = 0
    """To Proxmox VE."""
    seconds: float = 0.0
    ended: bool = False
    """Tasks that outlive the call, such as the worker of a run, do not count for it."""

    def describe_caller(self, subject: str, client: str, transport: str) -> None:
        self.caller, self.client, self.transport = subject, client, transport

    def add_operation(self, operation: str) -> None:
        if operation != self.tool and operation not in self.operations:
            self.operations.append(operation)

    def fail(self, kind: str, error: str) -> None:
        self.outcome, self.result, self.error = "error", kind, error

    def as_fields(self) -> dict[str, Any]:
        texts = {name: getattr(self, name) for name in ("caller", "client", "transport", "outcome", "result", "error")}
        return {
            "tool": self.tool[:LONGEST_VALUE],
            **({"operations": [name[:LONGEST_VALUE] for name in self.operations]} if self.operations else {}),
            **{name: text[:LONGEST_VALUE] for name, text in texts.items() if text},
            "seconds": round(self.seconds, 3),
            "requests": self.requests,
        }


_CALL: ContextVar[CallRecord | None] = ContextVar("call", default=None)


def current_call() -> CallRecord | None:
    call = _CALL.get()
    return None if call is None or call.ended else call


def count_request() -> None:
    if call := current_call():
        call.requests += 1


@contextlib.contextmanager
def record_call(call: CallRecord, monotonic: Callable[[], float]) -> Iterator[CallRecord]:
    """Fill in the record while the call runs, and log it at its end."""
    token, begun = _CALL.set(call), monotonic()
    try:
        yield call
    finally:
        _CALL.reset(token)
        call.ended, call.seconds = True, monotonic() - begun
        CALLS.info("call", extra={"fields": call.as_fields()})
