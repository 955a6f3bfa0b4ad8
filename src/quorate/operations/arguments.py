"""Arguments of callers: strict checks of size, names and types, and the names and forms that are accepted as well.

A refusal says what is valid.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec

from quorate.hints import NAMED, Advice, ArgumentHint, CalledTool, Sentence, ToolHint
from quorate.operations.registry import CHANGE_ARGUMENTS, Operation, find_operation
from quorate.problems import BadArgument
from quorate.secret import HIDDEN, SECRET_KEYS
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


def refuse_oversized(tool: str, arguments: Mapping[str, Any]) -> None:
    """Check the amount of what a caller sent, and that its texts are valid, before anything else reads it.

    Later steps may then recurse through a value, process it at length and print its numbers.
    """
    refuse_long("The name of the tool", tool, LONGEST_NAME)
    if len(arguments) > LONGEST_NAME:
        raise WrongArguments(
            Sentence(f"{{tool}} got {len(arguments)} arguments", tool=CalledTool(tool)),
            why=f"The limit is {LONGEST_NAME}",
        )
    whole = 0
    for name, value in arguments.items():
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
        for part in level:
            if isinstance(part, str):
                refuse_long(argument, part, longest)
                _refuse_surrogates(argument, part)
                _refuse_long_number(argument, part)
                texts += len(part)
            elif isinstance(part, Mapping):
                for key in part:
                    refuse_long(f"A key in {argument}", str(key), LONGEST_NAME)
                    _refuse_surrogates(argument, str(key))
                below.extend(part.values())
            elif isinstance(part, (list, tuple)):
                below.extend(part)
            elif isinstance(part, (int, float)):
                _refuse_odd_number(argument, part)
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
    if any(digits.end() - digits.start() > MOST_DIGITS for digits in _DIGITS.finditer(text)):
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


def decode(operation: Signature, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Typed arguments with defaults filled in. `"100"` is accepted for 100, `"true"` for true."""
    _refuse_unknown(operation, arguments)
    try:
        decoded = msgspec.convert(dict(arguments), operation.arguments, strict=False)
    except msgspec.ValidationError as error:
        raise _explain(operation, arguments, str(error)) from None
    return {name: getattr(decoded, name) for name in operation.arguments.__struct_fields__}


def _refuse_unknown(operation: Signature, arguments: Mapping[str, Any]) -> None:
    known = operation.arguments.__struct_fields__
    for name in arguments:
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


def _explain(operation: Signature, arguments: Mapping[str, Any], error: str) -> WrongArguments:
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
    shown = _show(name, arguments.get(name))
    elsewhere = _elsewhere(operation, arguments, name)
    return (TakenElsewhere if elsewhere else WrongArguments)(
        Sentence("{tool} cannot take {argument}", tool=CalledTool(operation.name), argument=ArgumentHint(name, shown))
        if shown
        else Sentence(
            "{tool} cannot take this value of {argument}", tool=CalledTool(operation.name), argument=ArgumentHint(name)
        ),
        why=_explain_inner(f"{name}{where['inner']}", error) if where and where["inner"] else None,
        next_step=elsewhere or _describe_type(operation, name, arguments.get(name)),
    )


def _explain_inner(where: str, error: str) -> str:
    """What is wrong inside a list or an object, worded like the other refusals."""
    mismatch = _MISMATCH.match(error)
    if not mismatch:
        return f"{error.partition(' - at ')[0]} at {where}".replace("`", "")
    actual = "a boolean" if mismatch["got"] == "bool" else _KINDS[_NATIVE.get(mismatch["got"], mismatch["got"])]
    expected = [_KINDS[_NATIVE.get(kind, kind)] for kind in mismatch["expected"].split(" | ") if kind != "null"]
    return f"{where} is {actual}, not {_alternatives(expected)}"


def _alternatives(kinds: Sequence[str]) -> str:
    return " or ".join([", ".join(kinds[:-1]), kinds[-1]] if len(kinds) > 1 else kinds)


def _elsewhere(operation: Signature, arguments: Mapping[str, Any], name: str) -> Advice | None:
    """The other tool that takes this value, with the guest if there is one."""
    hints: Mapping[str, ToolHint] = getattr(operation, "elsewhere", {})
    hint = hints.get(str(arguments.get(name)).lower())
    if hint is None:
        return None
    return Advice("Another tool does that", hint(guest=arguments["guest"]) if "guest" in arguments else hint)


