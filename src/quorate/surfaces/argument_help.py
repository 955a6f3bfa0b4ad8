"""An operation's arguments in a line each: what a JSON schema says, in a third of its size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quorate.operations.registry import Operation


def first_sentence(operation: Operation) -> str:
    """The first sentence of its summary."""
    return operation.summary.partition(". ")[0].removesuffix(".")


def needed_arguments(operation: Operation) -> str:
    return ", ".join(operation.schema().get("required", ()))


def arguments_of(schema: Mapping[str, Any]) -> dict[str, str]:
    """The required ones first."""
    required = schema.get("required", ())
    names = sorted(schema["properties"], key=lambda name: name not in required)
    return {name: _line(schema["properties"][name], required=name in required) for name in names}


def _line(part: Mapping[str, Any], *, required: bool) -> str:
    default = part.get("default")
    said = [
        _type(part),
        *(("required",) if required else ()),
        *_bounds(part),
        *((f"default {_value(default)}",) if default not in (None, False, [], {}) else ()),
    ]
    about = part.get("description")
    return ", ".join(said) + (f": {about}" if about else "")


def _type(part: Mapping[str, Any]) -> str:
    if "enum" in part:
        return " | ".join(map(str, part["enum"]))
    if "anyOf" in part:
        return " or ".join(dict.fromkeys(map(_type, part["anyOf"])))
    if part.get("type") == "array":
        return f"list of {_type(part['items'])}" if part.get("items") else "list"
    return str(part.get("type", "anything"))


def _bounds(part: Mapping[str, Any]) -> list[str]:
    words = {"minimum": "at least", "exclusiveMinimum": "more than", "maximum": "at most"}
    return [f"{word} {_number(part[key])}" for key, word in words.items() if key in part]


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else str(value)


def _value(default: Any) -> str:
    return {True: "yes", "": '""'}.get(default, str(default)) if isinstance(default, (bool, str)) else str(default)
