"""Comparison of simulated and recorded answers: exact for some parts, by shape for others."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from simulator.host_specific import is_host_specific

_PERL_PLACE = re.compile(r" at /usr/share/perl5/\S+ line \d+\.?")
_UPID = re.compile(r"UPID:([^:]+):[0-9A-F]{8}:[0-9A-F]{8,9}:[0-9A-F]{8}:([^:]+):([^:]*):([^:]+):")
_TASK_FACTS = ("type", "id", "user", "tokenid", "status", "exitstatus", "node")
_HEADERS = ("Connection", "Server", "Content-Type")
_MENU_KEYS = frozenset({"name", "subdir", "id", "cmd", "method", "type"})
_IDENTITIES = (
    "volid", "vmid", "key", "userid", "roleid", "tokenid", "groupid", "poolid", "storage", "iface", "sid", "macro",
    "service", "realm", "filename",
)  # fmt: skip

# Random and time-dependent values in configurations.
_DRAWN = re.compile(
    r"(?:[0-9A-F]{2}:){5}[0-9A-F]{2}|[0-9a-f]{40}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
    r"|ctime=\d+|creation-qemu=[\d.]+"
)

_KINDS: dict[type, str] = {
    dict: "object",
    list: "array",
    str: "string",
    int: "number",
    float: "number",
    bool: "boolean",
    type(None): "null",
}

Translate = Callable[[str], str]


@dataclass(slots=True)
class Response:
    """One HTTP answer, recorded or simulated."""

    status: int
    reason: str
    body: Any
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Shape:
    """The types of values seen at one path, and the contents of objects and arrays."""

    kinds: set[str] = field(default_factory=set)
    keys: dict[str, Shape] = field(default_factory=dict)
    elements: Shape | None = None

    def add(self, value: Any) -> None:
        """Add a value seen at this path."""
        self.kinds.add(_KINDS[type(value)])
        if isinstance(value, dict):
            for key, inner in value.items():
                self.keys.setdefault(key, Shape()).add(inner)
        elif isinstance(value, list):
            self.elements = self.elements or Shape()
            for inner in value:
                self.elements.add(inner)


@dataclass(frozen=True, slots=True)
class SentRequest:
    """The request: the endpoint's path template, and the section of the recordings."""

    template: str
    section: str


def differences(asked: SentRequest, recorded: Response, answered: Response, translate: Translate) -> list[str]:
    """Describe every difference between the simulated and the recorded answer."""
    differing = list(_status_differences(recorded, answered, translate))
    if differing:
        return differing  # with another status, the body adds nothing
    differing += _header_differences(recorded, answered)
    differing += _text_differences(recorded.body, answered.body, translate)
    differing += _shape_differences(asked, "", _shape(recorded.body), _shape(answered.body))
    differing += _task_differences(asked.template, recorded.body, answered.body, translate)
    differing += _history_differences(asked.template, recorded.body, answered.body, translate)
    differing += _menu_differences(recorded.body, answered.body)
    differing += _member_differences(recorded.body, answered.body, translate)
    differing += _config_differences(asked.template, recorded.body, answered.body)
    return differing


def _status_differences(recorded: Response, answered: Response, translate: Translate) -> Iterator[str]:
    if recorded.status != answered.status:
        yield f"status {recorded.status} -> {answered.status} ({recorded.reason!r} -> {answered.reason!r})"
    elif _plain(translate(recorded.reason)) != _plain(answered.reason):
        yield f"reason {translate(recorded.reason)!r} -> {answered.reason!r}"


def _header_differences(recorded: Response, answered: Response) -> Iterator[str]:
    if not recorded.headers:
        return
    for name in _HEADERS:
        if recorded.headers.get(name) != answered.headers.get(name):
            yield f"header {name} {recorded.headers.get(name)!r} -> {answered.headers.get(name)!r}"


def _text_differences(recorded: Any, answered: Any, translate: Translate) -> Iterator[str]:
    if not isinstance(recorded, dict) or not isinstance(answered, dict):
        if isinstance(recorded, str) and isinstance(answered, str) and recorded.isprintable() and recorded != answered:
            yield f"text {recorded!r} -> {answered!r}"
        return
    if _plain(translate(str(recorded.get("message")))) != _plain(str(answered.get("message"))):
        yield f"message {recorded.get('message')!r} -> {answered.get('message')!r}"
    expected = {key: _lines(translate(text)) for key, text in recorded.get("errors", {}).items()}
    actual = {key: _lines(str(text)) for key, text in answered.get("errors", {}).items()}
    if expected != actual:
        yield f"errors {recorded.get('errors')} -> {answered.get('errors')}"


def _shape(value: Any) -> Shape:
    shape = Shape()
    shape.add(value)
    return shape


