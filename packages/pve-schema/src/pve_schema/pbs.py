"""The facts of the Proxmox Backup Server API: its endpoints, what they take, who may call them, and its refusals.

The package has the tables of 3.4, 4.1 and 4.2. The wording of the refusals is that of a 4.1.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Final

from pve_schema.schema import Branch, read_table

VERSIONS: Final = ("3.4", "4.1", "4.2")
NEWEST: Final = VERSIONS[-1]

_ROLES: Final = "pbs-roles.json.gz"
_BACKUP_PROTOCOL: Final = "/_upgrade_/"
_TRUE: Final = frozenset({"1", "on", "yes", "true"})
_FALSE: Final = frozenset({"0", "off", "no", "false"})
_POSIX_CLASSES: Final = {"[:^cntrl:]": r"^\x00-\x1f\x7f", "[:cntrl:]": r"\x00-\x1f\x7f"}
"""Their names stand within brackets, which Python would read as a set of letters."""


def pbs_facts(version: str) -> BackupFacts:
    """The facts closest to a version such as "4.1.1"; an unknown version gets the newest."""
    numbers = tuple(int(part) for part in version.strip().split(".")[:2] if part.isdecimal())
    fitting = [known for known in VERSIONS if tuple(map(int, known.split("."))) <= numbers]
    return _facts((fitting or VERSIONS[:1])[-1] if numbers else NEWEST)


@cache
def _facts(version: str) -> BackupFacts:
    return BackupFacts(version)


@cache
def pbs_roles() -> Mapping[str, frozenset[str]]:
    """The roles and their privileges."""
    return {name: frozenset(privileges) for name, privileges in read_table(_ROLES)["roles"].items()}


@dataclass(frozen=True, slots=True)
class BackupMatch:
    """An endpoint that a concrete path leads to."""

    endpoint: BackupEndpoint
    values: dict[str, str]
    """The path parameters, by name."""


class BackupEndpoint:
    """One method of one path."""

    def __init__(self, method: str, template: str, entry: Mapping[str, Any], table: BackupFacts) -> None:
        self.method = method
        self.template = template
        self.starts_task = "worker" in entry
        self.is_raw = bool(entry.get("raw"))
        self._entry = entry
        self._facts = table

    @cached_property
    def parameters(self) -> Mapping[str, Mapping[str, Any]]:
        """The schema of every parameter, those of the path included."""
        resolved: Mapping[str, Mapping[str, Any]] = self._facts.resolve(self._entry.get("params", {}))
        return resolved

    @cached_property
    def permission(self) -> Mapping[str, Any]:
        """`user` (world, all or root@pam) or `check` with an expression; `incode` if its code checks more."""
        resolved: Mapping[str, Any] = self._facts.resolve(self._entry.get("perm") or {"user": "root@pam"})
        return resolved

    def check(self, values: Mapping[str, object], *, is_json: bool = False) -> dict[str, str]:
        """The errors of these parameters, those of the path included, by name and in the order of the server.

        Values of a form are texts or lists of texts. JSON values are typed; then the wording differs a little.
        """
        dot = "" if is_json else "."
        errors: dict[str, str] = {}
        for name, value in values.items():
            schema = self.parameters.get(name)
            if schema is not None:
                problem = _problem(value, schema, is_json=is_json)
            else:
                problem = None if self._entry.get("additional") else f"schema does not allow additional properties{dot}"
            if problem is not None:
                errors[name] = problem
        if not errors:
            kind = "property" if is_json else "parameter"
            missing = sorted(name for name, schema in self.parameters.items() if not schema.get("optional"))
            errors = {name: f"{kind} is missing and it is not optional{dot}" for name in missing if name not in values}
        return errors

    def convert(self, values: Mapping[str, object]) -> dict[str, Any]:
        """Checked values with their types: integers, booleans and lists."""
        return {
            name: _convert_value(value, self.parameters[name]) if name in self.parameters else value
            for name, value in values.items()
        }

    def __repr__(self) -> str:
        return f"<BackupEndpoint {self.method} {self.template}>"


class BackupFacts:
    """One version's table."""

    def __init__(self, version: str) -> None:
        table = read_table(f"pbs-api-{version}.json.gz")
        self.version = version
        self._paths: dict[str, dict[str, Any]] = {
            path: methods for path, methods in table["paths"].items() if _BACKUP_PROTOCOL not in path
        }
        self._defs: dict[str, Any] = table["defs"]
        self._tree = Branch()
        for template in self._paths:
            self._tree.grow(template)

    def find(self, method: str, path: str) -> BackupMatch | None:
        """The endpoint at a concrete, percent-decoded path such as "/admin/datastore/store1/groups"."""
        match = self._tree.find(path) if path != "/" else ("/", {})
        if match is None or method not in self._paths.get(match[0], {}):
            return None
        template, values = match
        return BackupMatch(self.endpoint(method, template), dict(values))

    def endpoint(self, method: str, template: str) -> BackupEndpoint:
        """The endpoint of a template such as "/config/verify/{id}"; KeyError if none."""
        return BackupEndpoint(method, template, self._paths[template][method], self)

    def endpoints(self) -> Iterator[BackupEndpoint]:
        for template, methods in self._paths.items():
            for method in methods:
                yield self.endpoint(method, template)

    def children(self, template: str) -> list[str]:
        """The names one level below a path, as its index lists them."""
        prefix = template.rstrip("/") + "/"
        below = {path[len(prefix) :].partition("/")[0] for path in self._paths if path.startswith(prefix)}
        return sorted(name for name in below if name and not name.startswith("{"))

    def resolve(self, node: Any) -> Any:
        """The same structure with every `{"$": name}` replaced by the definition it stands for."""
        if isinstance(node, dict):
            reference = node.get("$")
            if reference is not None:
                return self.resolve(self._defs[reference])
            return {key: self.resolve(value) for key, value in node.items()}
        if isinstance(node, list):
            return [self.resolve(value) for value in node]
        return node


