"""The facts of the Proxmox VE API: which endpoints exist, what they take, who may call them.

The package contains two tables, for PVE 8.4 and 9.2; for 9.0 and 9.1 what came later is left out. They are read on
first use, and an endpoint is built only when it is needed.
"""

from __future__ import annotations

import pkgutil
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from typing import Any, Final

import msgspec

from pve_schema.formats import FormatBook
from pve_schema.validation import PropertySet

NEWEST: Final = "9.2"
OLDEST: Final = "8.4"

# What came with a version of PVE 9 after the first: its paths, and parameters of older endpoints.
_NEW_PATHS: Final[Mapping[str, tuple[str, ...]]] = {
    "9.1": ("/nodes/{node}/query-oci-repo-tags", "/nodes/{node}/storage/{storage}/oci-registry-pull"),
    "9.2": (
        "/cluster/qemu",
        "/cluster/sdn/prefix-lists",
        "/cluster/sdn/route-maps",
        "/nodes/{node}/storage/{storage}/identity",
    ),
}
_NEW_PARAMETERS: Final[Mapping[str, Mapping[tuple[str, str], frozenset[str]]]] = {
    "9.1": {
        ("POST", "/nodes/{node}/lxc"): frozenset({"entrypoint", "env"}),
        ("PUT", "/nodes/{node}/lxc/{vmid}/config"): frozenset({"entrypoint", "env"}),
    },
    "9.2": {("PUT", "/access/users/{userid}/token/{tokenid}"): frozenset({"regenerate"})},
}
_DERIVED: Final = ("9.0", "9.1")
"""Versions whose facts are the newest ones without what came later."""

# The values of these path parameters may contain slashes, so they take the rest of the path.
_REST_OF_PATH: Final = ("/content/{volume}", "/ipset/{name}/{cidr}")

_GZIP: Final = zlib.MAX_WBITS | 16
"""Makes zlib expect a gzip header; importing the gzip module takes longer than that."""

_KNOWN_PATHS: Final = 1024
"""Paths whose templates are remembered: most calls are about the same few guests and nodes."""

_COMMON: Final = "common.json.gz"
"""The facts that serve every version."""

_GUEST_AGENT_9: Final = "VM.GuestAgent."
_ONLY_IN_9: Final = frozenset({"VM.Replicate"})


@cache
def read_table(name: str) -> Any:
    """One packed table of the package."""
    packed = pkgutil.get_data("pve_schema", f"data/{name}")
    assert packed is not None, "the package is installed without its data"
    return msgspec.json.decode(zlib.decompress(packed, wbits=_GZIP))


def _nearest(version: str) -> str:
    numbers = [int(part) for part in version.strip().split(".")[:2] if part.isdecimal()]
    if not numbers:
        return NEWEST
    if numbers < [9]:
        return OLDEST
    return next((derived for derived in _DERIVED if numbers <= _numbers(derived)), NEWEST)


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


def facts(version: str) -> Facts:
    """The facts closest to a version such as "9.1.8"; an unknown version gets the newest."""
    return _facts(_nearest(version))


@cache
def _facts(table: str) -> Facts:
    return Facts(table)


@dataclass(frozen=True, slots=True)
class Match:
    """An endpoint that a concrete path leads to."""

    endpoint: Endpoint
    values: dict[str, str]
    """The path parameters, by name."""


class Endpoint:
    """One method of one path."""

    def __init__(self, method: str, template: str, entry: Mapping[str, Any], table: Facts) -> None:
        self.method = method
        self.template = template
        self.name: str = entry["name"]
        self.protected = bool(entry.get("protected"))
        self.proxyto: str | None = entry.get("proxyto")
        self.allow_token = bool(entry.get("allowtoken", 1))
        self._entry = entry
        self._facts = table

    @cached_property
    def parameters(self) -> Mapping[str, Mapping[str, Any]]:
        """The schema of every parameter, those of the path included. Numbered ones are spelled `net[n]`."""
        resolved: Mapping[str, Mapping[str, Any]] = self._facts.resolve(self._entry.get("params", {}))
        if "cdrom" in resolved and "ide[n]" in resolved:  # the API dump names this format without describing it
            return {**resolved, "cdrom": {**resolved["cdrom"], "format": resolved["ide[n]"]["format"]}}
        return resolved

    @cached_property
    def permission(self) -> Mapping[str, Any] | None:
        """Who may call it; None means root@pam alone."""
        resolved: Mapping[str, Any] | None = self._facts.resolve(self._entry["perm"])
        return resolved

    @cached_property
    def returns(self) -> Mapping[str, Any]:
        resolved: Mapping[str, Any] = self._facts.resolve(self._entry.get("returns", {}))
        return resolved

    @cached_property
    def worker_types(self) -> tuple[str, ...]:
        """The types of task it may start; empty if it starts none."""
        return tuple(read_table(_COMMON)["workers"].get(f"{self.method} {self.template}", ()))

    @cached_property
    def _properties(self) -> PropertySet:
        return PropertySet(
            self.parameters,
            formats=self._facts.formats,
            last_index=read_table(_COMMON)["last_index"],
            allows_more=bool(self._entry.get("additionalProperties")),
        )

    def check(self, params: Mapping[str, object]) -> dict[str, str]:
        """PVE's `errors` map for these parameters, those of the path included; {} if all are fine.

        Values are form texts or JSON values. What the method's own code would refuse later does not show here.
        """
        return self._properties.check(params)

    def schema_of(self, name: str) -> Mapping[str, Any] | None:
        """The schema of one parameter, also of a numbered one such as scsi3; None if there is no such parameter."""
        return self._properties.schema_of(name)

    def parts_of(self, name: str, text: str) -> dict[str, str] | None:
        """A property string such as that of scsi0, parsed as PVE does; None if PVE could not."""
        return self._properties.parts_of(name, text)

    def keys_of(self, name: str) -> Mapping[str, Mapping[str, Any]] | None:
        """The schema of every key of a property string; None if the parameter is none."""
        return self._properties.keys_of(name)

    def __repr__(self) -> str:
        return f"<Endpoint {self.method} {self.template}>"


