"""Uploads: the multipart body of a file, taken in piece by piece in the order that PVE insists on.

PVE's HTTP server has its own reader for these bodies. It wants the fields `content`, `checksum-algorithm` and
`checksum` in this order and then the file, and takes everything up to the closing boundary as the file. This one
does the same, counts and hashes what passes, and keeps nothing of it.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from typing import Protocol

_FIELDS = ("content", "checksum-algorithm", "checksum")
_ALGORITHMS = ("md5", "sha1", "sha224", "sha256", "sha384", "sha512")
_MOST_FIELDS = 64 * 1024
_HEADER_END = re.compile(rb"\r?\n\r?\n")
_FILE_PART = re.compile(
    rb'Content-Disposition: (?P<sort>.*?); name="(?P<name>.*?)"; filename="(?P<file>[^"]+)"\r?\n', re.DOTALL
)
_FIELD_PART = re.compile(rb'.*?Content-Disposition: (?P<sort>.*?); name="(?P<name>[^"]*)"', re.DOTALL)
_BOUNDARY = re.compile(r"boundary\s*=\s*\"?([^\s\";,]+)")


class BadUpload(Exception):
    """A body that PVE's HTTP server gives up on, with HTTP 501."""

    def __init__(self, reason: str, status: int = 501) -> None:
        super().__init__(reason)
        self.status = status


class _Hash(Protocol):
    def update(self, data: bytes, /) -> None: ...

    def hexdigest(self) -> str: ...


def boundary_of(content_type: str) -> str | None:
    """The boundary of a multipart body, None if the header announces anything else."""
    if content_type.partition(";")[0].strip().lower() != "multipart/form-data":
        return None
    match = _BOUNDARY.search(content_type)
    return match[1] if match else None


@dataclass(slots=True)
class Upload:
    """Takes the body with `feed`; after `finish` it knows the fields, the size and the checksum of the file."""

    boundary: str
    fields: dict[str, str] = field(default_factory=dict)
    size: int = 0
    _buffer: bytes = b""
    _in_file: bool = False
    _done: bool = False
    _hash: _Hash | None = None

    @property
    def checksum(self) -> str | None:
        """The file's checksum, if the fields asked for a known algorithm."""
        return None if self._hash is None else self._hash.hexdigest()

    def feed(self, data: bytes) -> None:
        """The next piece of the body."""
        if self._done:
            return
        self._buffer += data
        if not self._in_file:
            self._read_fields()
            if not self._in_file and len(self._buffer) > _MOST_FIELDS:
                raise BadUpload("upload failed")
        if self._in_file:
            self._read_file()

    def finish(self) -> None:
        """The body is over; it must have come to its closing boundary."""
        if not self._done:
            raise BadUpload("upload failed")

    def _read_fields(self) -> None:
        delimiter = f"--{self.boundary}".encode()
        start = self._buffer.find(delimiter)
        if start < 0:
            return
        self._buffer = self._buffer[start:]
        while not self._in_file:
            part = self._next_part(delimiter)
            if part is None:
                return
            self._take_field(part)

    def _next_part(self, delimiter: bytes) -> bytes | None:
        """One whole field, or None if the file begins or more has to come first."""
        after = self._after_delimiter(delimiter)
        if after is None:
            return None
        file_part = _FILE_PART.match(self._buffer, after)
        header_end = _HEADER_END.search(self._buffer, after)
        if file_part is not None and header_end is not None and file_part.end() <= header_end.start() + 2:
            self._begin_file(file_part, header_end.end())
            return None
        if header_end is not None and b'filename="' in self._buffer[after : header_end.start()]:
            raise BadUpload("upload failed")  # a file whose headers do not begin with its disposition
        following = self._buffer.find(delimiter, after)
        if following < 0:
            return None
        part = self._buffer[after:following]
        self._buffer = self._buffer[following:]
        return part

    def _after_delimiter(self, delimiter: bytes) -> int | None:
        rest = self._buffer[len(delimiter) : len(delimiter) + 2]
        if len(rest) < 2:
            return None
        if rest == b"--":  # the end, before any file
            raise BadUpload("upload failed")
        return len(delimiter) + (2 if rest == b"\r\n" else 1)

    def _take_field(self, part: bytes) -> None:
        match = _FIELD_PART.match(part)
        header_end = _HEADER_END.search(part)
        name = match["name"].decode("utf-8", "replace") if match else ""
        if match is None or header_end is None or name not in _FIELDS:
            raise BadUpload(f"wrong field name '{name}\"")
        _check_sort(match["sort"])
        position = _FIELDS.index(name)
        if any(later in self.fields for later in _FIELDS[position:]):
            raise BadUpload(f'wrong Content-Disposition \'form-data; name="{name}"')
        self.fields[name] = part[header_end.end() :].decode("utf-8", "replace").strip()

    def _begin_file(self, match: re.Match[bytes], data_start: int) -> None:
        _check_sort(match["sort"])
        name = match["name"].decode("utf-8", "replace")
        if name != "filename":
            raise BadUpload(f"wrong field name '{name}' for file upload, expected 'filename'", status=500)
        self.fields["filename"] = match["file"].decode("utf-8", "replace").strip()
        algorithm = self.fields.get("checksum-algorithm", "")
        if algorithm in _ALGORITHMS:
            self._hash = hashlib.new(algorithm, usedforsecurity=False)
        self._in_file = True
        self._buffer = self._buffer[data_start:]

    def _read_file(self) -> None:
        closing = f"--{self.boundary}--".encode()
        end = self._buffer.find(closing)
        if end >= 0:
            data = self._buffer[:end]
            self._write(data[:-2] if data.endswith(b"\r\n") else data.removesuffix(b"\n"))
            self._buffer, self._done = b"", True
            return
        keep = len(closing) + 2  # a boundary may be cut in two by the pieces
        if len(self._buffer) > keep:
            self._write(self._buffer[:-keep])
            self._buffer = self._buffer[-keep:]

    def _write(self, data: bytes) -> None:
        self.size += len(data)
        if self._hash is not None:
            self._hash.update(data)


def _check_sort(sort: bytes) -> None:
    text = sort.decode("utf-8", "replace").splitlines()[0]
    if text != "form-data":
        raise BadUpload(f"wrong Content-Disposition '{text}' in multipart, expected 'form-data'")
