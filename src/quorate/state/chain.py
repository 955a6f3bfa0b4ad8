"""The hash chain of the audit trail: how records are linked, and how a broken chain is found.

A record is one line of the trail. A change takes several of them, which views fold into one entry. Every record carries
`seq`, the hash of the record before it (`prev`) and its own `hash` over both and its content. The first one follows the
digest of the lines that older versions wrote without hashes. So no record can be changed, removed, inserted or moved
without breaking the chain. A cut-off end shows because the store keeps the newest link. Someone who can write both
trail and store can forge a new chain; only a copy elsewhere, such as an export, protects against that.

Records are JSON in one spelling, so that digests can be compared, and limited in size. Where something is cut, its
length and digest remain, so that a copy kept elsewhere can be recognized.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import msgspec

CHANGE = "change"
"""The id that all records of a change carry."""
PHASE = "phase"
INTENT, PLAN, STEP, OUTCOME = "intent", "plan", "step", "outcome"
TORN = "torn_before"
"""The digest of an incomplete line before the record, which a crash left behind."""
UNKNOWN = "unknown_before"
"""How many records before this one the store did not know, because of a crash or a forgery."""
LONGEST_TEXT = 4096
KEPT_TEXT = 64
"""How many characters remain of a longer text."""
MOST_ITEMS = 1000
DEEPEST = 8
MOST_BYTES = 128 * 1024
"""The size limit of a record before it is chained."""
REST = "…"
"""The key under which a cut mapping describes what is missing."""


# -- the spelling and size of records ----------------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """The value in JSON types. Anything else becomes text, because everything must be recordable."""
    return msgspec.to_builtins(value, str_keys=True, enc_hook=str)


def canonical(value: Any) -> bytes:
    """One spelling for equal values, so that digests can be compared."""
    return json.dumps(plain(value), sort_keys=True, separators=(",", ":")).encode()


def prune(value: Any, depth: int = DEEPEST) -> Any:
    """The same structure, without nesting below `depth` and items beyond MOST_ITEMS; texts are not cut."""
    if isinstance(value, Mapping):
        if depth == 0:
            return _summary("nested values", value)
        kept = {name: prune(item, depth - 1) for name, item in islice(value.items(), MOST_ITEMS)}
        return kept if len(value) <= MOST_ITEMS else {**kept, REST: _summary(f"{len(value) - MOST_ITEMS} more", value)}
    if isinstance(value, (list, tuple)):
        if depth == 0:
            return _summary("nested values", value)
        items = [prune(item, depth - 1) for item in value[:MOST_ITEMS]]
        return items if len(value) <= MOST_ITEMS else [*items, _summary(f"… {len(value) - MOST_ITEMS} more", value)]
    return value


def limit_size(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Cut an entry to size: long texts first, then the largest fields if necessary."""
    cut: dict[str, Any] = _cut_texts(prune(_to_plain(dict(entry)), DEEPEST + 2))
    if _size(cut) <= MOST_BYTES:
        return cut
    sizes = {name: _size(value) for name, value in cut.items()}
    for name in sorted(sizes, key=lambda field: -sizes[field]):
        if sum(sizes.values()) <= MOST_BYTES:
            break
        cut[name] = _summary(f"{sizes[name]} bytes", cut[name])
        sizes[name] = _size(cut[name])
    return cut


def _to_plain(value: Any) -> Any:
    """The value in JSON types; extreme nesting is only described."""
    try:
        return plain(value)
    except RecursionError:
        return plain(prune(value))


def cut_text(text: str) -> str:
    if len(text) <= LONGEST_TEXT:
        return text
    return f"{text[:KEPT_TEXT]}… ({len(text)} characters, sha256 {_digest(text.encode(errors='backslashreplace'))})"


def _cut_texts(value: Any) -> Any:
    if isinstance(value, str):
        return cut_text(value)
    if isinstance(value, dict):
        return {cut_text(name): _cut_texts(item) for name, item in value.items()}
    return [_cut_texts(item) for item in value] if isinstance(value, list) else value


def _size(value: Any) -> int:
    return len(canonical(value))


def _summary(what: str, value: Any) -> str:
    try:
        content = canonical(value)
    except RecursionError:
        return f"({what})"
    return f"({what}; in all {len(content)} bytes, sha256 {_digest(content)})"


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


# -- links -------------------------------------------------------------------------------------------------------------


class Link(msgspec.Struct, frozen=True):
    """The place of a record in the chain. The store keeps the newest one, the head."""

    seq: int
    hash: str


