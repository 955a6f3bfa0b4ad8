"""“Did you mean …?” for names that do not exist."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TypeVar

SIMILAR_WORDS = 0.7
"""The least ratio of two words, as difflib measures it: `stpo` and `stop` are at 0.75."""
EXTRA_WORDS = 1
"""`proxmox_guest_list` may mean guest_list; `delete_all_guests_now` means nothing here."""
MAX_TOOLS = 3
SETTING = frozenset({"add", "change", "configure", "create", "edit", "modify", "update"})
"""What other servers call their tools for; here one tool creates and changes: `nic_set`."""
SHORT_NAME = 5
"""Up to this length, another letter makes another name."""

Fallback = TypeVar("Fallback")


def suggest(
    name: str, known: Iterable[str], otherwise: Fallback, *, count: int = 1, cutoff: float | None = None
) -> str | Fallback:
    """A question with the nearest known names, or `otherwise` if none is near."""
    near = similar(name, known, count, cutoff)
    return did_you_mean(near) if near else otherwise


def suggest_tool(name: str, known: Iterable[str], otherwise: Fallback) -> str | Fallback:
    near = similar_tools(name, known)
    return did_you_mean(near) if near else otherwise


def did_you_mean(names: Iterable[str]) -> str:
    return f"Did you mean {' or '.join(map(repr, names))}?"


def similar(name: str, known: Iterable[str], count: int = 1, cutoff: float | None = None) -> list[str]:
    """The nearest names: those with a slip of the pen (`guets` and `guest`, not `digest` and `guest`), or, for long
    names that callers shorten, those with at least the ratio `cutoff`."""
    import difflib  # only a mistake needs it

    names = list(dict.fromkeys(known))
    if same := [candidate for candidate in names if candidate.casefold() == name.casefold()]:
        return same[:count]
    if cutoff is not None:
        return difflib.get_close_matches(name, names, count, cutoff)
    slips = [candidate for candidate in names if _is_slip(name.casefold(), candidate.casefold())]
    return difflib.get_close_matches(name, slips, count, 0.0)


def _is_slip(typed: str, known: str) -> bool:
    """At most one letter in three is wrong, missing or swapped, or only the end is missing."""
    if known.startswith(typed) and len(typed) >= 3 and 2 * len(typed) >= len(known):
        return True
    return _edits(typed, known) <= max(1, len(typed) // 3)


def _edits(word: str, other: str) -> int:
    """How many letters to insert, drop, replace or swap with their neighbor."""
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, letter in enumerate(word, 1):
        before, last, row = row, before, [i]
        for j, there in enumerate(other, 1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != there))
            if i > 1 and j > 1 and letter == other[j - 2] and word[i - 2] == there:
                cost = min(cost, last[j - 2] + 1)
            row.append(cost)
    return row[-1]


def similar_tools(name: str, known: Iterable[str]) -> list[str]:
    """Tools whose name says the same, with a slip or with its words in another order.

    A guess is taken for advice, so a tool that destroys must not be suggested for one that does something else.
    """
    words = _words(name)
    names = list(known)
    ranked = [
        (len(words) - len(_words(candidate)), candidate)
        for candidate in names
        if _say_the_same(words, _words(candidate))
    ]
    # `set` is not a slip of `get`.
    longer = [candidate for candidate in names if len(candidate) != len(name) and len(name) > SHORT_NAME]
    slips = [candidate for candidate in longer if _edits(name.lower(), candidate) == 1]
    best = [candidate for extra, candidate in sorted(ranked) if extra == min(ranked)[0]]
    return best[:MAX_TOOLS] or slips[:MAX_TOOLS]


def _say_the_same(words: list[str], known: list[str]) -> bool:
    if "".join(words) == "".join(known):
        return True
    left = list(words)
    for word in known:
        fitting = next((candidate for candidate in left if _similar_words(candidate, word)), None)
        if fitting is None:
            return False
        left.remove(fitting)
    return len(left) <= EXTRA_WORDS


def _similar_words(word: str, other: str) -> bool:
    """A slip is rarely in the first letter (`lock` is not `unlock`) and rarely costs more than one letter."""
    import difflib

    if other == "set" and word in SETTING:
        return True
    if word[:1] != other[:1] or (abs(len(word) - len(other)) > 1 and not other.startswith(word)):
        return False
    return difflib.SequenceMatcher(None, word, other).ratio() >= SIMILAR_WORDS


def _words(name: str) -> list[str]:
    return [word for word in re.split(r"[^a-z0-9]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()) if word]
