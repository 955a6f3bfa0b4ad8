"""Answers that are not MCP: JSON for programs, one sentence for people."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import Response

from quorate.surfaces.rendering import raw

NO_STORE = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


def reply(status: int, facts: Any, **headers: str) -> Response:
    """Sizes and times as programs read them. `Retry_After="3"` is the header Retry-After: 3."""
    own = {name.replace("_", "-"): value for name, value in headers.items()}
    return Response(
        msgspec.json.encode(raw(facts), enc_hook=str),
        status_code=status,
        headers=NO_STORE | own,
        media_type="application/json",
    )


def refusal(status: int, error: str, description: str, **headers: str) -> Response:
    return reply(status, {"error": error, "error_description": description}, **headers)


def too_many(seconds: int, description: str) -> Response:
    return refusal(429, "too_many_requests", description, Retry_After=str(seconds))
