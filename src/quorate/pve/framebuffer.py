"""The picture on a screen: assembled from pieces, scaled down, written as PNG."""

from __future__ import annotations

import struct
import zlib

PIXEL = 4
"""Bytes of a pixel: red, green, blue, and one unused."""
_CHANNELS = 3
_PNG = b"\x89PNG\r\n\x1a\n"
_RGB_8_BIT = bytes([8, 2, 0, 0, 0])


class Picture:
    """A screen of this size, empty at first."""

    def __init__(self, width: int, height: int) -> None:
        self.width = width
        self.height = height
        self.missing = width * height
        """Pixels that have not arrived yet."""
        self._pixels = bytearray(width * height * PIXEL)
        self._known = bytearray(width * height)

    def put(self, x: int, y: int, row: bytes) -> None:
        """Set part of one line, which must be inside the screen."""
        start = y * self.width + x
        end = start + len(row) // PIXEL
        self.missing -= self._known.count(0, start, end)
        self._known[start:end] = b"\x01" * (end - start)
        self._pixels[start * PIXEL : end * PIXEL] = row

    @property
    def plain(self) -> bool:
        """Whether it has only one color."""
        whole = memoryview(self._pixels)
        return all(len(set(whole[channel::PIXEL].tobytes())) == 1 for channel in range(_CHANNELS))

    def png(self, factor: int = 1) -> bytes:
        """As PNG, each side `factor` (at most 16) times smaller."""
        width, height = self.width // factor, self.height // factor
        lines = bytearray()
        for y in range(height):
            lines += b"\0"  # no filter: most screens are text and flat colors
            lines += self._line(y, width) if factor == 1 else self._shrunk_line(y, width, factor)
        head = struct.pack(">II", width, height) + _RGB_8_BIT
        return _PNG + _chunk(b"IHDR", head) + _chunk(b"IDAT", zlib.compress(lines, 9)) + _chunk(b"IEND", b"")

    def _line(self, y: int, width: int) -> bytearray:
        source = self._source(y)
        line = bytearray(width * _CHANNELS)
        for channel in range(_CHANNELS):
            line[channel::_CHANNELS] = source[channel::PIXEL]
        return line

    def _shrunk_line(self, y: int, width: int, factor: int) -> bytearray:
        """One line of averages over squares of `factor` pixels a side.

        All pixels of a line are added up at once, as one long integer with four bytes for each of them. Averages need
        less than that: the sum times 65536 / factor², rounded up, has the average in its third byte.
        """
        area = range(factor)
        share = -(-65536 // factor**2)
        sources = [self._source(y * factor + dy) for dy in area]
        line = bytearray(width * _CHANNELS)
        for channel in range(_CHANNELS):
            starts = [channel + dx * PIXEL for dx in area]
            total = sum(_spread(source[at :: PIXEL * factor][:width]) for source in sources for at in starts)
            line[channel::_CHANNELS] = (total * share).to_bytes(width * 4, "little")[2::4]
        return line

    def _source(self, y: int) -> bytes:
        return bytes(self._pixels[y * self.width * PIXEL : (y + 1) * self.width * PIXEL])


def _spread(values: bytes) -> int:
    """One integer with four bytes for each value."""
    apart = bytearray(len(values) * 4)
    apart[0::4] = values
    return int.from_bytes(apart, "little")


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
