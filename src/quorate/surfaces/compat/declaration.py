"""What the other servers require before they act: an argument of the caller, a variable of the operator.

These checks come before ours and never replace them: an argument that the model fills in is not an approval.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib.resources import files
from types import GenericAlias
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

import msgspec

from quorate.hints import ToolHint
from quorate.operations.registry import Risk
from quorate.problems import Problem, Refused

if TYPE_CHECKING:
    from quorate.surfaces.compat.execution import ToolCall


class ConfirmationMissing(Refused):
    """An argument that confirms the call is missing."""


class OptInMissing(Refused):
    """The operator has not set the variable that allows the tool."""


@dataclass(frozen=True, slots=True)
class OwnGate:
    """Arguments that must be true, and the variable that the operator must have set."""

    arguments: tuple[str, ...] = ()
    variable: str | None = None
    dry_run_by_default: bool = False
    """Without `dry_run`, the tool only shows what it would do."""

    def objection(self, tool: str, arguments: Mapping[str, Any], opt_ins: Collection[str]) -> Refused | None:
        dry_run = arguments.get("dry_run")
        if self.dry_run_by_default if dry_run is None else dry_run:
            return None  # a dry run needs no confirmation
        for name in self.arguments:
            if arguments.get(name) is not True:
                return ConfirmationMissing(
                    f"{tool} does nothing without {name}=true",
                    next_step=f"Ask the person you work for; if they agree, call again with {name}=true",
                )
        if self.variable and self.variable not in opt_ins:
            return OptInMissing(
                f"{tool} is disabled",
                why=f"{self.variable} is not set for the server",
                next_step=f"Only the operator can enable it: start Quorate with {self.variable}={_enabling(self)}",
            )
        return None


def _enabling(gate: OwnGate) -> str:
    return "1" if gate.variable == DESTRUCTIVE_VARIABLE else "true"


ELEVATED_VARIABLE = "PROXMOX_ALLOW_ELEVATED"
DESTRUCTIVE_VARIABLE = "PROXMOX_ENABLE_DESTRUCTIVE"

OPEN = OwnGate()
GATES = {
    "confirm": OwnGate(("confirm",)),
    "destructive": OwnGate(("confirm", "destructive"), DESTRUCTIVE_VARIABLE),
    "destructive_unless_dry_run": OwnGate(("confirm", "destructive"), DESTRUCTIVE_VARIABLE, dry_run_by_default=True),
    "elevated": OwnGate(variable=ELEVATED_VARIABLE),
}
"""As `tools.toml` names them."""


Recipe: TypeAlias = "Callable[[ToolCall], Awaitable[Any]]"
"""Does what the tool promises with native operations; returns the answer: an object, a list, or ready text."""

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
    """None: there is no default, and the argument is None if it is not given."""
    choices: tuple[str, ...] = ()
    """The allowed values; of a list, those of its items."""
    as_constants: bool = False
    """The schema lists the choices as alternatives, one constant each, instead of an enum."""
    about: str = ""
    also: tuple[str, ...] = ()
    """Other spellings, where documentation and code differ. If both are given, `name` wins."""
    ignored: str = ""
    """Why the argument makes no difference; a caller who gives it gets this as a remark."""

    @property
    def spellings(self) -> tuple[str, ...]:
        return (self.name, *self.also)

    @property
    def python_type(self) -> Any:
        plain = Literal[self.choices] if self.choices else _PYTHON_TYPES[self.type]
        if self.choices and self.type.startswith("array<"):
            plain = GenericAlias(list, (plain,))
        return plain if self.required else plain | None

    def schema(self) -> dict[str, dict[str, Any]]:
        """One property for each spelling."""
        plain = self._type_schema()
        default = {"default": self.default} if self.default is not None else {}
        text = f"Ignored: {self.ignored}" if self.ignored else self.about
        about = {"description": text} if text else {}
        return {
            self.name: {**plain, **default, **about},
            **{other: {**plain, "description": f"Same as {self.name}"} for other in self.also},
        }

    def _type_schema(self) -> dict[str, Any]:
        if self.choices and self.as_constants:
            return {"anyOf": [{"const": choice, "type": self.type} for choice in self.choices]}
        only = {"enum": list(self.choices)} if self.choices else {}
        if self.type.startswith("array<"):
            return {"type": "array", "items": {"type": self.type[len("array<") : -1], **only}}
        return {"type": self.type, **only}


DRY_RUN = Parameter("dry_run", "boolean", about="Only show the plan")
PLAN_TOKEN = Parameter("plan_token", "string", about="From the dry run of the same call")


@dataclass(frozen=True)
class Tool:
    name: str
    about: str
    native: str
    """The native call that does the same, or several that do it together: `guest_power action=start`."""
    recipe: Recipe
    parameters: tuple[Parameter, ...] = ()
    risk: Risk = Risk.READ
    """The worst that a call can do; the pipeline judges each call by what it really does."""
    gate: OwnGate = OPEN
    """What that server asks for before it acts. Our own gate applies in addition."""
    needs: tuple[str, ...] = ()
    """Parameters that are optional in the schema although the tool can do nothing without them."""
    unlisted: tuple[Parameter, ...] = ()
    """Accepted but not listed: in that server's documentation, not in its schema."""

    @cached_property
    def native_calls(self) -> tuple[ToolHint, ...]:
        """The native calls that each do what the tool does, with the arguments that make them do it."""
        return () if ", then " in self.native else tuple(map(_parse_call, self.native.split(", ")))

    @property
    def changes(self) -> bool:
        return self.risk in (Risk.CHANGE, Risk.DESTROY)

    @property
    def spellings(self) -> tuple[str, ...]:
        """Every name of an argument that the tool accepts."""
        return tuple(name for parameter in self.accepted for name in parameter.spellings)

    @property
    def accepted(self) -> tuple[Parameter, ...]:
        """What it lists and what it accepts in addition. Every change accepts `dry_run`: ignoring it would do harm."""
        own = (*self.parameters, *self.unlisted)
        return (
            *own,
            *([DRY_RUN] if self.changes and not any(parameter.name == DRY_RUN.name for parameter in own) else []),
        )

    # The pipeline's strict decoding needs name, arguments, schema and this.
    inapplicable: ClassVar[Mapping[str, str]] = {}

    @cached_property
    def arguments(self) -> type[msgspec.Struct]:
        fields = [
            (parameter.name, parameter.python_type)
            if parameter.required
            else (parameter.name, parameter.python_type, parameter.default)
            for parameter in self.accepted
        ]
        return msgspec.defstruct("Arguments", fields, kw_only=True)

    def schema(self) -> dict[str, Any]:
        required = [parameter.name for parameter in self.parameters if parameter.required]
        return {
            "type": "object",
            "properties": {name: part for parameter in self.parameters for name, part in parameter.schema().items()},
            **({"required": required} if required else {}),
            "additionalProperties": False,
        }


