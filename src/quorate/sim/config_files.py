"""What PVE's configuration files have in common: digests, their lock's error texts, and lists written as text."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from quorate.sim.refusals import Refusal, failure

EMPTY_DIGEST = hashlib.sha1(b"", usedforsecurity=False).hexdigest()
MODIFIED = "detected modified configuration - file changed by other user? Try again."

_SEPARATOR = re.compile(r"[,;\s\0]+")


def split_list(text: Any) -> list[str]:
    """The parts of a `-list` value, which commas, semicolons and blanks separate."""
    return [part for part in _SEPARATOR.split(str(text or "")) if part]


def stored(value: Any) -> Any:
    """A parameter as the file keeps it and the API shows it: booleans are numbers there."""
    return int(value) if isinstance(value, bool) else value


def digest_of(entries: Iterable[Mapping[str, Any]]) -> str:
    """The fingerprint of a list of settings; of nothing it is the one of an empty file."""
    lines = [f"{key}:{entry[key]}\n" for entry in entries for key in sorted(entry)]
    return hashlib.sha1("".join(lines).encode(), usedforsecurity=False).hexdigest()


def check_digest(current: str, given: str | None) -> None:
    """Refuse a change that was meant for another state of the file."""
    if given and given != current:
        raise failure(MODIFIED)


@contextmanager
def changing(what: str) -> Iterator[None]:
    """The lock around a change: whatever is refused inside comes out as one text, with status 500 and a prefix."""
    try:
        yield
    except Refusal as refusal:
        text = refusal.message if refusal.status == 500 else f"{refusal.status} {refusal.message}"
        for name, error in (refusal.errors or {}).items():
            text += f"{name}: {error}\n"
        raise Refusal(500, f"{what}: {text}") from refusal
