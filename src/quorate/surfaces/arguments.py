"""Arguments of a tool for people: in a line each, and as `key=value`."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from quorate.config import ConfigError
from quorate.documents import Unreadable, read_json
from quorate.operations.arguments import choices_of_items
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
        *((f"default {_shown_value(default)}",) if default not in (None, False, [], {}) else ()),
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


def _shown_value(default: Any) -> str:
    return {True: "yes", "": '""'}.get(default, str(default)) if isinstance(default, (bool, str)) else str(default)


def parse_pairs(pairs: Sequence[str], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Parse `key=value` pairs. JSON lists and objects are decoded; a repeated key or a list argument gives a list.
    Where a list is allowed, so is `[a,b]`; where its items are fixed words, `a,b`.

    Values without a key are the obvious arguments: `guest_power docker01 start`.
    """
    arguments: dict[str, Any] = {}
    named = {pair.partition("=")[0] for pair in pairs if _PAIR.match(pair)}
    places = [name for name in _obvious(schema) if name not in named]
    for pair in pairs:
        if not _PAIR.match(pair):
            if not places:
                takes = f"It takes {', '.join(schema['properties'])}." if schema["properties"] else "It takes none."
                raise ConfigError(f"Arguments are key=value pairs; it is not clear what {pair!r} is for. {takes}")
            pair = f"{places.pop(0)}={pair}"
        key, _, text = pair.partition("=")
        value = _value(text)
        if isinstance(value, str):
            value = _split_list(value, schema["properties"].get(key, {}))
        if key in arguments:
            more = value if isinstance(value, list) else [value]
            arguments[key] = [*(arguments[key] if isinstance(arguments[key], list) else [arguments[key]]), *more]
        else:
            arguments[key] = value
    lists = {key for key, part in schema["properties"].items() if _takes_only_lists(part)}
    return {key: [value] if key in lists and isinstance(value, str) else value for key, value in arguments.items()}


_PLAIN_LIST = re.compile(r"\[[^\s\[\]{}\"',]+(?:,\s*[^\s\[\]{}\"',]+)*\]")
_PAIR = re.compile(r"[A-Za-z_][\w-]*=")
_SUBJECTS = ("name", "snapshot", "words", "guest", "host", "node", "storage", "service", "unit")
_LEADING = ("storage", "disk", "since", "scope")
"""Optional arguments that a tool is about if they are declared first."""


def _obvious(schema: Mapping[str, Any]) -> list[str]:
    """The required arguments in their order, and the first other one that a tool is likely about."""
    required = list(schema.get("required", ()))
    others = [name for name in schema["properties"] if name not in required]
    leading = [name for name in others[:1] if name in _LEADING]
    return required + [*leading, *(name for name in _SUBJECTS if name in others)][:1]


def _takes_only_lists(part: Mapping[str, Any]) -> bool:
    kinds = {part.get("type"), *(alternative.get("type") for alternative in part.get("anyOf", ()))} - {None, "null"}
    return kinds == {"array"}


def _value(text: str) -> Any:
    if text[:1] in ("[", "{"):
        with contextlib.suppress(Unreadable):
            return read_json(text)
    return text


def _split_list(text: str, part: Mapping[str, Any]) -> str | list[str]:
    """A list as people write it in a shell, which takes the quotes of JSON away."""
    if not any(kind.get("type") == "array" for kind in (part, *part.get("anyOf", ()))):
        return text
    if _PLAIN_LIST.fullmatch(text):
        return re.split(r",\s*", text[1:-1])
    return text.split(",") if choices_of_items(part) and "," in text else text


def example_pairs(operation: Operation) -> list[str]:
    """A first call as `key=value` pairs; on the demo cluster (--demo) it works unchanged."""
    if operation.example:
        return shlex.split(operation.example)
    schema = operation.schema()
    return [f"{name}={placeholder(name, schema['properties'][name])}" for name in schema.get("required", ())]


def placeholder(name: str, part: Mapping[str, Any]) -> str:
    """One of the choices, a number, or the argument's name in capitals."""
    kinds = part.get("anyOf", [part])
    if choices := [*part.get("enum", ()), *(kind["const"] for kind in kinds if "const" in kind)]:
        return str(choices[0])
    first = str(kinds[0].get("type"))
    number = str(min(100, int(part.get("maximum", 100))))
    return {"integer": number, "number": number, "boolean": "true", "object": "{}"}.get(first, name.upper())
