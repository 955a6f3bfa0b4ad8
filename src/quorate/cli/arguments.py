"""Arguments of a tool on the command line, and example calls."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quorate.operations.registry import Operation


def example_pairs(operation: Operation) -> list[str]:
    """A first call as `key=value` pairs; on the demo cluster (--demo) it works unchanged."""
    if operation.example:
        return shlex.split(operation.example)
    schema = operation.schema()
    return [f"{name}={placeholder(name, schema['properties'][name])}" for name in schema.get("required", ())]


def placeholder(name: str, part: Mapping[str, Any]) -> str:
    """One of the choices, a number, or the argument's name in capitals."""
    kinds = part.get("anyOf", [part])
    if choices := [*part.get("enum", ()), *(one["const"] for one in kinds if "const" in one)]:
        return str(choices[0])
    first = str(kinds[0].get("type"))
    number = str(min(100, int(part.get("maximum", 100))))
    return {"integer": number, "number": number, "boolean": "true", "object": "{}"}.get(first, name.upper())
