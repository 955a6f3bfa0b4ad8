"""Writes HCL, Terraform's language. Any text is escaped."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

LONGEST_COMMENT = 300


@dataclass(frozen=True, slots=True)
class Reference:
    """A reference by name, such as to another resource. Only safe names are used."""

    name: str


Value = str | bool | int | float | Reference | Sequence["Value"] | Mapping[str, "Value"]
Attribute = tuple[str, Value]


@dataclass(slots=True)
class Block:
    kind: str
    labels: tuple[str, ...] = ()
    parts: list[Attribute | Block | str] = field(default_factory=list)
    """Attributes, blocks, and texts that become comments."""

    def set(self, **values: Value | None) -> Block:
        """Add attributes in order, except those without a value."""
        self.parts += [(name, value) for name, value in values.items() if value is not None]
        return self

    def put(self, *blocks: Block | str | None) -> Block:
        """Add blocks, or remarks in their place, except empty ones."""
        self.parts += [block for block in blocks if block and (isinstance(block, str) or block.parts)]
        return self

    @property
    def attributes(self) -> list[Attribute]:
        return [part for part in self.parts if isinstance(part, tuple)]

    def remark(self, text: str) -> Block:
        self.parts.append(text)
        return self


def render_blocks(parts: Sequence[Block | str]) -> str:
    """A whole file: blocks separated by empty lines, and comments."""
    return "\n".join("\n".join(_lines(part, "")) + "\n" for part in parts)


def _lines(part: Attribute | Block | str, indent: str, width: int = 0) -> list[str]:
    if isinstance(part, str):
        return [f"{indent}# {_comment(line)}".rstrip() for line in part.split("\n")]
    if isinstance(part, tuple):
        return [f"{indent}{part[0]:{width}} = {_value(part[1], indent)}"]
    head = " ".join([part.kind, *(_quote(label) for label in part.labels)])
    if not part.parts:
        return [f"{indent}{head} {{}}"]
    inner: list[str] = []
    for _, group in itertools.groupby(part.parts, key=lambda part: isinstance(part, tuple)):
        together = list(group)  # aligned like `terraform fmt` does
        longest = max(len(element[0]) if isinstance(element, tuple) else 0 for element in together)
        inner += [line for element in together for line in _lines(element, indent + "  ", longest)]
    return [f"{indent}{head} {{", *inner, f"{indent}}}"]


def _value(value: Value, indent: str) -> str:
    if isinstance(value, Reference):
        return value.name
    if isinstance(value, str):
        return _quote(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, Mapping):
        longest = max(map(len, value), default=0)
        inner = [f"{indent}  {name:{longest}} = {_value(element, indent + '  ')}" for name, element in value.items()]
        return "\n".join(["{", *inner, f"{indent}}}"])
    return f"[{', '.join(_value(element, indent) for element in value)}]"


_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t", '"': '\\"', "\\": "\\\\"}


def _quote(text: str) -> str:
    """The text in quotes. `${` and `%{` would start an expression, so the sign before the brace is doubled.

    After several signs, doubling would be ambiguous: there the brace becomes an escape sequence.
    """
    plain = "".join(_SHORT.get(letter) or (letter if letter.isprintable() else _by_number(letter)) for letter in text)
    return '"' + re.sub(r"([$%]+)\{", lambda match: _harmless(match[1]), plain) + '"'


def _harmless(signs: str) -> str:
    return f"{signs * 2}{{" if len(signs) == 1 else f"{signs}\\u007b"


def _by_number(character: str) -> str:
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _comment(text: str) -> str:
    plain = "".join(letter if letter.isprintable() else " " for letter in text)
    return plain if len(plain) <= LONGEST_COMMENT else plain[:LONGEST_COMMENT] + " …"


class Names:
    """Unique resource names of letters, digits and underscores."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def fresh(self, name: str, number: int) -> str:
        safe = re.sub(r"[^A-Za-z0-9_]+", "_", name).strip("_").lower()
        if not re.match(r"[a-z_]", safe):
            safe = f"guest_{safe}".rstrip("_")
        for candidate in (safe, f"{safe}_{number}", f"guest_{number}_{len(self._taken)}"):
            if candidate not in self._taken:
                self._taken.add(candidate)
                return candidate
        raise AssertionError("the number of the names taken is part of the last one")
