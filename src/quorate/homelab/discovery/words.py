"""Small pieces of reading that every kind of answer needs. Nothing here raises, whatever the text."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import msgspec

LONGEST = 200
"""Characters of one name; what is longer was not meant for people."""


def number(text: object) -> int | None:
    """A whole number that is not negative, in digits."""
    said = str(text).strip()
    return int(said) if said.isascii() and said.isdecimal() and len(said) < 20 else None


def hexadecimal(text: str) -> int | None:
    return int(text, 16) if re.fullmatch(r"[0-9A-Fa-f]{1,32}", text) else None


def fraction(text: str) -> float | None:
    return float(text) if re.fullmatch(r"[0-9]{1,12}(?:\.[0-9]{1,12})?", text) else None


def name(text: object) -> str | None:
    """Without blanks around and inside, bounded; None if nothing is left or it says that it is nothing."""
    said = " ".join(str(text).split())[:LONGEST]
    return said if said and said.lower() not in _NOTHING else None


_NOTHING = frozenset(
    {"none", "null", "n/a", "unknown", "-", "to be filled by o.e.m.", "not specified", "default string", "system manufacturer", "system product name", "o.e.m.", "(null)"}  # noqa: E501
)  # fmt: skip


def settings(text: str, separator: str = "=") -> dict[str, str]:
    """Lines of name and value; of several with one name the first."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        key, between, value = line.partition(separator)
        if between and key.strip():
            found.setdefault(key.strip(), _unquoted(value.strip()))
    return found


def _unquoted(value: str) -> str:
    if value[:1] not in ("'", '"'):
        return value
    try:
        return " ".join(shlex.split(value))
    except ValueError:
        return value.strip("'\"")


def quoted_words(line: str) -> list[str]:
    """A line of words of which some are in quotes."""
    try:
        return shlex.split(line)
    except ValueError:
        return []


def rows(text: str, least: int = 1) -> Iterator[list[str]]:
    """The words of each line that has so many of them."""
    for line in text.splitlines():
        words = line.split()
        if len(words) >= least:
            yield words


def json_of(text: str) -> object:
    """What the text means as JSON; None if it is none."""
    try:
        return msgspec.json.decode(text.encode("utf-8", "replace"))
    except (msgspec.DecodeError, RecursionError):
        return None


def json_objects(value: object) -> list[dict[str, object]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []
