"""JSON of the journal: one spelling for digests, and bounds that keep every record readable.

What is cut leaves its length and digest, so that a copy kept elsewhere can be recognized.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import msgspec

LONGEST_TEXT = 4096
KEPT_TEXT = 64
MOST_ITEMS = 1000
DEEPEST = 8
MOST_BYTES = 128 * 1024
"""The size limit of a record before it is chained."""
REST = "…"
"""The key under which a cut mapping describes what is missing."""


def plain(value: Any) -> Any:
    """The value in JSON types. Anything else becomes text, because everything must be recordable."""
    return msgspec.to_builtins(value, str_keys=True, enc_hook=str)


def canonical(value: Any) -> bytes:
    """One spelling for equal values, so that digests can be compared."""
    return json.dumps(plain(value), sort_keys=True, separators=(",", ":")).encode()


def prune(value: Any, depth: int = DEEPEST) -> Any:
    """The same structure without what is nested too deeply or too wide; texts are not cut."""
    if isinstance(value, Mapping):
        if depth == 0:
            return _summary("nested values", value)
        kept = {name: prune(one, depth - 1) for name, one in _first(value.items())}
        return kept if len(value) <= MOST_ITEMS else {**kept, REST: _summary(f"{len(value) - MOST_ITEMS} more", value)}
    if isinstance(value, (list, tuple)):
        if depth == 0:
            return _summary("nested values", value)
        kept_items = [prune(one, depth - 1) for one in _first(value)]
        return (
            kept_items
            if len(value) <= MOST_ITEMS
            else [*kept_items, _summary(f"… {len(value) - MOST_ITEMS} more", value)]
        )
    return value


def limit_size(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Cut an entry to size: long texts first, then the largest fields if necessary."""
    cut: dict[str, Any] = _cut_texts(prune(_to_plain(dict(entry)), DEEPEST + 2))
    if _size(cut) <= MOST_BYTES:
        return cut
    sizes = {name: _size(value) for name, value in cut.items()}
    for name in sorted(sizes, key=lambda one: -sizes[one]):
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
        return {cut_text(name): _cut_texts(one) for name, one in value.items()}
    return [_cut_texts(one) for one in value] if isinstance(value, list) else value


def _first(items: Any) -> Any:
    return (one for one, _ in zip(items, range(MOST_ITEMS), strict=False))


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
