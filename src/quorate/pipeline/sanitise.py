"""Text from guests, logs and notes is data from strangers: what hides or reorders text is taken out of it."""

from __future__ import annotations

import re
from typing import Any

# Control characters but tab and newline; soft hyphen; zero-width, bidi and invisible operators; variation selectors;
# byte order mark; interlinear marks; format controls of rare scripts; lone surrogates; the tag block that can carry
# unseen instructions.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\u2800\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb\U00013430-\U0001343f\U0001bca0-\U0001bca3"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
LONGEST = 4096
"""Of a cell, a line or a sentence: more than a name or a remark needs, and no flood."""


def clean_text(text: str) -> str:
    return text if text.isascii() and text.isprintable() else _UNSEEN.sub("", text)


def one_line(text: str) -> str:
    """Cleaned, and without line ends: a name must not look like a line of ours."""
    return " ".join(clean_text(text).split())


def spelled_out(text: str) -> str:
    """With every unseen character told by its number, so that two texts that look the same are seen to differ."""
    return _UNSEEN.sub(lambda found: f"\\u{{{ord(found[0]):x}}}", text).replace("\n", "\\n")


def shortened(text: str, longest: int = LONGEST) -> str:
    return text if len(text) <= longest else f"{text[:longest]}… ({len(text)} characters)"


def clean(value: Any, longest: int | None = None) -> Any:
    """The same structure with every text cleaned; lines of a list are cut, and other texts where `longest` says so."""
    if isinstance(value, str):
        return clean_text(value) if longest is None else shortened(clean_text(value), longest)
    if isinstance(value, dict):
        return {clean(key): clean(one, longest) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [clean(one, LONGEST if isinstance(one, str) else longest) for one in value]
    return value