def first_link(before: hashlib._Hash | None = None) -> Link:
    """What the first record follows; `before` is the digest of the lines before the chain."""
    return Link(0, (before or hashlib.sha256()).hexdigest())


def link_entry(entry: Mapping[str, Any], after: Link) -> tuple[bytes, Link]:
    """The entry as the record that follows `after`, and its own link."""
    content = json.loads(
        _line({"seq": after.seq + 1, **_without(plain(dict(entry)), "seq", "prev", "hash")})
    )  # as it will be read again
    digest = _hash(content, after.hash)
    return _line({**content, "prev": after.hash, "hash": digest}), Link(after.seq + 1, digest)


def parse_line(line: bytes) -> dict[str, Any] | None:
    """The record in a line, or None if the line is not a record."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def link_of(entry: Mapping[str, Any] | None) -> Link | None:
    """The link that the record states, or None for one without a hash, as older versions wrote them."""
    if entry is None or not isinstance(entry.get("prev"), str):
        return None
    seq, digest = entry.get("seq"), entry.get("hash")
    return Link(seq, digest) if type(seq) is int and isinstance(digest, str) else None


def is_continuation(entry: Mapping[str, Any]) -> bool:
    """Whether the record continues a change that another one began."""
    return CHANGE in entry and entry.get(PHASE) != INTENT


# -- verification ------------------------------------------------------------------------------------------------------


class Break(msgspec.Struct, frozen=True):
    """The first place where the chain is broken."""

    how: str
    """changed, removed, inserted, reordered or cut"""
    line: int
    says: str


@dataclass(frozen=True, slots=True)
class Verification:
    entries: int
    """How many entries there are up to a break: one for each change, dry run or refusal."""
    records: int
    """How many records those entries consist of."""
    older: int
    """How many lines without a hash come before the chain."""
    broken: Break | None
    remarks: tuple[str, ...] = ()
    unfinished: tuple[str, ...] = ()
    """Changes without a final outcome, each described in one sentence."""

    @property
    def intact(self) -> bool:
        return self.broken is None


async def verify(lines: AsyncIterator[bytes], head: Link | None) -> Verification:
    """Walk the chain from its beginning. `head` is its end as recorded in the store."""
    walk = _Walk(head)
    broken: Break | None = None
    missing: _Gap | None = None
    async for line in lines:
        if missing is not None:  # read the rest only to see whether the missing record comes later
            if missing.filled_by(line):
                broken = missing.reordering()
                break
            continue
        problem = walk.step(line)
        if isinstance(problem, _Gap):
            missing, broken = problem, problem.removal()
        elif problem is not None:
            broken = problem
            break
    end = broken or walk.at_end()
    unfinished = tuple(walk.unfinished.values())
    return Verification(walk.entries, walk.records, walk.older, end, tuple(walk.remarks), unfinished)


class _Gap(msgspec.Struct, frozen=True):
    """The record that belongs at this line is missing."""

    after: Link
    next_seq: int
    line: int

    def filled_by(self, line: bytes) -> bool:
        entry = parse_line(line)
        return link_of(entry) is not None and entry is not None and entry["prev"] == self.after.hash

    def removal(self) -> Break:
        return Break("removed", self.line, f"{_records(self.after.seq + 1, self.next_seq - 1)} removed")

    def reordering(self) -> Break:
        return Break("reordered", self.line, f"Record {self.after.seq + 1} comes after record {self.next_seq}")


@dataclass(slots=True)
class _Walk:
    head: Link | None
    entries: int = 0
    records: int = 0
    older: int = 0
    remarks: list[str] = field(default_factory=list)
    unfinished: dict[str, str] = field(default_factory=dict)
    _number: int = 0
    _last: Link | None = None
    _last_prev: str = ""
    _before: hashlib._Hash = field(default_factory=hashlib.sha256)
    _stray: hashlib._Hash | None = None
    """The digest of lines after the last record that are not records."""
    _stray_at: int = 0
    """The number of the first of these lines."""
    _stray_ended: bool = True
    """Whether the last of them is complete."""

    def step(self, line: bytes) -> Break | _Gap | None:
        self._number += 1
        entry = parse_line(line)
        link = link_of(entry)
        if entry is None or link is None:
            return self._without_link(line, entry)
        if self._stray is not None and (broken := self._explain_stray(self._stray.hexdigest(), entry, link)):
            return broken
        if (
            line.removesuffix(b"\n") + b"\n" != _line(entry)
            or _hash(_without(entry, "prev", "hash"), entry["prev"]) != link.hash
        ):
            return self._break("changed", f"Record {link.seq} was changed after it was written")
        if (problem := self._check_order(entry, link)) is not None:
            return problem
        if self.head is not None and link.seq == self.head.seq and link.hash != self.head.hash:
            return self._break(
                "cut", f"Record {link.seq} is not the one that was written: the end was cut off and replaced"
            )
        if type(entry.get(UNKNOWN)) is int:
            self.remarks.append(
                f"{_records(link.seq - entry[UNKNOWN], link.seq - 1)} unknown to the store when record {link.seq} was "
                "written: after a crash, or forged"
            )
        self._note_change(entry, link)
        self._last, self._last_prev = link, entry["prev"]
        return None

    def _note_change(self, entry: Mapping[str, Any], link: Link) -> None:
        self.records += 1
        self.entries += not is_continuation(entry)
        change = str(entry.get(CHANGE, ""))
        if change and not is_continuation(entry):
            what = entry.get("plan") or entry.get("tool")
            self.unfinished[change] = f"The entry in record {link.seq} has no outcome: {what} ({entry.get('time')})"
        elif entry.get(PHASE) == OUTCOME:
            begun = self.unfinished.pop(change, "")
            if not entry.get("final", True) and begun:
                self.unfinished[change] = begun.replace("no outcome", f"no final outcome ({entry.get('outcome')})")

    def at_end(self) -> Break | None:
        last = self._last or Link(0, "")
        if self.head is None:
            if self._last is not None:
                self.remarks.append("The store does not know the newest record, so a cut-off end would go unnoticed")
        elif last.seq < self.head.seq:
            return Break("cut", self._number, f"{_records(last.seq + 1, self.head.seq)} cut off at the end")
        elif last.seq > self.head.seq:
            self.remarks.append(f"{_records(self.head.seq + 1, last.seq, 'is', 'are')} newer than what the store knows")
        if self._stray is not None:
            if self._stray_ended:
                return Break("inserted", self._stray_at, f"Line {self._stray_at} is not a record")
            self.remarks.append(f"Line {self._number} is incomplete: a crash interrupted the writing of a record")
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
            return self._break(how, f"The record in line {self._number} has no hash")
        if self._stray is None:
            self._stray, self._stray_at = hashlib.sha256(), self._number
        self._stray.update(line)
        self._stray_ended = line.endswith(b"\n")
        return None

    def _explain_stray(self, digest: str, entry: Mapping[str, Any], link: Link) -> Break | None:
        at, self._stray = self._stray_at, None
        if entry.get(TORN) == digest:
            self.remarks.append(f"Line {at} is incomplete: a crash interrupted it, as record {link.seq} says")
            return None
        damaged = self._last is not None and link.seq == self._last.seq + 2
        return Break("changed" if damaged else "inserted", at, f"Line {at} is not a record")

    def _check_order(self, entry: Mapping[str, Any], link: Link) -> Break | _Gap | None:
        expected = self._last or first_link(self._before)
        if link.seq > expected.seq + 1:
            return _Gap(expected, link.seq, self._number)
        if link.seq <= expected.seq:
            twins = entry["prev"] == self._last_prev
            why = f"follows record {link.seq - 1} as well" if twins else f"comes after record {expected.seq}"
            return self._break("inserted", f"Record {link.seq} in line {self._number} {why}")
        if entry["prev"] != expected.hash:
            if self._last is None:
                return Break("changed", 1, f"What comes before the first record (line {self._number}) was changed")
            return Break(
                "changed", self._number - 1, f"Record {expected.seq} is not the one that record {link.seq} follows"
            )
        return None

    def _break(self, how: str, says: str) -> Break:
        return Break(how, self._number, says)


def _without(entry: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in entry.items() if name not in names}


def _hash(content: Mapping[str, Any], prev: str) -> str:
    return hashlib.sha256(prev.encode(errors="backslashreplace") + b"\n" + canonical(content)).hexdigest()


def _line(entry: Mapping[str, Any]) -> bytes:
    """The record as it is written; a lone surrogate becomes its JSON escape."""
    text = json.dumps(entry, ensure_ascii=False, separators=(",", ":"))
    return text.encode(errors="backslashreplace") + b"\n"


def _records(first: int, last: int, singular: str = "was", plural: str = "were") -> str:
    return f"Record {first} {singular}" if first == last else f"Records {first} to {last} {plural}"


def _older(count: int, followed: bool) -> str:
    lines = "1 line" if count == 1 else f"{count} lines"
    return f"{lines} without a hash, from before the chain" + (": record 1 covers their content" if followed else "")
