"""PVE's parameter checks, reproduced: the same verdict in the same words.

`PropertySet.check` takes the values of a call as form texts or JSON values and returns the `errors` map of
PVE's answer. Within one value the order is type, format, pattern, length, range, enumeration, and the first
failure is the one reported.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from pve_schema.formats import FormatBook, PropertyCheck, perl_regex

Schema = Mapping[str, Any]

MISSING: Final = "property is missing and it is not optional"
UNKNOWN: Final = "property is not defined in schema and the schema does not allow additional properties"

_INTEGER: Final = re.compile(r"^[+-]?\d+$")
_NUMBER: Final = re.compile(r"^[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?$")
_NUMBERED: Final = re.compile(r"([a-z_-]+)(0|[1-9][0-9]{0,3})")
_KEY_AND_VALUE: Final = re.compile(r"^([^=]+)=(.+)$")
_BOOLEAN_WORDS: Final = {
    "1": "1",
    "on": "1",
    "yes": "1",
    "true": "1",
    "0": "0",
    "off": "0",
    "no": "0",
    "false": "0",
}

# Numbered options outside the guests' configuration: the highest index of each.
_OTHER_LAST_INDEX: Final = {"link": 7, "acmedomain": 5}

_PERL_INTEGER_BITS: Final = 64

# Checks one text; the name is for error messages.
TextCheck = Callable[[str, str], str | None]


class Errors(dict[str, str]):
    """Rejections by parameter. PVE joins two for the same parameter with a backslash and an n."""

    def add(self, name: str, text: str) -> None:
        name = name or "_root"  # a parameter without a name
        self[name] = f"{self[name]}\\n{text}" if name in self else text


class PropertySet:
    """The parameters of an endpoint, or the keys of a property string such as `net0`."""

    def __init__(
        self,
        schemas: Mapping[str, Schema],
        *,
        formats: FormatBook,
        last_index: Mapping[str, int] | None = None,
        allows_more: bool = False,
    ) -> None:
        self._schemas = schemas
        self._formats = formats
        self._last_index = {**_OTHER_LAST_INDEX, **(last_index or {})}
        self._allows_more = allows_more
        self._required = tuple(name for name, schema in schemas.items() if not _is_optional(name, schema))
        self._rules: dict[str, Rule] = {}

    def check(self, values: Mapping[str, object]) -> dict[str, str]:
        errors = Errors()
        self.check_into(errors, values, "")
        return dict(errors)

    def check_into(self, errors: Errors, values: Mapping[str, object], prefix: str) -> None:
        for name in self._required:
            if values.get(name) is None:
                errors.add(prefix + name, MISSING)
        for name, value in values.items():
            rule = self._rule(name)
            if rule is not None:
                if value is not None:
                    rule.check_into(errors, value, prefix + name, values)
                if rule.requires is not None and values.get(rule.requires) is None:
                    errors.add(prefix + rule.requires, f"missing property required by '{prefix + name}'")
            elif not self._allows_more:
                errors.add(prefix + name, UNKNOWN)

    def _rule(self, name: str) -> Rule | None:
        known = self._rules.get(name)
        if known is not None:
            return known
        schema = self.schema_of(name)
        # Unknown names are not cached: callers could fill the memory with them.
        return None if schema is None else self._rules.setdefault(name, Rule(schema, self._formats))

    def schema_of(self, name: str) -> Schema | None:
        """The schema of a parameter; `scsi3` follows the one spelled `scsi[n]`. None if there is no such parameter."""
        if name.endswith("[n]"):
            return None
        schema = self._schemas.get(name)
        numbered = _NUMBERED.fullmatch(name) if schema is None else None
        if numbered is None or int(numbered[2]) > self._last_index.get(numbered[1], -1):
            return schema
        return self._schemas.get(f"{numbered[1]}[n]")

    def parts_of(self, name: str, text: str) -> dict[str, str] | None:
        """A property string parsed as PVE does: aliases expanded, the default key named. None if PVE could not."""
        schemas = self.keys_of(name)
        try:
            return None if schemas is None else PropertyString(schemas, self._formats).parse(text)
        except _UnreadableError:
            return None

    def keys_of(self, name: str) -> Mapping[str, Schema] | None:
        """The keys of a property string, or of each in an array; None if the parameter is something else."""
        schema = self.schema_of(name) or {}
        declared = schema.get("format") or (schema.get("items") or {}).get("format")
        properties = self._formats.properties(declared) if isinstance(declared, str) else declared
        return properties if isinstance(properties, Mapping) else None


class Rule:
    """The check of one parameter's value."""

    __slots__ = ("_alternatives", "_format", "_items", "_joins_lists", "_schema", "_type", "requires")

    def __init__(self, schema: Schema, formats: FormatBook) -> None:
        self._schema = schema
        self._type: str = schema.get("type", "")
        self.requires: str | None = schema.get("requires")
        self._format = _text_check(schema.get("format"), formats)
        self._joins_lists = self._type == "string" and str(schema.get("format", "")).endswith("-list")
        self._items = Rule(schema["items"], formats) if "items" in schema else None
        self._alternatives = tuple(
            (alternative.get("instance-types"), Rule(alternative, formats)) for alternative in schema.get("oneOf", ())
        )

    def check_into(self, errors: Errors, value: object, name: str, siblings: Mapping[str, object]) -> None:
        if self._alternatives:
            self._check_alternatives(errors, value, name, siblings)
            return
        value = self._normalize(value)
        if self._type == "array":
            self._check_array(errors, value, name)
            return
        rejection = self._rejection(value, name)
        if rejection is not None:
            errors.add(name, rejection)

    def _check_alternatives(self, errors: Errors, value: object, name: str, siblings: Mapping[str, object]) -> None:
        """One of the alternatives must accept the value; the type of the object narrows them down."""
        instance_type = siblings.get(self._schema.get("type-property", ""))
        rules = [rule for types, rule in self._alternatives if types is None or instance_type in types]
        verdicts = []
        for rule in rules or [rule for _, rule in self._alternatives]:
            verdict = Errors()
            rule.check_into(verdict, value, name, siblings)
            verdicts.append(verdict)
        if all(verdicts):
            for key, text in verdicts[0].items():
                errors.add(key, text)

    def _normalize(self, value: object) -> object:
        """Old clients send a list as one text or an array as a single value; both are accepted."""
        if isinstance(value, (list, tuple)):
            return ",".join(map(text_of, value)) if self._joins_lists and value else value
        if self._type == "array" and not isinstance(value, (bool, dict)) and text_of(value) not in ("", "0"):
            return [value]
        return value

    def _check_array(self, errors: Errors, value: object, name: str) -> None:
        if not isinstance(value, (list, tuple)):
            errors.add(name, "type check ('array') failed")
        elif self._items is not None:
            for position, element in enumerate(value):
                if element is None:
                    errors.add(f"{name}[{position}]", MISSING)
                else:
                    self._items.check_into(errors, element, f"{name}[{position}]", {})

    def _rejection(self, value: object, name: str) -> str | None:
        if isinstance(value, bool):
            return None if self._type in ("boolean", "") else self._wrong_type("JSON::PP::Boolean")
        if isinstance(value, (list, tuple, dict)):
            return self._wrong_type("HASH" if isinstance(value, dict) else "ARRAY") if self._type else None
        text = text_of(value)
        if not _has_type(text, self._type):
            return self._wrong_type(f"'{text}'")
        if self._format is not None:
            rejection = self._format(text, name)
            if rejection is not None:
                return f"invalid format - {rejection}"
        return _constraint_rejection(text, self._schema)

    def _wrong_type(self, actual: str) -> str:
        return f"type check ('{self._type}') failed - got {actual}"


