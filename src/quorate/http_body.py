"""The body of an HTTP response, decompressed as it arrives and bounded in size, before and after."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import aiohttp

ACCEPTED = {"Accept-Encoding": "gzip, deflate"}
"""Sent with every request: the encodings that `read_body` supports."""
MOST_RATIO = 250
"""Long tables of PVE reach fifty; a compression bomb reaches a thousand."""
RATIO_COUNTS_FROM = 1 << 20
PIECE = 1 << 16


class BodyRefused(ValueError):
    """It is too large or badly encoded. The message completes "the answer …"."""


async def read_body(response: aiohttp.ClientResponse, most: int) -> bytes | bytearray:
    """Read the whole body without a second copy. The session must use auto_decompress=False."""
    encoding = response.headers.get("Content-Encoding", "").strip().lower()
    unpacking = None if encoding in ("", "identity") else _Unpacking(encoding, most)
    body: bytes | bytearray = b""
    async for piece in response.content.iter_chunked(PIECE):
        more = piece if unpacking is None else unpacking.feed(piece)
        if isinstance(body, bytes):  # most have only one piece
            body = bytearray(body) + more if body else more
        else:
            body += more
        if len(body) > most:
            raise BodyRefused(f"is longer than {most} bytes")
    if unpacking is not None:
        unpacking.finish()
    return body


class _Unpacking:
    def __init__(self, encoding: str, most: int) -> None:
        if encoding not in ("gzip", "x-gzip", "deflate"):
            raise BodyRefused(f"comes packed as {encoding[:40]!r}, which was not asked for")
        self._zlib = zlib.decompressobj(zlib.MAX_WBITS | 32 if encoding != "deflate" else zlib.MAX_WBITS)
        self._most = most
        self._taken = self._given = 0

    def feed(self, piece: bytes) -> bytes:
        self._taken += len(piece)
        try:
            unpacked = self._zlib.decompress(piece, self._most + 1 - self._given)
        except zlib.error as error:
            raise BodyRefused(f"cannot be unpacked: {error}") from None
        self._given += len(unpacked)
        if self._given > self._most:
            raise BodyRefused(f"is longer than {self._most} bytes")
        if self._given > RATIO_COUNTS_FROM and self._given > MOST_RATIO * self._taken:
            raise BodyRefused(f"unpacks to more than {MOST_RATIO} times its size")
        return unpacked

    def finish(self) -> None:
        if self._taken and not self._zlib.eof:
            raise BodyRefused("breaks off")