def _show(name: str, value: object) -> str:
    """The caller's value, unless it may be or contain a secret; nothing for one with fields, which may be secrets."""
    if name in _NEVER_SHOWN or "password" in str(value):
        return HIDDEN
    if isinstance(value, dict) or (isinstance(value, list) and any(isinstance(item, (dict, list)) for item in value)):
        return ""
    if any(item is None or isinstance(item, bool) for item in (value if isinstance(value, list) else [value])):
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


def choices_of_items(schema: Mapping[str, Any]) -> list[str]:
    """What a list may consist of, where that is fixed."""
    lists = [schema, *schema.get("anyOf", ())]
    return [choice for kind in lists if kind.get("type") == "array" for choice in kind.get("items", {}).get("enum", ())]


def _describe_type(operation: Signature, name: str, value: object = None) -> str:
    schema = operation.schema()["properties"][name]
    choices = schema.get("enum") or [choice["const"] for choice in schema.get("anyOf", ()) if "const" in choice]
    if not choices and (choices := choices_of_items(schema)):
        wrong = [str(item) for item in (value if isinstance(value, list) else [value]) if item not in choices]
        value = wrong[0] if wrong else None
    if choices:
        hint = "" if value is None else suggest(str(value), choices, "")
        return f"{hint} Valid values: {', '.join(choices)}".strip()
    kinds = [_kind(alternative) for alternative in ([schema] if "type" in schema else schema.get("anyOf", []))]
    bounds = [
        f"{word} {schema[key]:g}" for key, word in (("minimum", "at least"), ("maximum", "at most")) if key in schema
    ]
    text = f"It must be {_alternatives(kinds)}" + (f", {' and '.join(bounds)}" if bounds else "")
    return f"{text}: {schema['description']}" if "description" in schema else text


# -- other names and forms ---------------------------------------------------------------------------------------------

# Each word, and the arguments that it may mean. It counts where exactly one of them is still open.
_MEANINGS: Final = {
    word: tuple(names.split())
    for words, names in {
        "vm vm_id ct container guest_id vm_name source": "guest guests",
        "vmid": "guest guests",
        "guest": "guests add_guests",
        "guests": "guest add_guests",
        "vms vmids": "guest guests add_guests",
        "id": "guest guests vmid task job pool user host",
        "newid new_id new_vmid": "vmid",
        "target target_node destination to": "node",
        "node_name": "node",
        "ram mem": "memory",
        "cpus vcpus vcpu cpu_cores": "cores",
        "hostname new_name newname": "name",
        "name": "snapshot guest host pool storage volume script service",
        "snapname snapshot_name": "snapshot",
        "upid task_id": "task",
        "volid": "volume backup",
        "archive": "backup",
        "cmd": "command",
        "notes comment note": "description",
        "description note": "comment notes",
        "ostemplate": "template",
        "datastore storage_id": "storage",
        "targetstorage target_storage to_storage": "target_storage storage",
        "poolid pool_id": "pool",
        "userid username": "user",
        "user token holder": "holders",
        "role": "roles",
        "privs": "privileges",
        "autostart start_on_boot": "onboot",
        "retention prune_backups": "keep",
        "enabled": "enable",
        "enable": "enabled",
        "vlan_tag": "vlan",
        "tag": "vlan",
        "tags": "tag",
        "memory": "ram",
        "vmstate": "ram",
        "filename file": "path",
        "pos": "item",
        "port": "dport",
        "protocol": "proto",
        "lines": "log_lines",
        "period": "timeframe",
    }.items()
    for word in words.split()
}
_VALUES: Final = {
    word: choice
    for words, choice in {
        "lxc container": "ct",
        "qemu kvm": "vm",
        "mem ram": "memory",
        "memory": "mem",
        "grow extend expand enlarge": "resize",
        "restart": "reboot",
        "pause": "suspend",
    }.items()
    for word in words.split()
}
"""What callers write for one of the choices, where it is not a choice of its own."""
_OF: Final = {"guest": "guest", "vmid": "guest", "node": "node", "group": "group"}
"""Where `scope` and `of` name an object together: arguments that give both at once."""


_WHOLE_LINES: Final = ("ssh_keys", "volumes")
"""Lists whose entries may hold the separators of PVE."""


