"""Helpers that all parsers share. None of them raises, whatever the text."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from quorate.documents import Unreadable, read_json

MAX_NAME = 200
"""Characters of one name."""


def number(text: object) -> int | None:
    """A whole number in digits, not negative."""
    digits = str(text).strip()
    return int(digits) if digits.isascii() and digits.isdecimal() and len(digits) < 20 else None


def hexadecimal(text: str) -> int | None:
    return int(text, 16) if re.fullmatch(r"[0-9A-Fa-f]{1,32}", text) else None


def fraction(text: str) -> float | None:
    return float(text) if re.fullmatch(r"[0-9]{1,12}(?:\.[0-9]{1,12})?", text) else None


def name(text: object) -> str | None:
    """With single blanks and bounded; None for an empty text or a placeholder."""
    words = " ".join(str(text).split())[:MAX_NAME]
    return words if words and words.lower() not in _PLACEHOLDERS else None


_PLACEHOLDERS = frozenset(
    {"none", "null", "n/a", "unknown", "-", "to be filled by o.e.m.", "not specified", "default string", "system manufacturer", "system product name", "o.e.m.", "(null)"}  # noqa: E501
)  # fmt: skip


def settings(text: str, separator: str = "=") -> dict[str, str]:
    """Lines of name and value; the first of several with one name counts."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        key, between, value = line.partition(separator)
        if between and key.strip():
            found.setdefault(key.strip(), _unquote(value.strip()))
    return found


def _unquote(value: str) -> str:
    if value[:1] not in ("'", '"'):
        return value
    try:
        return " ".join(shlex.split(value))
    except ValueError:
        return value.strip("'\"")


def quoted_words(line: str) -> list[str]:
    """The words of a line, some of them quoted."""
    try:
        return shlex.split(line)
    except ValueError:
        return []


def rows(text: str, minimum: int = 1) -> Iterator[list[str]]:
    """The words of each line that has at least `minimum` of them."""
    for line in text.splitlines():
        words = line.split()
        if len(words) >= minimum:
            yield words


def json_of(text: str) -> object:
    """The text parsed as JSON; None if it is not JSON."""
    try:
        found: object = read_json(text.encode("utf-8", "replace"))
        return found
    except Unreadable:
        return None


def json_objects(value: object) -> list[dict[str, object]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []
