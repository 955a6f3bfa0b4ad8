"""Strict checks of a caller's arguments: size, names and types. A refusal says what is valid."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from quorate.command_secrets import HIDDEN
from quorate.hints import NAMED, Advice, ArgumentHint, CalledTool, Sentence, ToolHint
from quorate.pipeline.redaction import SECRET_KEYS
from quorate.problems import BadArgument
from quorate.suggestions import suggest


class Signature(Protocol):
    """Anything that takes arguments: an operation, or a tool composed of operations."""

    @property
    def name(self) -> str: ...

    @property
    def arguments(self) -> type[msgspec.Struct]: ...

    @property
    def inapplicable(self) -> Mapping[str, str]:
        """Arguments that others take and it does not, with the reason."""

    def schema(self) -> dict[str, Any]: ...


class WrongArguments(BadArgument):
    """The arguments do not match the schema."""


class TakenElsewhere(WrongArguments):
    """Another tool takes this value; the advice names it."""


# In addition to the names of secrets: input of commands and content of files.
_NEVER_SHOWN = SECRET_KEYS | {"env", "stdin", "content", "data", "input_data"}

LONGEST_SHOWN = 200
_DIGITS = re.compile(r"\d+")
_MISMATCH = re.compile(r"Expected `(?P<expected>[^`]+)`, got `(?P<got>[^`]+)`")
_WHERE = re.compile(r" - at `\$\.?(?P<name>[^`\[.]*)(?P<inner>[^`]*)`$")


DEEPEST = 32
"""Levels of nesting in one argument."""
MOST_VALUES = 10_000
"""Values in one argument, at all depths together."""
LONGEST_NAME = 256
"""The longest name of a tool, a prompt, an argument, or a key in an argument."""
LONGEST_TEXT = 16 * 1024
"""PVE's own longest text, the notes of a guest, has 8 Ki characters."""
_KIB, _MIB = 1024, 1024 * 1024
ROOMY = {
    **dict.fromkeys(("content", "data", "input_data", "stdin"), 12 * _MIB),
    "arguments": 12 * _MIB,  # of another operation, whose own bounds hold as well
    **dict.fromkeys(("params", "document", "script"), 512 * _KIB),
    **dict.fromkeys(("deployment_plan", "change_plan", "scaling_plan", "migration_plan"), 512 * _KIB),
    **dict.fromkeys(("command", "initial_command", "env", "settings", "extra_vars", "options"), 128 * _KIB),
}
"""Arguments that hold files, documents or programs, and the longest text allowed in each."""
FREE_TEXT = ("content", "data", "input_data", "stdin", "script", "command", "initial_command", "env", "arguments")
"""Arguments of files and programs, in which nobody looks for numbers."""
MOST_DIGITS = 100
"""The most digits of a number in other text: Python refuses to parse much longer ones, and no size or id has more."""
MOST_TEXT = 16 * _MIB
"""All texts of one call together."""
_MOST_INT = 2**63 - 1


def refuse_oversized(tool: str, given: Mapping[str, Any]) -> None:
    """Check the amount of what a caller sent, and that its texts are valid, before anything else reads it.

    Later steps may then recurse through a value, process it at length and print its numbers.
    """
    refuse_long("The name of the tool", tool, LONGEST_NAME)
    if len(given) > LONGEST_NAME:
        raise WrongArguments(
            Sentence(f"{{tool}} got {len(given)} arguments", tool=CalledTool(tool)), why=f"The limit is {LONGEST_NAME}"
        )
    whole = 0
    for name, value in given.items():
        refuse_long("The name of an argument", name, LONGEST_NAME)
        whole += _count_characters(name, value)
    if whole > MOST_TEXT:
        raise WrongArguments(
            Sentence(f"The arguments of {{tool}} have {whole} characters", tool=CalledTool(tool)),
            why=f"The limit is {MOST_TEXT}",
        )


def refuse_long(what: str, text: str, longest: int = LONGEST_TEXT) -> None:
    if len(text) > longest:
        raise WrongArguments(f"{what} is {len(text)} characters long", why=f"The limit is {longest}")