def _shape_differences(asked: SentRequest, path: str, recorded: Shape, answered: Shape) -> Iterator[str]:
    if is_host_specific(asked.template, asked.section, path):
        return
    if recorded.kinds != answered.kinds:
        yield f"{path or 'body'}: {_names(recorded.kinds)} -> {_names(answered.kinds)}"
        return
    for key in sorted(recorded.keys.keys() | answered.keys.keys()):
        inner = f"{path}.{key}".lstrip(".")
        if key in recorded.keys and key in answered.keys:
            yield from _shape_differences(asked, inner, recorded.keys[key], answered.keys[key])
        elif not is_host_specific(asked.template, asked.section, inner):
            yield f"{inner}: missing" if key in recorded.keys else f"{inner}: not in PVE's answer"
    if recorded.elements is not None and answered.elements is not None:
        yield from _shape_differences(asked, f"{path}.[]".lstrip("."), recorded.elements, answered.elements)


def _task_differences(template: str, recorded: Any, answered: Any, translate: Translate) -> Iterator[str]:
    """Types and outcomes of tasks, which are behavior rather than data."""
    if not isinstance(recorded, dict) or not isinstance(answered, dict):
        return
    expected, actual = recorded.get("data"), answered.get("data")
    if isinstance(expected, str) and isinstance(actual, str) and expected.startswith("UPID:"):
        if _task_of(expected) != _task_of(actual):
            yield f"task {_task_of(expected)} -> {_task_of(actual)}"
    elif template.endswith("/tasks/{upid}/status") and isinstance(expected, dict) and isinstance(actual, dict):
        for fact in _TASK_FACTS:
            if fact in expected and _plain(translate(str(expected[fact]))) != _plain(str(actual.get(fact))):
                yield f"task {fact} {expected[fact]!r} -> {actual.get(fact)!r}"
    elif template.endswith("/tasks/{upid}/log") and isinstance(expected, list) and isinstance(actual, list):
        last, own = _closing_line(expected), _closing_line(actual)
        if last is not None and _plain(translate(last)) != _plain(own or ""):
            yield f"last log line {last!r} -> {own!r}"


def _menu_differences(recorded: Any, answered: Any) -> Iterator[str]:
    """The entries of a directory index."""
    expected, actual = _menu(recorded), _menu(answered)
    if expected is not None and actual is not None and expected != actual:
        yield f"index without {sorted(expected - actual)}, with {sorted(actual - expected)}"


def _menu(body: Any) -> set[str] | None:
    rows = body.get("data") if isinstance(body, dict) else None
    if not isinstance(rows, list) or not rows:
        return None
    if not all(isinstance(row, dict) and len(row) == 1 and row.keys() <= _MENU_KEYS for row in rows):
        return None
    return {str(value) for row in rows for value in row.values()}


def _member_differences(recorded: Any, answered: Any, translate: Translate) -> Iterator[str]:
    """Differences in the guests, volumes, users and so on of a list."""
    for identity in _IDENTITIES:
        expected, actual = _members(recorded, identity, translate), _members(answered, identity, str)
        if expected is not None and actual is not None and expected != actual:
            yield f"list without {sorted(expected - actual)}, with {sorted(actual - expected)}"


def _members(body: Any, identity: str, translate: Translate) -> set[str] | None:
    rows = body.get("data") if isinstance(body, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        return None
    return {translate(str(row[identity])) for row in rows if identity in row}


def _config_differences(template: str, recorded: Any, answered: Any) -> Iterator[str]:
    """Differences in a guest's stored configuration, where the values are behavior."""
    if not template.endswith(("/qemu/{vmid}/config", "/lxc/{vmid}/config", "/snapshot/{snapname}/config")):
        return
    if not isinstance(recorded, dict) or not isinstance(answered, dict):  # nobody answered
        return
    expected, actual = recorded.get("data"), answered.get("data")
    if not isinstance(expected, dict) or not isinstance(actual, dict):
        return
    for key in expected.keys() & actual.keys():
        then, now = (_DRAWN.sub("…", str(values[key])) for values in (expected, actual))
        if then != now and key != "snaptime":
            yield f"{key}: {then!r} -> {now!r}"


def _history_differences(template: str, recorded: Any, answered: Any, translate: Translate) -> Iterator[str]:
    """The tasks of a list with their outcomes, including tasks whose requests were not recorded."""
    if template not in ("/nodes/{node}/tasks", "/cluster/tasks") or not isinstance(recorded, dict):
        return
    expected = Counter(_outcome(task, translate) for task in recorded["data"])
    actual = Counter(_outcome(task, str) for task in answered["data"])
    for word, surplus in (("without", expected - actual), ("with", actual - expected)):
        if surplus:
            yield f"history {word} {sorted(surplus)}"


def _outcome(task: dict[str, Any], translate: Translate) -> tuple[str, ...]:
    return str(task["type"]), str(task["id"]), str(task["user"]), _plain(translate(str(task.get("status"))))


def _closing_line(lines: list[Any]) -> str | None:
    last = str(lines[-1].get("t")) if lines else ""
    return last if last.startswith("TASK ") else None


def _task_of(upid: str) -> tuple[str, ...]:
    match = _UPID.fullmatch(upid)
    return (upid,) if match is None else match.groups()


def _plain(text: str) -> str:
    """Strip the Perl source line at the end of some messages."""
    return _PERL_PLACE.sub("", text).strip()


def _lines(text: str) -> list[str]:
    """Split the errors about one value, which come in no fixed order."""
    return sorted(_plain(text).split("\n"))


def _names(kinds: set[str]) -> str:
    return "|".join(sorted(kinds)) or "nothing"
