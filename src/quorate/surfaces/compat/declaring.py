"""How a tool of another server is declared: what it is called, what it takes, what it is made of here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import GenericAlias
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from quorate.operations.registry import Risk
from quorate.pve.errors import Problem
from quorate.surfaces.compat.gates import OPEN, OwnGate

if TYPE_CHECKING:
    from quorate.surfaces.compat.running import Run

Recipe: TypeAlias = "Callable[[Run], Awaitable[Any]]"
"""Does what the tool promises by native operations, and gives the answer: an object, a list, or ready text."""

_PYTHON_TYPES: Mapping[str, Any] = {
    "integer": int,
    "number": int | float,
    "string": str,
    "boolean": bool,
    "object": dict[str, Any],
    "array<string>": list[str],
    "array<integer>": list[int],
    "array<object>": list[dict[str, Any]],
}


@dataclass(frozen=True, slots=True)
class Parameter:
    name: str
    type: str
    """As in JSON schema: integer, number, string, boolean, object; array<string>, array<integer>, array<object>."""
    required: bool = False
    default: Any = None
    """None is no default: the argument is then None where it is not given."""
    choices: tuple[str, ...] = ()
    """Of a list: what may stand in it."""
    as_constants: bool = False
    """The choices stand in the schema as alternatives, one constant each, and not as an enum."""
    about: str = ""

    @property
    def python_type(self) -> Any:
        plain = Literal[self.choices] if self.choices else _PYTHON_TYPES[self.type]
        if self.choices and self.type.startswith("array<"):
            plain = GenericAlias(list, (plain,))
        return plain if self.required else plain | None

    def schema(self) -> dict[str, Any]:
        return {
            **self._type_schema(),
            **({"default": self.default} if self.default is not None else {}),
            **({"description": self.about} if self.about else {}),
        }

    def _type_schema(self) -> dict[str, Any]:
        if self.choices and self.as_constants:
            return {"anyOf": [{"const": choice, "type": self.type} for choice in self.choices]}
        only = {"enum": list(self.choices)} if self.choices else {}
        if self.type.startswith("array<"):
            return {"type": "array", "items": {"type": self.type[len("array<") : -1], **only}}
        return {"type": self.type, **only}


def need(name: str, type: str, about: str = "", *, choices: tuple[str, ...] = ()) -> Parameter:
    return Parameter(name, type, required=True, choices=choices, about=about)


def may(name: str, type: str, default: Any = None, about: str = "", *, choices: tuple[str, ...] = ()) -> Parameter:
    return Parameter(name, type, default=default, choices=choices, about=about)


def one_of(name: str, *choices: str, about: str = "") -> Parameter:
    return Parameter(name, "string", choices=choices, as_constants=True, about=about)


@dataclass(frozen=True)
class Tool:
    name: str
    about: str
    parameters: tuple[Parameter, ...]
    risk: Risk
    """The worst that a call can do; what each call really does is judged when it runs."""
    native: str
    """How one asks for the same by our own tools: `guest_power action=start`."""
    recipe: Recipe
    gate: OwnGate = OPEN
    """What that server itself asks for before it acts. Ours comes on top."""
    needs: tuple[str, ...] = ()
    """Parameters that the schema leaves open and without which the tool can do nothing."""

    # Name, arguments and schema are what the pipeline's strict decoding of arguments wants to know.

    @cached_property
    def arguments(self) -> type[msgspec.Struct]:
        fields = [
            (one.name, one.python_type) if one.required else (one.name, one.python_type, one.default)
            for one in self.parameters
        ]
        return msgspec.defstruct("Arguments", fields, kw_only=True)

    def schema(self) -> dict[str, Any]:
        required = [one.name for one in self.parameters if one.required]
        return {
            "type": "object",
            "properties": {one.name: one.schema() for one in self.parameters},
            **({"required": required} if required else {}),
            "additionalProperties": False,
        }


@dataclass(frozen=True)
class System:
    """Another server: its tools, and how its operator says yes."""

    name: str
    tools: Mapping[str, Tool]
    opt_in: str | None = None
    """The variable in the environment by which its operator allows what is dangerous."""
    words: Mapping[str, str] = field(default_factory=dict)
    """Our words in hints -> its own: `task_wait task=` -> `proxmox_wait_task upid=`."""
    error: Callable[[Tool, Problem], dict[str, Any] | str] | None = None
    """How it tells an error, where that is an object or a text of its own."""


def by_name(*groups: Iterable[Tool]) -> dict[str, Tool]:
    tools = [tool for group in groups for tool in group]
    named = {tool.name: tool for tool in tools}
    assert len(named) == len(tools), "two tools have one name"
    return named
