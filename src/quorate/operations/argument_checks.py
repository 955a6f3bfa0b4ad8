"""Checks of arguments: those that apply only to some choices, and those of another operation inside an argument."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from quorate.hints import Advice, ArgumentHint, Sentence, ToolHint
from quorate.operations.argument_names import with_known_names
from quorate.operations.registry import CHANGE_ARGUMENTS, find_operation
from quorate.problems import BadArgument


def refuse_misplaced(
    choice: str, chosen: str, given: Mapping[str, object], belongs_to: Mapping[str, Sequence[str]]
) -> None:
    """`belongs_to`: for each argument the values of `choice` that it applies to. None means not specified."""
    for name, value in given.items():
        if chosen not in belongs_to[name]:
            refuse_combination(
                ArgumentHint(choice, chosen), {name: value}, f"It is for {' and '.join(belongs_to[name])}"
            )


def refuse_combination(other: ArgumentHint | str, given: Mapping[str, object], next_step: Advice | str) -> None:
    """Refuse these arguments together with another, or with what a word describes."""
    for name, value in given.items():
        if value is not None:
            raise BadArgument(
                Sentence("{name} cannot be combined with {other}", name=ArgumentHint(name), other=other)
                if isinstance(other, ArgumentHint)
                else Sentence(f"{{name}} cannot be combined with {other}", name=ArgumentHint(name)),
                next_step=next_step,
            )


_NOT_NESTED = frozenset(name for name, *_ in CHANGE_ARGUMENTS)


def known_names(operation: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments under the names that the operation declares."""
    known = find_operation(operation)
    assert known is not None, operation
    return with_known_names(known, given)


def convert_arguments(operation: str, given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Typed, and only what was given. `where` is the argument that holds them."""
    known = find_operation(operation)
    assert known is not None, operation
    given = with_known_names(known, given)
    takes = [name for name in known.arguments.__struct_fields__ if name not in _NOT_NESTED]
    if unknown := next((name for name in given if name not in takes), None):
        raise BadArgument(
            f"{where} has no {unknown!r}", next_step=Advice("It takes what the tool takes", ToolHint(operation))
        )
    try:
        checked = msgspec.convert(dict(given), known.arguments, strict=False)
    except msgspec.ValidationError as error:
        raise BadArgument(
            f"{where} cannot be used: {error}", next_step=Advice("It takes what the tool takes", ToolHint(operation))
        ) from None
    return {name: msgspec.to_builtins(getattr(checked, name)) for name in given}
