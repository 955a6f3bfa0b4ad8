"""Text from guests, logs and notes is data from strangers: what hides or reorders text is taken out of it."""

from __future__ import annotations

import re
from typing import Any

# Control characters but tab and newline; soft hyphen; zero-width, bidi and invisible operators; variation selectors;
# byte order mark; interlinear marks; the tag block that can carry unseen instructions.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb\U000e0000-\U000e0fff]"
)


def clean_text(text: str) -> str:
    return text if text.isascii() and text.isprintable() else _UNSEEN.sub("", text)


def clean(value: Any) -> Any:
    """The same structure with every text cleaned."""
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, dict):
        return {clean(key): clean(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [clean(one) for one in value]
    return value
