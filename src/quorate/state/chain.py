"""The hash chain of the audit trail: how entries are linked, and how a broken chain is found.

Every entry carries `seq`, the hash of the entry before it (`prev`) and its own `hash` over both and all it says. The
first one follows the digest of whatever stood in the trail before it. So no entry can be changed, left out, put in or
moved without breaking the chain; that the end was cut off shows in the head record, which is kept in the store. Who may
write trail and store alike can make a new chain: against that helps only a copy elsewhere, such as an export.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from quorate.state.canonical import canonical, plain

TORN = "torn_before"
"""The field in which an entry names the bytes before it that a crash has left."""
UNKNOWN = "unknown_before"
"""The field in which an entry says how many before it the store had no record of: after a crash, or a stranger's."""


@dataclass(frozen=True, slots=True)
class Link:
    """The place of an entry in the chain; also the head record of a trail."""

    seq: int
    hash: str


def first_link(before: hashlib._Hash | None = None) -> Link:
    """What the first entry follows: the digest of all that stood in the trail before, if anything did."""
    return Link(0, (before or hashlib.sha256()).hexdigest())


def linked(entry: Mapping[str, Any], after: Link) -> tuple[bytes, Link]:
    """The entry as the line that follows `after`, and its own link."""
    content = json.loads(_line({"seq": after.seq + 1, **_own_words(plain(dict(entry)))}))  # as it will be read again
    digest = _hash(content, after.hash)
    return _line({**content, "prev": after.hash, "hash": digest}), Link(after.seq + 1, digest)


