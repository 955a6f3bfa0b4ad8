"""The list of all operations, made from typed functions: the signature is the schema, the docstring the description."""

from __future__ import annotations

import enum
import importlib
import inspect
import pkgutil
import typing
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from quorate.pve.tasks import Report

TOOLSETS = {
    "cluster": "the cluster and its nodes",
    "guests": "finding guests, switching them on and off",
    "provision": "creating, cloning, migrating, deleting guests",
    "configure": "options, disks, networks, cloud-init of guests",
    "snapshots": "snapshots of guests",
    "storage": "storages, images, templates, volumes",
    "backups": "backups, restore, backup jobs",
    "metrics": "history of load as numbers and charts",
    "access": "users, groups, roles, tokens, permissions, pools",
    "firewall": "firewall of cluster, nodes and guests",
    "ha": "high availability and replication",
    "network": "networks of nodes, SDN",
    "nodes": "care of nodes: services, updates, disks, certificates, logs",
    "reports": "health and capacity reports",
    "api": "the whole PVE API",
    "tasks": "what PVE is doing and has done",
}
DEFAULT_TOOLSETS = frozenset({"cluster", "guests", "provision", "snapshots", "storage", "tasks"})

GuestRef = Annotated[int | str, Meta(description="vmid or name")]
GuestRefs = Annotated[int | str | list[int | str], Meta(description="vmid or name, or a list of them")]


class Risk(enum.Enum):
    """What an operation can do to what is there. Gates and annotations follow from it."""

    READ = "read"
    LOOK_INSIDE = "look_inside"
    CHANGE = "change"
    DESTROY = "destroy"


@dataclass(frozen=True, slots=True)
class Operation:
    name: str
    toolset: str
    risk: Risk
    summary: str
    run: Callable[..., Awaitable[Any]]
    arguments: type[msgspec.Struct]
    wants_report: bool
    idempotent: bool
    risk_of: Callable[[Mapping[str, Any]], Risk] | None = None
    """The risk of one call by its arguments, where it varies; `risk` is then the worst."""
    least: Risk | None = None

    @property
    def least_risk(self) -> Risk:
        """What decides whether it is listed."""
        return self.least or (self.risk if self.risk_of is None else Risk.READ)

    @property
    def changes(self) -> bool:
        return self.risk in (Risk.CHANGE, Risk.DESTROY)

    def schema(self) -> dict[str, Any]:
        return _schema(self.arguments)


_operations: dict[str, Operation] = {}

Function = typing.TypeVar("Function", bound=Callable[..., Awaitable[Any]])

# Every change takes these two; the pipeline acts on them, the operation never sees them.
CHANGE_ARGUMENTS: tuple[tuple[str, Any, Any], ...] = (
    ("dry_run", Annotated[bool, Meta(description="Only show the plan")], False),
    (
        "wait",
        Annotated[float, Meta(ge=0, le=50, description="Seconds to follow the task before handing it back")] | None,
        None,
    ),
)


def operation(
    *,
    toolset: str,
    risk: Risk,
    idempotent: bool | None = None,
    risk_of: Callable[[Mapping[str, Any]], Risk] | None = None,
    least: Risk | None = None,
) -> Callable[[Function], Function]:
    """Declare an operation. Its first parameter is the cluster; one annotated `Report` receives progress.

    Where the risk varies by `risk_of`, `risk` is the worst and `least` the mildest of it (READ unless given).
    """
    assert toolset in TOOLSETS, toolset

    def register(function: Function) -> Function:
        name = function.__name__
        assert name not in _operations, f"two operations are called {name}"
        changes = risk in (Risk.CHANGE, Risk.DESTROY)
        parameters, wants_report = _parameters(function)
        _operations[name] = Operation(
            name=name,
            toolset=toolset,
            risk=risk,
            summary=" ".join(inspect.cleandoc(function.__doc__ or "").split()),
            run=function,
            arguments=msgspec.defstruct(name, [*parameters, *(CHANGE_ARGUMENTS if changes else ())], kw_only=True),
            wants_report=wants_report,
            idempotent=not changes if idempotent is None else idempotent,
            risk_of=risk_of,
            least=least,
        )
        return function

    return register


def _parameters(function: Callable[..., Any]) -> tuple[list[Any], bool]:
    hints = typing.get_type_hints(function, include_extras=True)
    fields: list[Any] = []
    wants_report = False
    for parameter in list(inspect.signature(function).parameters.values())[1:]:
        hint = hints[parameter.name]
        if hint == Report:
            wants_report = True
        elif parameter.default is inspect.Parameter.empty:
            fields.append((parameter.name, hint))
        else:
            fields.append((parameter.name, hint, parameter.default))
    return fields, wants_report


@cache
def operations() -> Mapping[str, Operation]:
    """All operations, by name."""
    for module in pkgutil.iter_modules(importlib.import_module("quorate.operations").__path__):
        importlib.import_module(f"quorate.operations.{module.name}")
    return dict(sorted(_operations.items()))


# -- schemas on a diet -------------------------------------------------------------------------------------------------


def _schema(arguments: type[msgspec.Struct]) -> dict[str, Any]:
    (top,), parts = msgspec.json.schema_components([arguments])
    schema = parts[arguments.__name__] if "$ref" in top else top
    properties = {name: _slim(part) for name, part in schema.get("properties", {}).items()}
    required = {"required": schema["required"]} if schema.get("required") else {}
    return {"type": "object", "properties": properties, **required, "additionalProperties": False}


def _slim(part: dict[str, Any]) -> dict[str, Any]:
    """Without what tells a caller nothing: `null` as an alternative to leaving the argument out, and null defaults."""
    slim = {key: value for key, value in part.items() if not (key == "default" and value is None)}
    alternatives = [one for one in slim.pop("anyOf", ()) if one != {"type": "null"}]
    if len(alternatives) == 1:
        slim |= alternatives[0]
    elif alternatives:
        slim["anyOf"] = alternatives
    if "enum" in slim:
        slim["type"] = "string"  # some clients insist on it
        slim["enum"] = [value for value in slim["enum"] if value is not None]
    return slim


# -- answers -----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Table:
    """A list answer: columns once, then rows; always bounded."""

    columns: tuple[str, ...]
    rows: list[list[Any]]
    total: int
    offset: int = 0
    note: str | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    """What stands beside the rows."""

    @property
    def next_offset(self) -> int | None:
        end = self.offset + len(self.rows)
        return end if end < self.total else None


@dataclass(frozen=True, slots=True)
class Illustrated:
    """Facts with pictures (PNG) beside them."""

    facts: dict[str, Any]
    pictures: tuple[bytes, ...]


def page(
    columns: tuple[str, ...], rows: Iterable[list[Any]], *, limit: int, offset: int, total: int | None = None
) -> Table:
    """One page of `rows` (all of them, in order), without the columns that are empty in every row of it."""
    everything = list(rows)
    shown = everything[offset : offset + limit]
    filled = [index for index in range(len(columns)) if any(row[index] not in ("", None) for row in shown)]
    return Table(
        columns=tuple(columns[index] for index in filled),
        rows=[[row[index] for index in filled] for row in shown],
        total=len(everything) if total is None else total,
        offset=offset,
    )
