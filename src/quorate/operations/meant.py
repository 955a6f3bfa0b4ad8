"""Which tool somebody may have meant by a name that there is not.

A guess is taken for advice, and a tool that destroys must not be advised where another was meant: only a name that says
the same thing, with a slip in it or its words in another order, is offered.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

ALIKE = 0.7
"""Of two words, as difflib measures it: `stpo` and `stop` are at 0.75."""
WORDS_TOO_MANY = 1
"""`proxmox_guest_list` is a guest_list; `delete_all_guests_now` is nothing we know."""
MOST = 3


def meant(name: str, known: Iterable[str]) -> list[str]:
    given = _words(name)
    ranked = [(len(given) - len(_words(one)), one) for one in known if _says_the_same(given, _words(one))]
    return [one for _, one in sorted(ranked)[:MOST]]


def _says_the_same(given: list[str], known: list[str]) -> bool:
    if "".join(given) == "".join(known):
        return True
    left = list(given)
    for word in known:
        fitting = next((one for one in left if _alike(one, word)), None)
        if fitting is None:
            return False
        left.remove(fitting)
    return len(left) <= WORDS_TOO_MANY


def _alike(one: str, other: str) -> bool:
    """A slip is hardly ever in the first letter (`lock` is not `unlock`), and it hardly costs more than one."""
    if one[:1] != other[:1] or (abs(len(one) - len(other)) > 1 and not other.startswith(one)):
        return False
    return difflib.SequenceMatcher(None, one, other).ratio() >= ALIKE


def _words(name: str) -> list[str]:
    return [word for word in re.split(r"[^a-z0-9]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()) if word]
