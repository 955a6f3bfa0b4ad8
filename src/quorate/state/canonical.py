"""One spelling for the same facts, so that their digests can be compared."""

from __future__ import annotations

import json
from typing import Any

import msgspec


def plain(value: Any) -> Any:
    """The value in the types of JSON. Whatever else it holds becomes text: it must be possible to record anything."""
    return msgspec.to_builtins(value, str_keys=True, enc_hook=str)


def canonical(value: Any) -> bytes:
    return json.dumps(plain(value), sort_keys=True, separators=(",", ":")).encode()