def _problem(value: object, schema: Mapping[str, Any], *, is_json: bool) -> str | None:
    kind = schema.get("type", "string")
    if kind == "array":
        items = value if isinstance(value, list) else [value]
        item_schema = schema.get("items", {})
        return next(filter(None, (_problem(item, item_schema, is_json=is_json) for item in items)), None)
    if isinstance(value, list):
        return "duplicate parameter."
    if kind == "boolean":
        return _boolean_problem(value, is_json=is_json)
    if kind in ("integer", "number"):
        return _number_problem(value, schema, is_json=is_json)
    if not isinstance(value, str):
        return f"Expected {kind} value."
    return _text_problem(value, schema)


def _boolean_problem(value: object, *, is_json: bool) -> str | None:
    if is_json:
        return None if isinstance(value, bool) else "Expected boolean value."
    return None if str(value).lower() in _TRUE | _FALSE else "Unable to parse boolean option."


def _number_problem(value: object, schema: Mapping[str, Any], *, is_json: bool) -> str | None:
    if is_json and (isinstance(value, bool) or not isinstance(value, int)):
        return "Expected integer value."
    if not is_json and not re.fullmatch(r"[+-]?\d+", str(value)):
        return "invalid digit found in string"
    number = int(str(value))
    for bound, word in (("minimum", "minimum"), ("maximum", "maximum")):
        limit = schema.get(bound)
        if limit is not None and (number < limit if bound == "minimum" else number > limit):
            return f"value must have a {word} value of {limit} (got {number})"
    return None


def _text_problem(text: str, schema: Mapping[str, Any]) -> str | None:
    if len(text) < schema.get("minLength", 0):
        return f"value must be at least {schema['minLength']} characters long"
    if len(text) > schema.get("maxLength", len(text)):
        return f"value may only be {schema['maxLength']} characters long"
    if "enum" in schema and text not in schema["enum"]:
        return f"value '{text}' is not defined in the enumeration."
    pattern = schema.get("pattern")
    if pattern is not None and not _pattern(pattern).search(text):
        return "value does not match the regex pattern"
    return None


@cache
def _pattern(text: str) -> re.Pattern[str]:
    for name, range_ in _POSIX_CLASSES.items():
        text = text.replace(name, range_)
    return re.compile(text)


def _convert_value(value: object, schema: Mapping[str, Any]) -> Any:
    kind = schema.get("type", "string")
    if kind == "array":
        items = value if isinstance(value, list) else [value]
        return [_convert_value(item, schema.get("items", {})) for item in items]
    if kind == "boolean" and not isinstance(value, bool):
        return str(value).lower() in _TRUE
    if kind in ("integer", "number") and not isinstance(value, int):
        return int(str(value))
    return value