class Branch:
    """One level of the tree of paths."""

    __slots__ = ("literals", "placeholder", "placeholder_name", "takes_rest", "template")

    def __init__(self) -> None:
        self.literals: dict[str, Branch] = {}
        self.placeholder: Branch | None = None
        self.placeholder_name = ""
        self.takes_rest = False
        self.template: str | None = None

    def grow(self, template: str) -> None:
        branch = self
        for segment in template.split("/")[1:]:
            branch = branch._child(segment) if segment else branch
        branch.template = template
        branch.takes_rest = template.endswith(_REST_OF_PATH)

    def _child(self, segment: str) -> Branch:
        if not segment.startswith("{"):
            return self.literals.setdefault(segment, Branch())
        if self.placeholder is None:
            self.placeholder = Branch()
            self.placeholder_name = segment[1:-1]
        return self.placeholder

    def find(self, path: str) -> tuple[str, dict[str, str]] | None:
        """The template that a path follows, and the values it fills in."""
        branch = self
        values: dict[str, str] = {}
        segments = [segment for segment in path.split("/") if segment]
        for position, segment in enumerate(segments):
            literal = branch.literals.get(segment)
            if literal is not None:
                branch = literal
                continue
            if branch.placeholder is None:
                return None
            name, branch = branch.placeholder_name, branch.placeholder
            if branch.takes_rest:
                values[name] = "/".join(segments[position:])
                break
            values[name] = segment
        return None if branch.template is None else (branch.template, values)


class Facts:
    """One version's table."""

    def __init__(self, version: str) -> None:
        derived = version in _DERIVED
        table = read_table(f"api-{NEWEST if derived else version}.json.gz")
        self.version: str = version
        self._later = [later for later in _NEW_PATHS if derived and _numbers(later) > _numbers(version)]
        absent = tuple(f"{path}/" for later in self._later for path in _NEW_PATHS[later])
        self._paths: dict[str, dict[str, Any]] = {
            path: methods for path, methods in table["paths"].items() if not f"{path}/".startswith(absent)
        }
        self._defs: dict[str, Any] = table["defs"]
        self._resolved: dict[str, Any] = {}
        self._endpoints: dict[tuple[str, str], Endpoint] = {}
        self._tree = Branch()
        for template in self._paths:
            self._tree.grow(template)
        self._template_of = lru_cache(maxsize=_KNOWN_PATHS)(self._tree.find)

    def find(self, method: str, path: str) -> Match | None:
        """The endpoint at a concrete, percent-decoded path such as "/nodes/pve1/qemu/100/config"."""
        matching = self._template_of(path)
        if matching is None:
            return None
        template, values = matching
        if method not in self._paths[template]:
            return None
        return Match(self.endpoint(method, template), dict(values))

    def endpoint(self, method: str, template: str) -> Endpoint:
        """The endpoint of a template such as "/nodes/{node}/qemu/{vmid}/config"; KeyError if none."""
        known = self._endpoints.get((method, template))
        if known is None:
            known = Endpoint(method, template, self._entry(method, template), self)
            self._endpoints[method, template] = known
        return known

    def _entry(self, method: str, template: str) -> dict[str, Any]:
        entry: dict[str, Any] = self._paths[template][method]
        new = {name for later in self._later for name in _NEW_PARAMETERS[later].get((method, template), ())}
        if not new:
            return entry
        return {**entry, "params": {key: value for key, value in entry["params"].items() if key not in new}}

    def endpoints(self) -> Iterator[Endpoint]:
        for template, methods in self._paths.items():
            for method in methods:
                yield self.endpoint(method, template)

    @cached_property
    def privileges(self) -> tuple[str, ...]:
        privileges = read_table(_COMMON)["privileges"]
        return tuple(sorted(self._of_this_version(privileges, holds_monitor=True)))

    @cached_property
    def roles(self) -> Mapping[str, frozenset[str]]:
        """The built-in roles and their privileges."""
        roles: dict[str, list[str]] = read_table(_COMMON)["roles"]
        return {
            name: frozenset(self._of_this_version(held, holds_monitor="VM.Migrate" in held))
            for name, held in roles.items()
        }

    @cached_property
    def formats(self) -> FormatBook:
        """The named formats that parameters refer to."""
        return FormatBook(read_table(_COMMON)["formats"], self.privileges)

    def _of_this_version(self, privileges: list[str], *, holds_monitor: bool) -> list[str]:
        """PVE 8 had VM.Monitor, part of the guest administrator's set, where PVE 9 has finer privileges."""
        if self.version != OLDEST:
            return privileges
        kept = [name for name in privileges if name not in _ONLY_IN_9 and not name.startswith(_GUEST_AGENT_9)]
        return [*kept, "VM.Monitor"] if holds_monitor else kept

    def resolve(self, node: Any) -> Any:
        """The same structure with every `{"$": name}` replaced by the definition it stands for."""
        if isinstance(node, dict):
            reference = node.get("$")
            if reference is not None:
                return self._definition(reference)
            return {key: self.resolve(value) for key, value in node.items()}
        if isinstance(node, list):
            return [self.resolve(value) for value in node]
        return node

    def _definition(self, name: str) -> Any:
        if name not in self._resolved:
            self._resolved[name] = self.resolve(self._defs[name])
        return self._resolved[name]