def parsed(line: bytes) -> dict[str, Any] | None:
    """The entry in a line, or None if there is none."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def link_of(entry: Mapping[str, Any] | None) -> Link | None:
    """Where the entry says it stands, or None for one without a hash, as versions before the chain wrote them."""
    if entry is None or not isinstance(entry.get("prev"), str):
        return None
    seq, digest = entry.get("seq"), entry.get("hash")
    return Link(seq, digest) if type(seq) is int and isinstance(digest, str) else None


@dataclass(frozen=True, slots=True)
class Break:
    """The first place where the chain does not hold."""

    how: str
    """changed, removed, inserted, reordered or cut"""
    line: int
    says: str


@dataclass(frozen=True, slots=True)
class Verification:
    entries: int
    """How many entries of the chain were found, up to a break."""
    older: int
    """How many lines without a hash stand before it."""
    broken: Break | None
    remarks: tuple[str, ...] = ()

    @property
    def intact(self) -> bool:
        return self.broken is None


async def verify(lines: AsyncIterator[bytes], head: Link | None) -> Verification:
    """Walk the chain from its beginning. `head` is what the store knows of its end."""
    walk = _Walk(head)
    broken: Break | None = None
    missing: _Gap | None = None
    async for line in lines:
        if missing is not None:  # the rest tells only whether what is missing stands elsewhere
            if missing.filled_by(line):
                broken = missing.as_reordered()
                break
            continue
        found = walk.step(line)
        if isinstance(found, _Gap):
            missing, broken = found, found.as_removed()
        elif found is not None:
            broken = found
            break
    return Verification(walk.entries, walk.older, broken or walk.at_end(), tuple(walk.remarks))


@dataclass(frozen=True, slots=True)
class _Gap:
    """The entry that should stand at this line does not."""

    after: Link
    next_seq: int
    line: int

    def filled_by(self, line: bytes) -> bool:
        entry = parsed(line)
        return link_of(entry) is not None and entry is not None and entry["prev"] == self.after.hash

    def as_removed(self) -> Break:
        return Break("removed", self.line, f"{_entries(self.after.seq + 1, self.next_seq - 1)} removed")

    def as_reordered(self) -> Break:
        return Break("reordered", self.line, f"Entry {self.after.seq + 1} stands behind entry {self.next_seq}")


@dataclass(slots=True)
class _Walk:
    head: Link | None
    entries: int = 0
    older: int = 0
    remarks: list[str] = field(default_factory=list)
    _number: int = 0
    _last: Link | None = None
    _last_prev: str = ""
    _before: hashlib._Hash = field(default_factory=hashlib.sha256)
    _stray: hashlib._Hash | None = None
    """Of lines that are no entry; where they begin and whether the last one is whole."""
    _stray_at: int = 0
    _stray_ended: bool = True

    def step(self, line: bytes) -> Break | _Gap | None:
        self._number += 1
        entry = parsed(line)
        link = link_of(entry)
        if entry is None or link is None:
            return self._without_link(line, entry)
        if self._stray is not None and (broken := self._explain_stray(self._stray.hexdigest(), entry, link)):
            return broken
        if line.removesuffix(b"\n") + b"\n" != _line(entry) or _hash(_content(entry), entry["prev"]) != link.hash:
            return self._break("changed", f"Entry {link.seq} was changed after it was written")
        if (problem := self._misplaced(entry, link)) is not None:
            return problem
        if self.head is not None and link.seq == self.head.seq and link.hash != self.head.hash:
            return self._break(
                "cut", f"Entry {link.seq} is not the one that was written: the end was cut off and replaced"
            )
        if type(entry.get(UNKNOWN)) is int:
            self.remarks.append(
                f"{_entries(link.seq - entry[UNKNOWN], link.seq - 1)} not in the store's record when entry {link.seq} "
                "was written: a crash came between, or a stranger wrote"
            )
        self.entries += 1
        self._last, self._last_prev = link, entry["prev"]
        return None

    def at_end(self) -> Break | None:
        last = self._last or Link(0, "")
        if self.head is None:
            if self._last is not None:
                self.remarks.append(
                    "The store has no record of the newest entry: entries cut off at the end go unnoticed"
                )
        elif last.seq < self.head.seq:
            return Break("cut", self._number, f"{_entries(last.seq + 1, self.head.seq)} cut off at the end")
        elif last.seq > self.head.seq:
            self.remarks.append(f"{_entries(self.head.seq + 1, last.seq, 'is', 'are')} newer than the store's record")
        if self._stray is not None:
            if self._stray_ended:
                return Break("inserted", self._stray_at, f"Line {self._stray_at} is no entry")
            self.remarks.append(f"Line {self._number} is unfinished: a crash cut the writing of an entry short")
        if self.older:
            self.remarks.insert(0, _older(self.older, self._last is not None))
        return None

    def _without_link(self, line: bytes, entry: dict[str, Any] | None) -> Break | None:
        if self._last is None:
            self._before.update(line)
            self.older += 1
            return None
        if entry is not None:
            how = "changed" if "seq" in entry else "inserted"
            return self._break(how, f"The entry in line {self._number} has no hash")
        if self._stray is None:
            self._stray, self._stray_at = hashlib.sha256(), self._number
        self._stray.update(line)
        self._stray_ended = line.endswith(b"\n")
        return None

    def _explain_stray(self, digest: str, entry: Mapping[str, Any], link: Link) -> Break | None:
        at, self._stray = self._stray_at, None
        if entry.get(TORN) == digest:
            self.remarks.append(f"Line {at} is unfinished: a crash cut it short, as entry {link.seq} says")
            return None
        damaged = self._last is not None and link.seq == self._last.seq + 2
        return Break("changed" if damaged else "inserted", at, f"Line {at} is no entry")

    def _misplaced(self, entry: Mapping[str, Any], link: Link) -> Break | _Gap | None:
        expected = self._last or first_link(self._before)
        if link.seq > expected.seq + 1:
            return _Gap(expected, link.seq, self._number)
        if link.seq <= expected.seq:
            twins = entry["prev"] == self._last_prev
            why = f"follows entry {link.seq - 1} as well" if twins else f"stands behind entry {expected.seq}"
            return self._break("inserted", f"Entry {link.seq} in line {self._number} {why}")
        if entry["prev"] != expected.hash:
            if self._last is None:
                return Break("changed", 1, f"What stands before the first entry (line {self._number}) was changed")
            return Break(
                "changed", self._number - 1, f"Entry {expected.seq} is not the one that entry {link.seq} follows"
            )
        return None

    def _break(self, how: str, says: str) -> Break:
        return Break(how, self._number, says)


def _own_words(entry: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in entry.items() if name not in ("seq", "prev", "hash")}


def _content(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in entry.items() if name not in ("prev", "hash")}


def _hash(content: Mapping[str, Any], prev: str) -> str:
    return hashlib.sha256(prev.encode(errors="backslashreplace") + b"\n" + canonical(content)).hexdigest()


def _line(entry: Mapping[str, Any]) -> bytes:
    """Readable as it stands; half a surrogate pair becomes the escape that JSON has for it."""
    text = json.dumps(entry, ensure_ascii=False, separators=(",", ":"))
    return text.encode(errors="backslashreplace") + b"\n"


def _entries(first: int, last: int, one: str = "was", more: str = "were") -> str:
    return f"Entry {first} {one}" if first == last else f"Entries {first} to {last} {more}"


def _older(count: int, followed: bool) -> str:
    lines = "1 line" if count == 1 else f"{count} lines"
    return f"{lines} without a hash, from before the chain" + (
        ": what they say is covered by entry 1" if followed else ""
    )
