"""Short random ids that people read, dictate and type: of approvals, findings and runs."""

from __future__ import annotations

import secrets

_LETTERS = "0123456789abcdefghjkmnpqrstvwxyz"  # none that look alike when read aloud or typed


def new_id(*groups: int) -> str:
    """Groups of letters by length, five random bits each: `new_id(5, 5)` looks like k7m2q-9xqdh."""
    return "-".join("".join(secrets.choice(_LETTERS) for _ in range(length)) for length in groups)


def normalize_id(text: str) -> str:
    """As it was issued, whatever case it was typed in."""
    return text.strip().lower()
