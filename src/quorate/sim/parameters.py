"""Parameters of a request: from form, JSON and query to the typed values that an endpoint works with."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote_plus

import msgspec

from quorate.pve.schema import Endpoint

_PAIR_SEPARATOR = re.compile("[&;]")
_NUMBERED = re.compile(r"^(.*?)\d+$")
_BYTE = re.compile(r"\(byte (\d+)\)")


class MalformedBody(Exception):
    """A JSON body that is none."""


def parse_form(text: str) -> dict[str, Any]:
    """Pairs of a form or query; a repeated key becomes a list."""
    found: dict[str, Any] = {}
    for pair in _PAIR_SEPARATOR.split(text):
        if not pair:
            continue
        raw_key, _, raw_value = pair.partition("=")
        key, value = unquote_plus(raw_key), unquote_plus(raw_value)
        if key not in found:
            found[key] = value
        elif isinstance(found[key], list):
            found[key].append(value)
        else:
            found[key] = [found[key], value]
    return found


def parse_json(body: bytes) -> dict[str, Any]:
    """The object of a JSON body."""
    try:
        decoded = msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        raise MalformedBody(_complaint_of_perl(body, str(error))) from error
    if not isinstance(decoded, dict):
        raise MalformedBody("Not a HASH reference")
    return decoded


def _complaint_of_perl(body: bytes, told: str) -> str:
    """What Perl's JSON reader says about the place where our own one gave up."""
    match = _BYTE.search(told)
    offset = int(match[1]) if match else len(body)
    rest = body[offset : offset + 30].decode("utf-8", "replace") or "(end of string)"
    return (
        "malformed JSON string, neither tag, array, object, number, string or atom,"
        f' at character offset {offset} (before "{rest}")'
    )


def typed(endpoint: Endpoint, params: Mapping[str, Any]) -> dict[str, Any]:
    """The values as what the schema says they are; they have passed its checks before."""
    return {name: _typed_value(_schema_of(endpoint, name), value) for name, value in params.items()}


def _schema_of(endpoint: Endpoint, name: str) -> Mapping[str, Any]:
    schema = endpoint.parameters.get(name)
    if schema is None:
        match = _NUMBERED.match(name)
        schema = endpoint.parameters.get(f"{match[1]}[n]") if match else None
    return schema or {}


def _typed_value(schema: Mapping[str, Any], value: Any) -> Any:
    match schema.get("type"):
        case "integer":
            return int(value)
        case "number":
            return float(value)
        case "boolean":
            return value if isinstance(value, bool) else str(value) == "1"
        case "array":
            return value if isinstance(value, list) else [value]
        case "string" if isinstance(value, list):
            return ",".join(str(part) for part in value)  # what PVE does with the parts of a -list format
        case "string":
            return _as_text(value)
        case _:
            return value


def _as_text(value: Any) -> str:
    if isinstance(value, bool):
        return "1" if value else "0"
    return str(value)
