"""The list of all operations, made from typed functions: the signature is the schema, the docstring the description."""

from __future__ import annotations

import enum
import importlib
import inspect
import pkgutil
import typing
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from quorate.pve.tasks import Report

TOOLSETS = {
    "cluster": "the cluster and its nodes",
    "guests": "finding guests, switching them on and off, changing their options",
    "provision": "creating, cloning, migrating, deleting guests",
    "configure": "disks, networks, cloud-init of guests",
    "snapshots": "snapshots of guests",
    "storage": "storages and the volumes on them",
    "images": "images and templates: upload, download",
    "backups": "backups, restore, backup jobs",
    "metrics": "history of load as numbers and charts",
    "access": "users, groups, roles, tokens, permissions, pools",
    "firewall": "firewall of cluster, nodes and guests",
    "ha": "high availability and replication",
    "network": "networks of nodes, SDN",
    "nodes": "care of nodes: services, updates, disks, certificates, logs",
    "reports": "health and capacity reports",
    "inside": "commands, files and services inside guests",
    "api": "the whole PVE API",
    "tasks": "what PVE is doing and has done",
}
"""A toolset is a module or a folder of this package; its operations are those declared in it."""
HOMELAB = {
    "hosts": "plain hosts: register, run commands, look at hardware and services, administration account, shell",
    "map": "finding devices on the network, the map of them, what has changed",
    "workloads": "containers on plain hosts: Docker, Podman, LXD, Incus",
    "services": "a catalogue of services, installed by Compose, Ansible or Terraform",
    "infra": "infrastructure plans: validate, apply, back up, roll back",
    "scripts": "community scripts for Proxmox VE",
}
"""Toolsets of what stands around the clusters. Their operations get the homelab where the others get the cluster."""
EVERY = {**TOOLSETS, **HOMELAB}
MOST_TOOLS = 100
"""More than that at once no client should be given."""
DEFAULT_TOOLSETS = frozenset({"cluster", "guests", "provision", "snapshots", "storage", "tasks"})

GuestRef = Annotated[int | str, Meta(description="vmid or name")]
GuestRefs = Annotated[int | str | list[int | str], Meta(description="vmid or name, or a list of them")]


Spans = Literal["all", "any", "one"]


class Risk(enum.Enum):
    """What an operation can do to what is there. Gates and annotations follow from it."""

    READ = "read"
    LOOK_INSIDE = "look_inside"
    CHANGE = "change"
    DESTROY = "destroy"


class Operation:
    """A declared function and what follows from it; schema and types are worked out when they are first needed."""

    def __init__(
        self,
        function: Callable[..., Awaitable[Any]],
        *,
        risk: Risk,
        idempotent: bool | None,
        risk_of: Callable[[Mapping[str, Any]], Risk] | None,
        least: Risk | None,
        spans: Spans,
        unrecorded: Iterable[str],
    ) -> None:
        self.run = function
        self.name = function.__name__
        self.toolset = function.__module__.removeprefix("quorate.operations.").partition(".")[0]
        self.about_homelab = self.toolset in HOMELAB
        self.risk = risk
        self.risk_of = risk_of
        self.least_risk = least or (risk if risk_of is None else Risk.READ)
        self.spans = spans
        self.unrecorded = frozenset(unrecorded)
        self.changes = risk in (Risk.CHANGE, Risk.DESTROY)
        self.idempotent = not self.changes if idempotent is None else idempotent

    @cached_property
    def summary(self) -> str:
        return " ".join(inspect.cleandoc(self.run.__doc__ or "").split())

    @cached_property
    def arguments(self) -> type[msgspec.Struct]:
        fields = [field for name, field in self._parameters.items() if name not in self._reports]
        return msgspec.defstruct(self.name, [*fields, *(CHANGE_ARGUMENTS if self.changes else ())], kw_only=True)

    @property
    def wants_report(self) -> bool:
        return bool(self._reports)

    def schema(self) -> dict[str, Any]:
        return schema_of(self.arguments)

    @cached_property
    def _parameters(self) -> dict[str, tuple[Any, ...]]:
        """Name -> name, type and default, if any; without the cluster, which comes first."""
        hints = typing.get_type_hints(self.run, include_extras=True)
        given = list(inspect.signature(self.run).parameters.values())[1:]
        return {one.name: (one.name, hints[one.name], *_default(one)) for one in given}

    @cached_property
    def _reports(self) -> frozenset[str]:
        return frozenset(name for name, field in self._parameters.items() if field[1] == Report)


def _default(parameter: inspect.Parameter) -> tuple[Any, ...]:
    return () if parameter.default is inspect.Parameter.empty else (parameter.default,)


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
    risk: Risk,
    idempotent: bool | None = None,
    risk_of: Callable[[Mapping[str, Any]], Risk] | None = None,
    least: Risk | None = None,
    spans: Spans = "all",
    unrecorded: Iterable[str] = (),
) -> Callable[[Function], Function]:
    """Declare an operation. Its first parameter is the cluster, or the homelab if its toolset is one of those; one
    annotated `Report` receives progress.

    Where the risk of a call varies by its arguments (`risk_of`), `risk` is the worst and `least` the mildest of it,
    READ unless given; `least` decides whether the operation is listed.

    `spans` says what a read is about where there are several clusters and the caller names none: all of them, any of
    them because each would answer the same, or one that has to be named.

    Of the arguments that are `unrecorded`, such as the content of a file, the audit trail holds only their length.
    """

    def register(function: Function) -> Function:
        declared = Operation(
            function,
            risk=risk,
            idempotent=idempotent,
            risk_of=risk_of,
            least=least,
            spans=spans,
            unrecorded=unrecorded,
        )
        assert declared.name not in _operations, f"two operations are called {declared.name}"
        assert declared.toolset in EVERY, declared.toolset
        _operations[declared.name] = declared
        return function

    return register


def operations(toolsets: Iterable[str] = EVERY) -> Mapping[str, Operation]:
    """The operations of these toolsets, by name. Only their modules are imported: start-up pays for nothing else."""
    wanted = frozenset(toolsets)
    for toolset in wanted:
        _load(toolset)
    return {name: _operations[name] for name in sorted(_operations) if _operations[name].toolset in wanted}


def operation_named(name: str) -> Operation | None:
    """One operation of any toolset. Toolsets are imported one after the other, and none after its own."""
    for toolset in EVERY:
        if name in _operations:
            break
        _load(toolset)
    return _operations.get(name)


@cache
def _load(toolset: str) -> None:
    module = importlib.import_module(f"quorate.operations.{toolset}")
    for part in pkgutil.iter_modules(getattr(module, "__path__", ())):
        importlib.import_module(f"{module.__name__}.{part.name}")


# -- schemas on a diet -------------------------------------------------------------------------------------------------


@cache
def schema_of(arguments: type[msgspec.Struct]) -> dict[str, Any]:
    """Worked out once, shown in every list of tools: who adds to it takes a copy."""
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
    keys: list[Any] = field(default_factory=list)
    """What the rows are sorted by, one for each, so that tables of several clusters can be put into one order."""

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