def _count_characters(argument: str, value: Any) -> int:
    """The characters in one argument, counted level by level, because the nesting may be very deep."""
    longest, texts, values = ROOMY.get(argument, LONGEST_TEXT), 0, 0
    level = [value]
    for _ in range(DEEPEST + 1):
        below: list[Any] = []
        for one in level:
            if isinstance(one, str):
                refuse_long(argument, one, longest)
                _refuse_surrogates(argument, one)
                _refuse_long_number(argument, one)
                texts += len(one)
            elif isinstance(one, Mapping):
                for key in one:
                    refuse_long(f"A key in {argument}", str(key), LONGEST_NAME)
                    _refuse_surrogates(argument, str(key))
                below.extend(one.values())
            elif isinstance(one, (list, tuple)):
                below.extend(one)
            elif isinstance(one, (int, float)):
                _refuse_odd_number(argument, one)
            values += 1
        if values + len(below) > MOST_VALUES:
            raise WrongArguments(
                f"{argument} contains more than {MOST_VALUES} values", why=f"The limit is {MOST_VALUES}"
            )
        if not below:
            return texts
        level = below
    raise WrongArguments(f"{argument} is nested more than {DEEPEST} levels deep", why=f"The limit is {DEEPEST}")


def _refuse_long_number(argument: str, text: str) -> None:
    if len(text) <= MOST_DIGITS or argument in FREE_TEXT:
        return
    if any(found.end() - found.start() > MOST_DIGITS for found in _DIGITS.finditer(text)):
        raise WrongArguments(
            f"{argument} contains a number of more than {MOST_DIGITS} digits", why="No number in PVE is that long"
        )


def _refuse_odd_number(argument: str, number: float) -> None:
    if isinstance(number, float) and not math.isfinite(number):
        raise WrongArguments(f"{argument} contains {number}, which is not a finite number")
    if isinstance(number, int) and abs(number) > _MOST_INT:
        raise WrongArguments(f"{argument} contains a number of {number.bit_length()} bits", why="The limit is 63")


