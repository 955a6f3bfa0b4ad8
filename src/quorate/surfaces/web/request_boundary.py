"""Where a request ends: refused if a proxy in front of the server could see its end elsewhere.

h11 accepts several spellings that other programs read differently, such as two lengths or a folded header. If a proxy
and the server disagree about the end of a request, a caller can hide a second request in the first one. Such a request
gets the status 400, and its connection is closed.
"""

from __future__ import annotations

from typing import Any

import h11

VERSIONS = (b"1.0", b"1.1")
_LENGTH, _ENCODING, _UPGRADE = b"content-length", b"transfer-encoding", b"upgrade"


class AmbiguousRequest(h11.RemoteProtocolError):
    """Where the request ends is not clear. The caller sees the text."""


class StrictConnection(h11.Connection):
    objection = ""
    """Why the last request was refused, if it was ambiguous."""

    def next_event(self) -> Any:
        """As h11 does. Raises RemoteProtocolError for a request whose end is ambiguous."""
        try:
            return self._next_event()
        except AmbiguousRequest as problem:
            self.objection = str(problem)
            raise

    def _next_event(self) -> Any:
        if self.their_state is not h11.IDLE:
            return super().next_event()
        received, _ = self.trailing_data
        event = super().next_event()
        if not isinstance(event, h11.Request):
            return event
        rest, _ = self.trailing_data
        _refuse_unclear_lines(received[: len(received) - len(rest)])
        _refuse_unclear_length(event)
        if _changes_protocol(event) and rest:  # a client waits for the response before it sends anything else
            raise AmbiguousRequest("Data was sent before the protocol changed.")
        return _as_last(event) if _is_chunked(event) else event


def _refuse_unclear_lines(head: bytes) -> None:
    """Each line ends with CR LF, no header continues on the next line, and the length is stated once, in digits."""
    request_line, *lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    if any(b"\n" in line or b"\r" in line for line in (request_line, *lines)):
        raise AmbiguousRequest("A line of the request does not end with CR LF.")
    if any(line[:1] in (b" ", b"\t") for line in lines):
        raise AmbiguousRequest("A header continues on the next line.")
    headers = [line.partition(b":") for line in lines]
    lengths = [value.strip(b" \t") for name, _, value in headers if name.lower() == _LENGTH]
    if len(lengths) > 1 or not all(length.isdigit() for length in lengths):
        raise AmbiguousRequest("The length of the request is ambiguous.")


def _refuse_unclear_length(request: h11.Request) -> None:
    headers = dict(request.headers)
    if request.http_version not in VERSIONS:
        raise AmbiguousRequest("This version of HTTP is not supported.")
    if _ENCODING in headers and _LENGTH in headers:
        raise AmbiguousRequest("The request has both Content-Length and Transfer-Encoding.")
    if _ENCODING in headers and request.http_version == b"1.0":
        raise AmbiguousRequest("HTTP/1.0 has no Transfer-Encoding.")
    if _changes_protocol(request) and (_ENCODING in headers or headers.get(_LENGTH, b"0").strip(b"0")):
        raise AmbiguousRequest("A request that changes the protocol has no body.")


def _changes_protocol(request: h11.Request) -> bool:
    return any(name == _UPGRADE for name, _ in request.headers)


def _is_chunked(request: h11.Request) -> bool:
    return any(name == _ENCODING for name, _ in request.headers)


def _as_last(request: h11.Request) -> h11.Request:
    """The same request as the last one of its connection.

    Trailers and extensions of chunks have many spellings. Nothing is read after them, so none of them matters.
    """
    headers = [(name, value) for name, value in request.headers if name != b"connection"]
    return h11.Request(
        method=request.method,
        target=request.target,
        headers=[*headers, (b"connection", b"close")],
        http_version=request.http_version,
    )
