"""Arguments of a tool as a shell hands them over."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from quorate.config import ConfigError


def key_values(pairs: Sequence[str], schema: Mapping[str, Any]) -> dict[str, Any]:
    """`key=value` as strings; JSON lists and objects as such; a repeated key becomes a list, and so does a single one
    where the tool takes nothing else."""
    found: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals:
            raise ConfigError(f"Arguments are key=value pairs; {pair!r} has no '='.")
        value = _value(text)
        if key in found:
            found[key] = [*(found[key] if isinstance(found[key], list) else [found[key]]), value]
        else:
            found[key] = value
    lists = {key for key, part in schema["properties"].items() if _takes_only_lists(part)}
    return {key: [value] if key in lists and isinstance(value, str) else value for key, value in found.items()}


def _takes_only_lists(part: Mapping[str, Any]) -> bool:
    kinds = {part.get("type"), *(one.get("type") for one in part.get("anyOf", ()))} - {None, "null"}
    return kinds == {"array"}


def _value(text: str) -> Any:
    if text[:1] in ("[", "{"):
        with contextlib.suppress(json.JSONDecodeError):
            return json.loads(text)
    return text
