"""Read the whole body of a request before anything acts on it: uncompressed, in time and not too large."""

from __future__ import annotations

import asyncio

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Message, Receive, Scope

from quorate.surfaces.web.replies import refusal


class ClientDisconnected(Exception):
    """The caller disconnected before the end of the request."""


async def read_request_body(scope: Scope, receive: Receive, most: int, seconds: float) -> Receive | Response:
    """A `receive` that replays the body, or the response that refuses the request."""
    headers = Headers(scope=scope)
    if (packed := headers.get("content-encoding", "identity").strip().lower()) != "identity":
        return _refusal(415, "unsupported_encoding", f"The body must be plain, not {packed[:40]!r}")
    if (length := headers.get("content-length", "")).isdecimal() and int(length[:20]) > most:
        return _too_large(most)
    body = bytearray()
    try:
        async with asyncio.timeout(seconds):
            more = True
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnected
                body += message.get("body", b"")
                more = message.get("more_body", False)
                if len(body) > most:
                    return _too_large(most)
    except TimeoutError:
        return _refusal(408, "request_timeout", f"The body did not arrive within {seconds:g} seconds")
    return replay_body(bytes(body), receive)


def replay_body(body: bytes, receive: Receive) -> Receive:
    """A `receive` that delivers this body first."""
    delivered = False

    async def next_message() -> Message:
        nonlocal delivered
        if delivered:
            return await receive()
        delivered = True
        return {"type": "http.request", "body": body, "more_body": False}

    return next_message


def _too_large(most: int) -> Response:
    return _refusal(413, "body_too_large", f"The body is larger than {most} bytes")


def _refusal(status: int, error: str, description: str) -> Response:
    """The rest of the body is not awaited."""
    return refusal(status, error, description, Connection="close")