def _is_optional(name: str, schema: Schema) -> bool:
    """Numbered options and aliases are never required."""
    if schema.get("optional") or "alias" in schema or name.endswith("[n]"):
        return True
    return any(alternative.get("optional") for alternative in schema.get("oneOf", ()))


def text_of(value: object) -> str:
    """A scalar the way Perl prints it."""
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, int) and value.bit_length() > _PERL_INTEGER_BITS:
        return _double_text(value)
    if isinstance(value, float):
        return format(value, ".15g")
    return str(value)


def _double_text(number: int) -> str:
    """Integers beyond 64 bits become floating point numbers in Perl."""
    try:
        return format(float(number), ".15g")
    except OverflowError:
        return "Inf" if number > 0 else "-Inf"


def _has_type(text: str, expected: str) -> bool:
    if expected == "boolean":
        return text in ("0", "1")
    if expected == "integer":
        return _INTEGER.search(text) is not None
    if expected == "number":
        return _NUMBER.search(text) is not None
    return True


def _constraint_rejection(text: str, schema: Schema) -> str | None:
    """The first of pattern, length, range and enumeration that the text breaks."""
    pattern = schema.get("pattern")
    if pattern is not None:
        regex = perl_regex(pattern)
        if regex is not None and regex.search(text) is None:
            return "value does not match the regex pattern"
    if "maxLength" in schema and len(text) > schema["maxLength"]:
        return f"value may only be {schema['maxLength']} characters long"
    if "minLength" in schema and len(text) < schema["minLength"]:
        return f"value must be at least {schema['minLength']} characters long"
    return _range_rejection(text, schema) or _enumeration_rejection(text, schema.get("enum"))