def _refuse_surrogates(argument: str, text: str) -> None:
    """JSON can contain a lone surrogate, which is not valid text and cannot be sent anywhere."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise WrongArguments(f"{argument} contains an invalid Unicode surrogate") from None


def decode(operation: Signature, given: Mapping[str, Any]) -> dict[str, Any]:
    """Typed arguments with defaults filled in. `"100"` is accepted for 100, `"true"` for true."""
    _refuse_unknown(operation, given)
    try:
        decoded = msgspec.convert(dict(given), operation.arguments, strict=False)
    except msgspec.ValidationError as error:
        raise _explain(operation, given, str(error)) from None
    return {name: getattr(decoded, name) for name in operation.arguments.__struct_fields__}


def _refuse_unknown(operation: Signature, given: Mapping[str, Any]) -> None:
    known = operation.arguments.__struct_fields__
    for name in given:
        if name not in known:
            if why := operation.inapplicable.get(name):
                raise WrongArguments(
                    Sentence(
                        "`{argument}` does not apply to {tool}",
                        argument=ArgumentHint(name),
                        tool=CalledTool(operation.name),
                    ),
                    why=why,
                    next_step=Advice("Call again without `{argument}`", argument=ArgumentHint(name)),
                )
            hint = Advice(suggest(name, known, ""))
            if not str(hint) and "options" in known:
                given_so = json.dumps({name: "…"}, ensure_ascii=False)
                hint = Advice("If it is an option of PVE: {options}", options=given_so)
            raise WrongArguments(
                Sentence(f"{{tool}} has no argument {name!r}", tool=CalledTool(operation.name)),
                next_step=hint.then(_takes(operation)) if str(hint) else _takes(operation),
            )


def _takes(operation: Signature) -> Advice:
    names = operation.arguments.__struct_fields__
    listed = ", ".join(f"{{{name}}}" for name in names) or "no arguments"
    return Advice(f"It takes {listed}", **dict.fromkeys(names, NAMED))


def _explain(operation: Signature, given: Mapping[str, Any], error: str) -> WrongArguments:
    missing = re.search(r"missing required field `(?P<name>[^`]+)`", error)
    if missing:
        return WrongArguments(
            Sentence(
                "{tool} needs the argument '{missing}'",
                tool=CalledTool(operation.name),
                missing=ArgumentHint(missing["name"]),
            ),
            next_step=Advice(_describe_type(operation, missing["name"])).then(_takes(operation)),
        )
    where = _WHERE.search(error)
    name = where["name"] if where else ""
    if not name:
        return WrongArguments(
            Sentence("The arguments of {tool} are invalid", tool=CalledTool(operation.name)), why=error
        )
    shown = _show(name, given.get(name))
    elsewhere = _elsewhere(operation, given, name)
    return (TakenElsewhere if elsewhere else WrongArguments)(
        Sentence("{tool} cannot take {argument}", tool=CalledTool(operation.name), argument=ArgumentHint(name, shown))
        if shown
        else Sentence(
            "{tool} cannot take this value of {argument}", tool=CalledTool(operation.name), argument=ArgumentHint(name)
        ),
        why=_explain_inner(f"{name}{where['inner']}", error) if where and where["inner"] else None,
        next_step=elsewhere or _describe_type(operation, name, given.get(name)),
    )


def _explain_inner(where: str, error: str) -> str:
    """What is wrong inside a list or an object, worded like the other refusals."""
    found = _MISMATCH.match(error)
    if not found:
        return f"{error.partition(' - at ')[0]} at {where}".replace("`", "")
    got = "a boolean" if found["got"] == "bool" else _KINDS[_NATIVE.get(found["got"], found["got"])]
    expected = [_KINDS[_NATIVE.get(kind, kind)] for kind in found["expected"].split(" | ") if kind != "null"]
    return f"{where} is {got}, not {_alternatives(expected)}"


def _alternatives(kinds: Sequence[str]) -> str:
    return " or ".join([", ".join(kinds[:-1]), kinds[-1]] if len(kinds) > 1 else kinds)


def _elsewhere(operation: Signature, given: Mapping[str, Any], name: str) -> Advice | None:
    """The other tool that takes this value, with the guest if there is one."""
    hints: Mapping[str, ToolHint] = getattr(operation, "elsewhere", {})
    hint = hints.get(str(given.get(name)).lower())
    if hint is None:
        return None
    return Advice("Another tool does that", hint(guest=given["guest"]) if "guest" in given else hint)


def _show(name: str, value: object) -> str:
    """The caller's value, unless it may be or contain a secret; nothing for one with fields, which may be secrets."""
    if name in _NEVER_SHOWN or "password" in str(value):
        return HIDDEN
    if isinstance(value, dict) or (isinstance(value, list) and any(isinstance(one, (dict, list)) for one in value)):
        return ""
    if any(one is None or isinstance(one, bool) for one in (value if isinstance(value, list) else [value])):
        return json.dumps(value, ensure_ascii=False)[:LONGEST_SHOWN]
    return repr(value)[:LONGEST_SHOWN]


_NATIVE = {"str": "string", "int": "integer", "float": "number", "bool": "boolean"}
"""The validator's names of types, as a schema has them."""
_KINDS = {
    "array": "a list",
    "boolean": "true or false",
    "integer": "an integer",
    "null": "null",
    "number": "a number",
    "object": "an object",
    "string": "a string",
}


def _kind(schema: Mapping[str, Any]) -> str:
    kind = schema.get("type")
    return _KINDS.get(kind, str(kind)) if kind else " or ".join(map(str, schema.get("enum", ())))


def _describe_type(operation: Signature, name: str, got: object = None) -> str:
    schema = operation.schema()["properties"][name]
    choices = schema.get("enum") or [one["const"] for one in schema.get("anyOf", ()) if "const" in one]
    if choices:
        hint = "" if got is None else suggest(str(got), choices, "")
        return f"{hint} Valid values: {', '.join(choices)}".strip()
    kinds = [_kind(one) for one in ([schema] if "type" in schema else schema.get("anyOf", []))]
    bounds = [
        f"{word} {schema[key]:g}" for key, word in (("minimum", "at least"), ("maximum", "at most")) if key in schema
    ]
    text = f"It must be {_alternatives(kinds)}" + (f", {' and '.join(bounds)}" if bounds else "")
    return f"{text}: {schema['description']}" if "description" in schema else text
