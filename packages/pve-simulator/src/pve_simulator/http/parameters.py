"""Parameters of a request: from form, JSON and query to the typed values that an endpoint works with."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote_plus

import msgspec

from pve_schema.schema import Endpoint
from pve_schema.validation import text_of

_PAIR_SEPARATOR = re.compile("[&;]")
_NUMBERED = re.compile(r"^(.*?)\d+$")
_BYTE = re.compile(r"\(byte (\d+)\)")
_BLANKS = re.compile("[\t\n\v\f\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+")
"""Perl's whitespace, which differs from Python's."""


_PERL_LOCATION = " at /usr/share/perl5/PVE/APIServer/AnyEvent.pm line {}."
_NO_VALUE = "malformed JSON string, neither tag, array, object, number, string or atom"
_QUOTE = "'\"' expected"
_COMPLAINTS = {
    "object keys must be strings": _QUOTE,
    "trailing comma in object": _QUOTE,
    "expected ':'": "':' expected",
    "expected ',' or '}'": ", or } expected while parsing object/hash",
    "expected ',' or ']'": ", or ] expected while parsing array",
    "trailing characters": "garbage after JSON object",
}
_ATOMS = {"n": "'null' expected", "t": "'true' expected", "f": "'false' expected"}
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*(?P<end>"?)|[{}\[\]:,]|[^\s{}\[\]:,"]+', re.DOTALL)


class MalformedBody(Exception):
    """A body that is not valid JSON."""


def parse_form(text: str) -> dict[str, Any]:
    """Pairs of a form or query; a repeated key becomes a list.

    As with Perl's split, a value ends at the next unencoded `=`, and a key without `=` has no value: None.
    """
    pairs: dict[str, Any] = {}
    for pair in _PAIR_SEPARATOR.split(text):
        if not pair:
            continue
        raw_key, *raw_values = pair.split("=", 2)
        key = unquote_plus(raw_key)
        if not raw_values:
            pairs.setdefault(key, None)
            continue
        value = unquote_plus(raw_values[0])
        if pairs.get(key) is None:
            pairs[key] = value
        elif isinstance(pairs[key], list):
            pairs[key].append(value)
        else:
            pairs[key] = [pairs[key], value]
    return pairs


def split_list(text: Any) -> list[str]:
    """The elements of a `-list` value as Perl's split finds them: by NUL if there is one, else by , ; and blanks."""
    value = "" if text is None else str(text)
    elements = value.split("\0") if "\0" in value else _BLANKS.split(re.sub("[,;]", " ", value))
    while elements and not elements[-1]:
        elements.pop()
    return elements[1:] if elements and not elements[0] and "\0" not in value else elements


def split_pairs(text: str) -> dict[str, str]:
    """The pairs of a property string such as `a=1,b=2`, without its default key."""
    return {key: value for key, separator, value in (part.partition("=") for part in text.split(",")) if separator}


def parse_json(body: bytes) -> dict[str, Any]:
    """The object of a JSON body."""
    try:
        decoded = msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        raise MalformedBody(_complaint_of_perl(body, str(error))) from error
    if decoded is None:
        return {}
    if isinstance(decoded, list):
        raise MalformedBody(f"Not a HASH reference{_PERL_LOCATION.format(1113)}")
    if not isinstance(decoded, dict):
        complaint = f'Can\'t use string ("{text_of(decoded)}") as a HASH ref while "strict refs" in use'
        raise MalformedBody(complaint + _PERL_LOCATION.format(1113))
    return decoded


def _complaint_of_perl(body: bytes, message: str) -> str:
    """The error of Perl's JSON parser at the position where ours failed."""
    match = _BYTE.search(message)
    offset = int(match[1]) - ("trailing characters" in message) if match else len(body)
    for length in (4, 5) if "invalid character" in message else ():  # of literals; it reads them to the end
        offset -= length if offset >= length and chr(body[offset - length]) in _ATOMS else 0
    rest = body[offset:].decode("utf-8", "replace") or "(end of string)"
    missing = next((text for part, text in _COMPLAINTS.items() if part in message), None)
    if missing is None:
        missing = _ATOMS.get(rest[0], _NO_VALUE) if match else _missing_at_the_end(body)
    shown = f"{rest[:20]}..." if len(rest) > 20 else rest
    return f'{missing}, at character offset {offset} (before "{shown}")' + _PERL_LOCATION.format(1092)


def _missing_at_the_end(body: bytes) -> str:
    inside, before, last = [b""], b"", b""
    for token in _TOKEN.finditer(body):
        before, last = last, token[0]
        if token["end"] == b"":
            return "unexpected end of string while parsing JSON string"
        if last in (b"{", b"["):
            inside.append(last)
        elif last in (b"}", b"]"):
            inside.pop()
    if inside[-1] == b"" or last in (b":", b"["):
        return _NO_VALUE
    if inside[-1] == b"[":
        return _NO_VALUE if last == b"," else _COMPLAINTS["expected ',' or ']'"]
    if last in (b"{", b","):
        return _QUOTE
    return _COMPLAINTS["expected ':'" if before in (b"{", b",") else "expected ',' or '}'"]


def convert_values(endpoint: Endpoint, params: Mapping[str, Any]) -> dict[str, Any]:
    """Convert validated values to the schema's types."""
    return {name: _convert_value(_schema_of(endpoint, name), value) for name, value in params.items()}


def _schema_of(endpoint: Endpoint, name: str) -> Mapping[str, Any]:
    schema = endpoint.parameters.get(name)
    if schema is None:
        match = _NUMBERED.match(name)
        schema = endpoint.parameters.get(f"{match[1]}[n]") if match else None
    return schema or {}


def _convert_value(schema: Mapping[str, Any], value: Any) -> Any:
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
            return ",".join(str(part) for part in value)  # as PVE does with the elements of a -list format
        case "string":
            return str(int(value)) if isinstance(value, bool) else str(value)
        case _:
            return value
