"""Read untrusted JSON and YAML: bounded in length, depth and time, with one kind of error."""

from __future__ import annotations

import re
import time
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

DEEPEST = 64
"""Levels of nesting. PVE, Docker and Terraform stay below twenty; our own recursion is safe far beyond this."""
LONGEST_YAML = 256 * 1024
MOST_NODES = 50_000
"""The most nodes of a YAML document, with its aliases expanded."""
YAML_SECONDS = 5.0
LONGEST_NUMBER = 64
_NUMBER = re.compile(r"[-+]?[0-9][0-9a-fA-FxXoO_:.]*")


class Unreadable(ValueError):
    """The text is invalid or too large. The message completes "it …"."""


def read_json(data: bytes | bytearray | str, kind: type[T] | Any = Any, *, strict: bool = True) -> Any:
    try:
        value = msgspec.json.decode(data, type=kind, strict=strict)
    except RecursionError:
        raise Unreadable(_too_deep(DEEPEST)) from None
    except (msgspec.MsgspecError, ValueError) as error:  # a ValueError is a number with thousands of digits
        raise Unreadable(f"is not valid: {error}") from None
    if can_be_deep(data):
        refuse_depth(value)
    return value


def can_be_deep(data: bytes | bytearray | str) -> bool:
    """Whether this JSON opens enough lists and objects to be nested too deeply."""
    if isinstance(data, str):
        return data.count("[") + data.count("{") > DEEPEST
    return data.count(b"[") + data.count(b"{") > DEEPEST


def refuse_depth(value: Any, deepest: int = DEEPEST) -> None:
    if is_deeper(value, deepest):
        raise Unreadable(_too_deep(deepest))


def is_deeper(value: Any, deepest: int = DEEPEST) -> bool:
    """Whether lists and objects are nested too deeply. Checked level by level, because this must not recurse."""
    level = [value] if isinstance(value, (dict, list)) else []
    for _ in range(deepest):
        if not level:
            return False
        level = [
            held
            for one in level
            for held in (one.values() if type(one) is dict else one)
            if type(held) is dict or type(held) is list
        ]
    return bool(level)


def read_yaml(text: str, *, aliases: bool = True, longest: int = LONGEST_YAML) -> Any:
    """The value of a YAML document. It takes up to YAML_SECONDS, so a server calls it in a thread."""
    import yaml  # only the homelab's tools need it

    try:
        inspect_yaml(text, aliases=aliases, longest=longest)
        return yaml.load(text, _loader())  # noqa: S506 (both loaders are safe ones)
    except yaml.YAMLError as error:
        raise Unreadable(f"is not YAML: {' '.join(str(error).split())[:300]}") from None
    except (RecursionError, ValueError) as error:  # a date such as 2026-99-99 is a ValueError of the loader's
        raise error if isinstance(error, Unreadable) else Unreadable(f"is not YAML: {error}") from None


def inspect_yaml(text: str, *, aliases: bool = True, longest: int = LONGEST_YAML) -> None:
    """Refuse what would cost too much to build, from events alone, before anything is built."""
    import yaml

    if len(text) > longest:
        raise Unreadable(f"has {len(text)} characters; the limit is {longest}")
    deadline = time.monotonic() + YAML_SECONDS
    open_nodes: list[tuple[str | None, int]] = []
    """The anchor of each open collection, and the number of nodes before it."""
    sizes: dict[str, int] = {}
    """How many nodes an alias expands to."""
    nodes = 0
    for event in yaml.parse(text, _loader()):
        if time.monotonic() > deadline:
            raise Unreadable(f"takes longer than {YAML_SECONDS:g} s to read")
        if isinstance(event, yaml.AliasEvent):
            if not aliases:
                raise Unreadable("has YAML aliases; write it out, without & and *")
            nodes += sizes.get(event.anchor or "", MOST_NODES)  # one that is still open would contain itself
        elif isinstance(event, yaml.ScalarEvent):
            nodes += 1
            if event.implicit[0] and len(event.value) > LONGEST_NUMBER and _NUMBER.fullmatch(event.value):
                raise Unreadable(f"has a number of {len(event.value)} digits")
            sizes |= {event.anchor: 1} if event.anchor else {}
        elif isinstance(event, yaml.CollectionStartEvent):
            open_nodes.append((event.anchor, nodes))
            nodes += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = open_nodes.pop()
            sizes |= {anchor: nodes - before} if anchor else {}
        if len(open_nodes) > DEEPEST:
            raise Unreadable(_too_deep(DEEPEST))
        if nodes > MOST_NODES:
            raise Unreadable(f"has more than {MOST_NODES} values")


def _loader() -> Any:
    import yaml

    return getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _too_deep(deepest: int) -> str:
    return f"is nested more than {deepest} levels deep"
