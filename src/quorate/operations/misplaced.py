"""Arguments that belong to some choices of a tool only: beside another one they are refused, never ignored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from quorate.pve.errors import BadArgument


def refuse_misplaced(
    choice: str, chosen: str, given: Mapping[str, object], belongs_to: Mapping[str, Sequence[str]]
) -> None:
    """`belongs_to`: for each argument the values of `choice` that it goes with. What is None was not given."""
    for name, value in given.items():
        if chosen not in belongs_to[name]:
            refuse_beside(f"{choice}={chosen}", {name: value}, f"It is for {' and '.join(belongs_to[name])}")


def refuse_beside(what: str, given: Mapping[str, object], next_step: str) -> None:
    """Of these arguments none goes with `what`."""
    for name, value in given.items():
        if value is not None:
            raise BadArgument(f"{name} does not go with {what}", next_step=next_step)