def with_known_names(operation: Operation, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments under the names that the operation declares. What is unclear stays, and is refused later."""
    known = operation.arguments.__struct_fields__
    parts = operation.schema()["properties"]
    renamed = dict(arguments)
    for word in [name for name in arguments if name not in known]:
        meant = [name for name in _MEANINGS.get(word, ()) if name in known and name not in renamed]
        if len(meant) == 1:
            renamed[meant[0]] = renamed.pop(word)
        elif word in _OF and {"scope", "of"} <= {*known} and "of" not in renamed:
            kind = _OF[word]
            renamed |= {"of": renamed.pop(word), "scope": kind} if renamed.get("scope", kind) == kind else {}
    return {name: _fit(name, value, parts.get(name, {})) for name, value in renamed.items()}


def _fit(name: str, value: Any, schema: Mapping[str, Any]) -> Any:
    """A value in the form that its schema requires, if what was sent has only one interpretation."""
    if isinstance(value, int) and not isinstance(value, bool) and schema.get("type") == "string":
        return str(value)
    if not isinstance(value, str):
        return value
    if choices := schema.get("enum"):
        return _known_choice(value, choices)
    return _as_list(name, value, schema["items"]) or value if schema.get("type") == "array" else value


def _known_choice(value: str, choices: Sequence[Any]) -> Any:
    """The choice that was written in another case or number, or by another name."""
    if value in choices:
        return value
    word = value.casefold()
    words = (_VALUES.get(word, word), f"{word}s", word.removesuffix("s"))
    return next((choice for choice in choices if str(choice).casefold() in words), value)


def _as_list(name: str, text: str, items: Mapping[str, Any]) -> list[str]:
    """One text where a list is expected: JSON, one entry, or several with the separators of PVE."""
    if text.startswith("["):
        try:
            return msgspec.json.decode(text, type=list[str])
        except msgspec.MsgspecError:
            return []
    if name == "command":  # a program and its arguments: where to cut is for the caller to say
        return []
    if name in _WHOLE_LINES or "object" in {item.get("type") for item in items.get("anyOf", ())}:
        parts = text.splitlines()
    else:
        parts = re.split(r"[,;\n]", text.removeprefix("order=") if name == "boot" else text)
    return [part.strip() for part in parts if part.strip()]


def refuse_misplaced(
    choice: str, chosen: str, arguments: Mapping[str, object], belongs_to: Mapping[str, Sequence[str]]
) -> None:
    """`belongs_to`: for each argument the values of `choice` that it applies to. None means not specified."""
    for name, value in arguments.items():
        if chosen not in belongs_to[name]:
            refuse_combination(
                ArgumentHint(choice, chosen), {name: value}, f"It is for {' and '.join(belongs_to[name])}"
            )


def refuse_combination(other: ArgumentHint | str, arguments: Mapping[str, object], next_step: Advice | str) -> None:
    """Refuse these arguments together with another, or with what a word describes."""
    for name, value in arguments.items():
        if value is not None:
            raise BadArgument(
                Sentence("{name} cannot be combined with {other}", name=ArgumentHint(name), other=other)
                if isinstance(other, ArgumentHint)
                else Sentence(f"{{name}} cannot be combined with {other}", name=ArgumentHint(name)),
                next_step=next_step,
            )


_NOT_NESTED = frozenset(name for name, *_ in CHANGE_ARGUMENTS)


def known_names(operation: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments under the names that the operation declares."""
    known = find_operation(operation)
    assert known is not None, operation
    return with_known_names(known, arguments)


def convert_arguments(operation: str, arguments: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Typed, and only what was given. `where` is the argument that holds them."""
    known = find_operation(operation)
    assert known is not None, operation
    arguments = with_known_names(known, arguments)
    takes = [name for name in known.arguments.__struct_fields__ if name not in _NOT_NESTED]
    if unknown := next((name for name in arguments if name not in takes), None):
        raise BadArgument(
            f"{where} has no {unknown!r}", next_step=Advice("It takes what the tool takes", ToolHint(operation))
        )
    try:
        checked = msgspec.convert(dict(arguments), known.arguments, strict=False)
    except msgspec.ValidationError as error:
        raise BadArgument(
            f"{where} cannot be used: {error}", next_step=Advice("It takes what the tool takes", ToolHint(operation))
        ) from None
    return {name: msgspec.to_builtins(getattr(checked, name)) for name in arguments}
