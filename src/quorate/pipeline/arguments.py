"""A caller's arguments, strictly: unknown names and wrong types are refused with what would be right."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from quorate.pipeline.redact import HIDDEN, SECRET_KEYS
from quorate.pve.errors import BadArgument


class Declared(Protocol):
    """What takes arguments: an operation, or a tool that is made of operations."""

    @property
    def name(self) -> str: ...

    @property
    def arguments(self) -> type[msgspec.Struct]: ...

    def schema(self) -> dict[str, Any]: ...


class WrongArguments(BadArgument):
    """They do not fit what is declared: a look at the schema helps."""


# Beside the names of secrets: what is given to a command or written to a file.
_NEVER_SHOWN = SECRET_KEYS | {"env", "stdin", "content", "data", "input_data"}

_WHERE = re.compile(r" - at `\$\.?(?P<name>[^`\[.]*)[^`]*`$")


def decode(operation: Declared, given: Mapping[str, Any]) -> dict[str, Any]:
    """Typed arguments with defaults filled in. `"100"` is as good as 100, `"true"` as true."""
    _refuse_unknown(operation, given)
    _refuse_half_characters(given)
    try:
        decoded = msgspec.convert(dict(given), operation.arguments, strict=False)
    except msgspec.ValidationError as error:
        raise _explain(operation, given, str(error)) from None
    return {name: getattr(decoded, name) for name in operation.arguments.__struct_fields__}


def _refuse_unknown(operation: Declared, given: Mapping[str, Any]) -> None:
    known = operation.arguments.__struct_fields__
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1, 0.5)
            hint = f"Did you mean {near[0]!r}?" if near else f"It takes {', '.join(known) or 'no arguments'}"
            raise WrongArguments(f"{operation.name} has no argument {name!r}", next_step=hint)


def _refuse_half_characters(given: Mapping[str, Any]) -> None:
    """JSON can name one half of a surrogate pair alone, but that is no text and cannot be sent anywhere."""
    for name, value in given.items():
        try:
            msgspec.json.encode(value)
        except UnicodeEncodeError:
            raise WrongArguments(f"{name} holds half a character (a lone surrogate)") from None


def _explain(operation: Declared, given: Mapping[str, Any], error: str) -> WrongArguments:
    missing = re.search(r"missing required field `(?P<name>[^`]+)`", error)
    if missing:
        return WrongArguments(
            f"{operation.name} needs the argument {missing['name']!r}",
            next_step=_expected(operation, missing["name"]),
        )
    where = _WHERE.search(error)
    name = where["name"] if where else ""
    if not name:
        return WrongArguments(f"The arguments of {operation.name} do not fit", why=error)
    return WrongArguments(
        f"{operation.name} cannot take {name}={_shown(name, given.get(name))}",
        why=_WHERE.sub("", error).replace("`", ""),
        next_step=_expected(operation, name, given.get(name)),
    )


def _shown(name: str, value: object) -> str:
    """The caller's value as it came, unless it is or may hold a secret."""
    secret = name in _NEVER_SHOWN or isinstance(value, (dict, list)) or "password" in str(value)
    return HIDDEN if secret else repr(value)


def _expected(operation: Declared, name: str, got: object = None) -> str:
    schema = operation.schema()["properties"][name]
    choices = schema.get("enum") or [one["const"] for one in schema.get("anyOf", ()) if "const" in one]
    if choices:
        near = difflib.get_close_matches(str(got), choices, 1) if got is not None else []
        return (f"Did you mean {near[0]!r}? " if near else "") + f"Valid are {', '.join(choices)}"
    kinds = [schema.get("type")] if "type" in schema else [one["type"] for one in schema.get("anyOf", [])]
    bounds = [
        f"{word} {schema[key]:g}" for key, word in (("minimum", "at least"), ("maximum", "at most")) if key in schema
    ]
    text = f"It is {' or '.join(str(kind) for kind in kinds)}" + (f", {' and '.join(bounds)}" if bounds else "")
    return f"{text}: {schema['description']}" if "description" in schema else text
