"""Arguments as callers send them: other spellings, unknown names, numbers as text, arguments without effect."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from quorate.pipeline.arguments import decode
from quorate.problems import BadArgument
from quorate.suggestions import suggest
from quorate.surfaces.compat.declaration import Tool


def decode_arguments(
    tool: Tool, given: Mapping[str, Any], opt_ins: Collection[str]
) -> tuple[dict[str, Any], list[str]]:
    """All arguments of the tool by name, and remarks about those that were ignored. Raises Problem."""
    arguments, remarks = normalize_names(tool, given)
    unconfirmed = {name: False for name in tool.gate.arguments if arguments.get(name) is None}
    decoded = decode(tool, _loosen_types(tool, {**arguments, **unconfirmed}))
    if missing := next((name for name in tool.needs if not decoded[name]), None):
        raise BadArgument(f"{tool.name} needs the argument {missing!r}")
    if objection := tool.gate.objection(tool.name, decoded, opt_ins):
        raise objection
    return decoded, remarks


def normalize_names(tool: Tool, given: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The arguments under the names that the tool reads, and remarks about the others.

    A tool that only reads ignores an unknown name, as those servers do. A change is refused instead, by the strict
    decoding: the name may be a typo of one that matters.
    """
    arguments, remarks = dict(given), []
    for one in tool.accepted:
        if isinstance(text := arguments.get(one.name), str) and one.type.startswith(("array", "object")):
            arguments[one.name] = _parse_json(text)
        for other in one.also:
            value = arguments.pop(other, None)
            if value is None:
                continue
            if arguments.get(one.name) is None:
                arguments[one.name] = value
            elif arguments[one.name] != value:
                remarks.append(f"{other} was ignored: {one.name} was given as well and wins.")
        if one.ignored and arguments.get(one.name) is not None:
            remarks.append(f"{one.name} was ignored: {one.ignored}.")
    if not tool.changes:
        known = [one.name for one in tool.accepted]
        for name in [name for name in arguments if name not in known]:
            del arguments[name]
            remarks.append(f"{name!r} was ignored: {_suggestion(tool, name)}")
    return arguments, remarks


def _loosen_types(tool: Tool, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Many clients send null for an optional argument they leave out, and 100 is as good a vmid as "100"."""
    optional = {one.name for one in tool.parameters if not one.required}
    texts = {one.name for one in tool.parameters if one.type == "string"}
    return {
        key: str(value) if key in texts and type(value) in (int, float) else value
        for key, value in arguments.items()
        if not (value is None and key in optional)
    }


def _parse_json(text: str) -> Any:
    """A list or an object that a client has sent as JSON text; anything else stays as it is and is refused later."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, (list, dict)) else text


def _suggestion(tool: Tool, name: str) -> str:
    hint = suggest(name, tool.spellings, "", cutoff=0.6)
    if hint:
        return f"{tool.name} has no such argument. {hint}"
    return f"{tool.name} takes {', '.join(tool.spellings) or 'no arguments'}."
