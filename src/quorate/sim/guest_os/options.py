"""Reading the options of small programs."""

from __future__ import annotations

from collections.abc import Collection


def split_options(args: list[str], with_value: Collection[str] = ()) -> tuple[dict[str, str], list[str]]:
    """Options by name (value "" for switches) and the other arguments; `--` ends the options.

    Short options may stand together; those in `with_value` take what follows, attached or as the next argument.
    """
    options: dict[str, str] = {}
    others: list[str] = []
    queue = list(args)
    while queue:
        each = queue.pop(0)
        if each == "--":
            return options, others + queue
        if each.startswith("--"):
            name, separator, value = each[2:].partition("=")
            options[name] = value if separator else (queue.pop(0) if name in with_value and queue else "")
        elif each.startswith("-") and len(each) > 1:
            _short(each[1:], queue, options, with_value)
        else:
            others.append(each)
    return options, others


def _short(letters: str, queue: list[str], options: dict[str, str], with_value: Collection[str]) -> None:
    if letters.isdecimal():  # head -5
        options["n"] = letters
        return
    for position, letter in enumerate(letters):
        if letter in with_value:
            attached = letters[position + 1 :]
            options[letter] = attached or (queue.pop(0) if queue else "")
            return
        options[letter] = ""
