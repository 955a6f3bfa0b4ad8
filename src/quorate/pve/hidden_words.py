"""Words that would reveal a hidden guest: its name, and its id where a text is about a guest.

Rows about hidden guests are left out entirely. This is for everything else: the lines of a log, the comment of a rule,
a list of members, the text of an error.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from functools import lru_cache

from quorate.pve.subjects import Subject

BLANK = "(hidden)"
_Tree = dict[str, "_Tree"]
"""The letters that may follow."""
_END = ""
_DEEPEST = 30
"""Letters of a word that get a branch each; names are longer, and expressions must not be nested without end."""
_LIST = re.compile(r"(?:(?:vm|ct):)?\d+(?:\s*[,;\s]\s*(?:(?:vm|ct):)?\d+)*")
_VZDUMP = re.compile(r"\bvzdump(?: \d+)+")
_ITEM = re.compile(r"(?:(?:vm|ct):)?(?P<vmid>\d+)")
# What precedes the id of a guest: `VM 100`, `vm:100`, `qemu/100`, `vm-100-disk-0`, `tap100i0`, a field of a UPID.
_BEFORE = (
    r"\b(?:vms?|cts?|vmid|guests?|qemu|lxc|container|openvz|resource)['\"]?\s*[ :/=#-]\s*['\"]?"
    r"|\b(?:vm|base|subvol|basevol|vzdump-qemu|vzdump-lxc|vzdump-openvz|snap_vm)-"
    r"|\b(?:tap|veth|fwbr|fwpr|fwln)"
)


class HiddenWords:
    """Blanks out the guests that are hidden from one call."""

    def __init__(self, hidden: Collection[Subject] = (), seen: Collection[Subject] = ()) -> None:
        """Names and tags that a visible guest has as well stay."""
        self._ids = frozenset(one.id for one in hidden)
        self._names = frozenset(one.name for one in hidden if one.name) - {one.name for one in seen}
        self.tags = frozenset(tag for one in hidden for tag in one.tags) - {tag for one in seen for tag in one.tags}
        """Tags of hidden guests only. They are often plain words, so they are removed from lists of tags only."""

    def __bool__(self) -> bool:
        return bool(self._ids)

    def text(self, text: str) -> str:
        """The text without hidden members of a list, and with a blank for every other mention."""
        if not self:
            return text
        if _LIST.fullmatch(text) and any(one in text for one in self._ids):
            return self._members(text)
        if "vzdump" in text:
            text = _VZDUMP.sub(lambda found: self._arguments(found[0]), text)
        return _pattern(self._ids, self._names).sub(BLANK, text)

    def mentions(self, text: str) -> bool:
        return self.text(text) != text

    def _arguments(self, line: str) -> str:
        return " ".join(BLANK if word in self._ids else word for word in line.split(" "))

    def _members(self, text: str) -> str:
        kept = [one for one in re.split(r"[,;\s]+", text) if one and not self._is_hidden(one)]
        return ",".join(kept)

    def _is_hidden(self, item: str) -> bool:
        found = _ITEM.fullmatch(item)
        return found is not None and found["vmid"] in self._ids


@lru_cache(maxsize=16)  # calls come and go, and hide the same guests
def _pattern(ids: frozenset[str], names: frozenset[str]) -> re.Pattern[str]:
    number = _any_of(ids)
    words = [
        rf"(?:{_BEFORE}){number}(?![0-9])(?:-(?:disk|cloudinit|state)-?[\w.-]*)?",
        rf"(?<=:){number}(?=:)|\b{number}(?=@)|(?<=/){number}(?=[./]|$)",  # of tasks, `100@local` too; of a path
        rf"^{number}(?= )",  # the beginning of a line in the firewall's log
    ]
    if names:
        words.append(rf"(?:(?<![\w.-]){number} )?(?<![\w-]){_any_of(names)}(?![\w-])")
    return re.compile("|".join(words), re.I | re.M)


def _any_of(words: Iterable[str]) -> str:
    """An expression for any of the words, the longest first. As a tree, because thousands one by one take seconds."""
    root: _Tree = {}
    for word in (one.lower() if one.isascii() else one for one in words):
        node = root
        for letters in (*word[:_DEEPEST], word[_DEEPEST:]):
            node = node.setdefault(letters, {}) if letters else node
        node[_END] = {}
    return _expression(root)


def _expression(node: _Tree) -> str:
    branches = []
    for letters in sorted(node.keys() - {_END}, key=lambda one: (-len(one), one)):
        text, below = letters, node[letters]
        while len(below) == 1 and _END not in below:
            ((further, below),) = below.items()
            text += further
        branches.append(re.escape(text) + (_expression(below) if below.keys() != {_END} else ""))
    return f"(?:{'|'.join(branches)}){'?' if _END in node else ''}"
