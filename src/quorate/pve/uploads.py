"""The body of an upload: one file in the very form that PVE's own reader takes, read and sent piece by piece.

PVE does not use a general multipart parser. It wants the fields in this order, then the file, whose headers must begin
with its disposition; and it wants to know the length beforehand.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from quorate.pve.tasks import Report

FIELDS = ("content", "checksum-algorithm", "checksum")
PIECE = 512 * 1024


class FileChanged(Exception):
    """The file became shorter while it was sent."""


@dataclass(frozen=True, slots=True)
class Upload:
    """What is to be sent, and who wants to hear how far it is."""

    source: Path | bytes
    report: Report | None = None


class UploadBody:
    """One sending of a file; a second attempt needs a new one. `moved` is awaited with each piece that goes out."""

    def __init__(
        self, params: Mapping[str, object], source: Path | bytes, moved: Callable[[int, int], Awaitable[None]]
    ) -> None:
        self._source = source
        self._moved = moved
        self._boundary = "quorate-" + secrets.token_hex(16)
        self._head = self._fields(params) + self._file_header(str(params["filename"]))
        self._tail = f"\r\n--{self._boundary}--\r\n".encode()
        self.size = len(source) if isinstance(source, bytes) else source.stat().st_size
        self.sent = 0
        """Bytes of the file that have been handed to the connection."""
        self.complete = False
        """Whether the last byte of the body has been handed over, so that PVE may have acted on it."""
        self.fault: Exception | None = None
        """Why the file could not be read to its end."""

    @property
    def headers(self) -> dict[str, str]:
        return {
            "Content-Type": f"multipart/form-data; boundary={self._boundary}",
            "Content-Length": str(len(self._head) + self.size + len(self._tail)),
        }

    async def pieces(self) -> AsyncIterator[bytes]:
        """The whole body. The next piece is asked for when the connection has room, so little is held in memory."""
        yield self._head
        try:
            async for piece in self._file():
                yield piece
                self.sent += len(piece)
                await self._moved(self.sent, self.size)
        except (OSError, FileChanged) as error:
            self.fault = error
            raise
        self.complete = True
        yield self._tail

    def _fields(self, params: Mapping[str, object]) -> bytes:
        return b"".join(
            f'--{self._boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{params[name]}\r\n'.encode()
            for name in FIELDS
            if params.get(name) is not None
        )

    def _file_header(self, filename: str) -> bytes:
        filename = re.sub(r'[\x00-\x1f"]', "_", filename)
        return (
            f'--{self._boundary}\r\nContent-Disposition: form-data; name="filename"; filename="{filename}"\r\n'
            "Content-Type: application/octet-stream\r\n\r\n"
        ).encode()

    async def _file(self) -> AsyncIterator[bytes]:
        if isinstance(self._source, bytes):
            for start in range(0, self.size, PIECE):
                yield self._source[start : start + PIECE]
            return
        file = await asyncio.to_thread(self._source.open, "rb")
        try:
            left = self.size
            while left:
                piece = await asyncio.to_thread(_read, file, min(PIECE, left))
                left -= len(piece)
                yield piece
        finally:
            file.close()


def _read(file: BinaryIO, count: int) -> bytes:
    piece = file.read(count)
    if not piece:
        raise FileChanged("the file became shorter while it was sent")
    return piece
