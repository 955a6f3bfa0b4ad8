"""The body of an upload: one file in exactly the form that PVE parses, streamed.

PVE does not use a general multipart parser. It expects the fields in this order, then the file, whose headers must
start with its disposition, and it needs the length in advance.
"""

from __future__ import annotations

import asyncio
import io
import re
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import BinaryIO

from quorate.pve.tasks import Report
from quorate.server_files import ServerFile

FIELDS = ("content", "checksum-algorithm", "checksum")
PIECE = 512 * 1024


class FileChanged(Exception):
    """The file became shorter during the upload."""


@dataclass(frozen=True, slots=True)
class Upload:
    """The file to send, and where to report progress."""

    source: ServerFile | bytes
    report: Report | None = None


class UploadBody:
    """One transmission of a file; a retry needs a new one. `moved` is awaited for each piece that is sent.

    The caller closes it: aiohttp drops `pieces` wherever the connection breaks.
    """

    def __init__(
        self, params: Mapping[str, object], source: ServerFile | bytes, moved: Callable[[int, int], Awaitable[None]]
    ) -> None:
        self._moved = moved
        self._boundary = "quorate-" + secrets.token_hex(16)
        self._head = self._fields(params) + self._file_header(str(params["filename"]))
        self._tail = f"\r\n--{self._boundary}--\r\n".encode()
        self._file: BinaryIO = io.BytesIO(source) if isinstance(source, bytes) else source.open("rb")
        self.size = self._file.seek(0, io.SEEK_END)
        self._file.seek(0)
        self.sent = 0
        """Bytes of the file passed to the connection."""
        self.complete = False
        """Whether the last byte was passed on, so that PVE may have acted on it."""
        self.fault: Exception | None = None
        """Why the file could not be read completely."""

    @property
    def headers(self) -> dict[str, str]:
        return {
            "Content-Type": f"multipart/form-data; boundary={self._boundary}",
            "Content-Length": str(len(self._head) + self.size + len(self._tail)),
        }

    def close(self) -> None:
        self._file.close()

    async def pieces(self) -> AsyncIterator[bytes]:
        """The whole body, piece by piece as the connection has room, so little is held in memory."""
        yield self._head
        try:
            while self.sent < self.size:
                piece = await asyncio.to_thread(_read, self._file, min(PIECE, self.size - self.sent))
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


def _read(file: BinaryIO, count: int) -> bytes:
    piece = file.read(count)
    if not piece:
        raise FileChanged("the file became shorter while it was sent")
    return piece
