"""Requests in wire form: the exact texts that PVE receives, and what it reads from them.

A call is converted once, before it is judged. All checks see the converted form, and the client sends the converted
form, so what was approved is what PVE receives.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pve_schema.formats import split_list
from pve_schema.schema import Endpoint, Facts, Match
from pve_schema.validation import text_of
from quorate.hints import Advice, tools
from quorate.problems import BadArgument, PermissionMissing

if TYPE_CHECKING:
    from quorate.pve.cluster import Cluster

Text = str | tuple[str, ...]
"""One text, or several for a repeated key: what PVE reads for a parameter."""

LOCALHOST: Final = "localhost"

_HAS_CDROM: Final = re.compile(r"/nodes/{node}/qemu(/{vmid}/config)?")
_CDROM, _CDROM_DRIVE = "cdrom", "ide2"
_OPTION_LISTS: Final = ("delete", "revert")

_EXOTIC_SEPARATOR: Final = re.compile(r"[^\S ]|\0")
"""Every blank except the plain space, and NUL."""
_EXACT: Final = {
    "integer": re.compile(r"[+-]?[0-9]+"),
    "number": re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"),
    "boolean": re.compile(r"[01]"),
}
_ON: Final = ("1", "on", "yes", "true")


# -- encoding ----------------------------------------------------------------------------------------------------------


def encode(params: Mapping[str, Any], endpoint: Endpoint | None = None) -> dict[str, Text]:
    """The texts that are sent for these parameters. What is already in wire form stays as it is.

    Nulls and empty lists are not sent; booleans become 1 and 0; the elements of a list are joined where PVE would join
    them, and become a repeated key otherwise. With the endpoint, aliases are expanded.
    """
    texts: dict[str, Text] = {}
    for name, value in params.items():
        many = isinstance(value, (list, tuple))
        parts = [_text(name, part) for part in (value if many else (value,)) if part is not None]
        if not parts:
            continue
        if _is_list(endpoint, name):
            texts[name] = _list_text(",".join(parts))
        else:
            texts[name] = parts[0] if len(parts) == 1 else tuple(parts)
    return _without_aliases(texts, endpoint)


def pairs(params: Mapping[str, Text]) -> list[tuple[str, str]]:
    """The pairs of the form or query, in order."""
    return [(name, text) for name, value in params.items() for text in ((value,) if isinstance(value, str) else value)]


def _text(name: str, value: object) -> str:
    if isinstance(value, (list, tuple, set, dict)):
        raise BadArgument(
            f"{name} is nested too deep for PVE",
            next_step="Give a string, a number, true or false, or a list of these",
        )
    text = text_of(value)
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise BadArgument(f"{name} is not valid text", why="It contains an invalid Unicode surrogate") from None
    return text


def _is_list(endpoint: Endpoint | None, name: str) -> bool:
    schema = (endpoint.schema_of(name) if endpoint else None) or {}
    return schema.get("type") == "string" and str(schema.get("format", "")).endswith("-list")


def _list_text(text: str) -> str:
    """The list as it is; if line feeds, NUL or exotic blanks separate it, with unambiguous commas."""
    if not _EXOTIC_SEPARATOR.search(text):
        return text
    elements = split_list(text)
    return ",".join(elements) if all(split_list(element) == [element] for element in elements) else text


def _without_aliases(params: dict[str, Text], endpoint: Endpoint | None) -> dict[str, Text]:
    """`cdrom` is PVE's old name of the drive ide2, as an option and in the lists of options."""
    if endpoint is None or _HAS_CDROM.fullmatch(endpoint.template) is None or endpoint.method == "GET":
        return params
    for name in _OPTION_LISTS:
        listed = params.get(name)
        if isinstance(listed, str) and _CDROM in (elements := split_list(listed)):
            params[name] = ",".join(_CDROM_DRIVE if element == _CDROM else element for element in elements)
    drive = params.pop(_CDROM, None)
    if drive is None:
        return params
    if _CDROM_DRIVE in params:
        raise BadArgument(f"{_CDROM} and {_CDROM_DRIVE} are the same drive", next_step="Give one of them")
    if isinstance(drive, str) and "media=" not in drive:
        drive = f"{drive},media=cdrom"
    return {**params, _CDROM_DRIVE: drive}


# -- addressing --------------------------------------------------------------------------------------------------------


async def address(cluster: Cluster, path: str) -> str:
    """The path with the real name of the node: for PVE, `localhost` is whichever node answers."""
    if not path.startswith("/nodes/"):
        return path
    name, slash, rest = path.removeprefix("/nodes/").partition("/")
    if name == LOCALHOST:
        name = await _answering_node(cluster.original)
    await cluster.original.client.require_node(name)
    return f"/nodes/{name}{slash}{rest}"


async def _answering_node(cluster: Cluster) -> str:
    try:
        rows = await cluster.get("/cluster/status")
    except PermissionMissing:
        rows = await cluster.get("/nodes")
    names = [str(row.get("name") or row["node"]) for row in rows if row.get("type") == "node"]
    local = names if len(names) == 1 else [str(row["name"]) for row in rows if row.get("local")]
    if not local:
        raise BadArgument(
            f"It is not known which node {LOCALHOST} is", next_step=Advice("Name the node", tools.node_list)
        )
    return local[0]


# -- reading -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Request:
    """A request as PVE reads it: its endpoint and parameters, with PVE's defaults."""

    match: Match
    params: Mapping[str, Text]

    @property
    def method(self) -> str:
        return self.match.endpoint.method

    @property
    def template(self) -> str:
        return self.match.endpoint.template

    @property
    def values(self) -> dict[str, Text]:
        """All parameters, including those of the path."""
        return {**self.match.values, **self.params}

    def has(self, name: str) -> bool:
        return name in self.params or name in self.match.values

    def text(self, name: str) -> str:
        """The value that PVE uses: what was sent, otherwise its default, otherwise nothing."""
        value = self.params.get(name, self.match.values.get(name))
        if value is None:
            return text_of((self.match.endpoint.schema_of(name) or {}).get("default", ""))
        return value if isinstance(value, str) else ",".join(value)

    def is_on(self, name: str) -> bool:
        """Whether PVE treats the parameter as 1. Any value that is not exactly 0 counts as on."""
        return self.text(name) != "0" if self.has(name) else self.text(name).lower() in _ON

    def elements(self, name: str) -> tuple[str, ...]:
        """The elements of a list parameter; a single value is a list of one."""
        value = self.params.get(name, self.match.values.get(name, ()))
        if isinstance(value, tuple):
            return value
        return tuple(split_list(value)) if _is_list(self.match.endpoint, name) else (value,)

    def parts(self, name: str) -> dict[str, str] | None:
        """A property string parsed; None if it cannot be."""
        return self.match.endpoint.parts_of(name, self.text(name))

    @property
    def doubtful(self) -> tuple[str, ...]:
        """The parameters that PVE might read differently than we do."""
        return tuple(name for name, value in self.params.items() if not self._is_plain(name, value))

    def _is_plain(self, name: str, value: Text) -> bool:
        schema = self.match.endpoint.schema_of(name) or {}
        if isinstance(value, tuple):
            return schema.get("type") == "array" and all("\0" not in part for part in value)
        if "\0" in value:
            return False
        exact = _EXACT.get(schema.get("type", ""))
        return exact is None or exact.fullmatch(value) is not None


def read(facts: Facts | None, method: str, path: str, params: Mapping[str, Any]) -> Request | None:
    """The request that these form, None if there is no such endpoint."""
    match = facts.find(method, path) if facts else None
    return None if match is None else Request(match, encode(params, match.endpoint))