@dataclass(frozen=True)
class System:
    """Another server: its tools, and how its operator allows what is dangerous."""

    name: str
    tools: Mapping[str, Tool]
    opt_in: str | None = None
    """The environment variable by which its operator allows what is dangerous."""
    arguments: Mapping[str, str] = field(default_factory=dict)
    """Native arguments in advice -> its own, where only this system calls them that: `overwrite` -> `force`."""
    error: Callable[[Tool, Problem], dict[str, Any] | str] | None = None
    """How it reports an error, where that is an object or a text of its own."""


def _parse_call(text: str) -> ToolHint:
    """Parse `guest_power action=start`; placeholders for the caller's values are left out."""
    tool, *pairs = text.split()
    arguments = dict(pair.split("=", 1) for pair in pairs)
    return ToolHint(tool, {name: value for name, value in arguments.items() if value.isidentifier()})


# -- tools.toml --------------------------------------------------------------------------------------------------------


def load_system(
    name: str, *recipes: Mapping[str, Recipe], error: Callable[[Tool, Problem], dict[str, Any] | str] | None = None
) -> System:
    """The system that `tools.toml` in its folder declares: its tools in that order, each with its recipe.

    `parameters` lists inline tables or the names of shared ones, with a default of their own as `timeout=900`. Changes
    also accept what `accepted_by_changes` lists.
    """
    document = tomllib.loads(files(f"{__package__}.{name}").joinpath("tools.toml").read_text())
    by_name = {tool: recipe for group in recipes for tool, recipe in group.items()}
    assert by_name.keys() == document["tools"].keys(), by_name.keys() ^ document["tools"].keys()
    tools = {tool: _tool(tool, by_name[tool], entry, document) for tool, entry in document["tools"].items()}
    return System(name, tools, document.get("opt_in"), document.get("arguments", {}), error)


def _tool(name: str, recipe: Recipe, entry: Mapping[str, Any], document: Mapping[str, Any]) -> Tool:
    shared = document.get("parameters", {})
    parameters = tuple(_parameter(declared, shared) for declared in entry.get("parameters", ()))
    risk = Risk(entry.get("risk", Risk.READ))
    more = document.get("accepted_by_changes", ()) if risk in (Risk.CHANGE, Risk.DESTROY) else ()
    accepted = (_parameter(declared, shared) for declared in (*entry.get("unlisted", ()), *more))
    listed = {parameter.name for parameter in parameters}
    return Tool(
        name,
        entry["about"],
        entry["native"],
        recipe,
        parameters,
        risk,
        GATES[entry["gate"]] if "gate" in entry else OPEN,
        tuple(entry.get("needs", ())),
        tuple(parameter for parameter in accepted if parameter.name not in listed),
    )


def _parameter(declared: str | Mapping[str, Any], shared: Mapping[str, Mapping[str, Any]]) -> Parameter:
    if not isinstance(declared, str):
        return _from_table(declared)
    key, has_default, default = declared.partition("=")
    table: dict[str, Any] = {"name": key, **shared[key]}
    if has_default:
        table["default"] = default if table["type"] == "string" else json.loads(default)
    return _from_table(table)


def _from_table(table: Mapping[str, Any]) -> Parameter:
    fields: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) and key != "default" else value for key, value in table.items()
    }
    return Parameter(**fields)