def _range_rejection(text: str, schema: Schema) -> str | None:
    if ("maximum" not in schema and "minimum" not in schema) or _NUMBER.search(text) is None:
        return None
    number = float(text)
    if "maximum" in schema and number > float(schema["maximum"]):
        return f"value must have a maximum value of {text_of(schema['maximum'])}"
    if "minimum" in schema and number < float(schema["minimum"]):
        return f"value must have a minimum value of {text_of(schema['minimum'])}"
    return None


def _enumeration_rejection(text: str, allowed: Sequence[object] | None) -> str | None:
    if allowed is None:
        return None
    names = [text_of(name) for name in allowed]
    if text in names:
        return None
    return f"value '{text}' does not have a value in the enumeration '{', '.join(names)}'"


def _text_check(declared: object, formats: FormatBook) -> TextCheck | None:
    """The check for a declared format: a name, or the sub-schema of a property string."""
    if isinstance(declared, Mapping):
        return PropertyString(declared, formats).rejection
    if not isinstance(declared, str):
        return None
    properties = formats.properties(declared)
    if properties is not None:
        return PropertyString(properties, formats, formats.property_check(declared)).rejection
    check = formats.check(declared)
    return None if check is None else lambda text, _name: check(text)


class _UnreadableError(Exception):
    """A property string that cannot be parsed far enough to check its keys."""


class PropertyString:
    """A value made of `key=value` parts, such as `virtio,bridge=vmbr0,tag=5`."""

    def __init__(
        self, schemas: Mapping[str, Schema], formats: FormatBook, together: PropertyCheck | None = None
    ) -> None:
        self._schemas = schemas
        self._together = together
        self._properties = PropertySet(schemas, formats=formats)
        self._default_key = next((key for key, schema in schemas.items() if schema.get("default_key")), None)

    def rejection(self, text: str, name: str) -> str | None:
        try:
            values = self.parse(text)
        except _UnreadableError as error:
            return f"{error}\n"
        errors = Errors()
        self._properties.check_into(errors, values, f"{name}.")
        if not errors:
            return None if self._together is None else self._together(values)
        return "format error\n" + "".join(f"{key}: {reason}\n" for key, reason in errors.items())

    def parse(self, text: str) -> dict[str, str]:
        values: dict[str, str] = {}
        seen_bare_value = False
        for part in text.split(","):
            if not part or part.isspace():
                continue
            if "=" in part:
                self._add_pair(values, part)
            elif seen_bare_value:
                raise _duplicate(str(self._default_key))
            else:
                seen_bare_value = True
                self._add_bare_value(values, part)
        return values

    def _add_pair(self, values: dict[str, str], part: str) -> None:
        pair = _KEY_AND_VALUE.search(part)
        if pair is None:
            raise _UnreadableError("missing key in comma-separated list property")
        key, value = pair.groups()
        if key in values:
            raise _duplicate(key)
        schema = self._schemas.get(key, {})
        if "alias" in schema:
            _note_key_alias(values, schema, key)
            key = schema["alias"]
        values[key] = self._normalize_boolean(key, value)

    def _add_bare_value(self, values: dict[str, str], part: str) -> None:
        key = self._default_key
        if key is None:
            raise _UnreadableError("value without key, but schema does not define a default key")
        if values.get(key):
            raise _duplicate(key)
        values[key] = self._normalize_boolean(key, part)

    def _normalize_boolean(self, key: str, value: str) -> str:
        """Unlike parameters, keys of a property string accept words for booleans."""
        if self._schemas.get(key, {}).get("type") != "boolean":
            return value
        return _BOOLEAN_WORDS.get(value.lower(), value)


def _note_key_alias(values: dict[str, str], schema: Schema, key: str) -> None:
    """In `virtio=<mac>` the key itself is a value: that of `model`."""
    key_alias = schema.get("keyAlias")
    if key_alias is None:
        return
    if key_alias in values:
        raise _UnreadableError(f"key alias '{key_alias}' is already defined")
    values[key_alias] = key


def _duplicate(key: str) -> _UnreadableError:
    return _UnreadableError(f"duplicate key in comma-separated list property: {key}")
