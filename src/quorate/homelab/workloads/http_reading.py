"""An HTTP/1.1 answer, read as its bytes come in."""

from __future__ import annotations

import re

from quorate.problems import ServerFailed

LONGEST_HEAD = 64 * 1024
_LENGTH = re.compile(rb"[0-9A-Fa-f]{1,15}")


class Response:
    """Feed it; `status` is there after the head, `done` after the body. Of a longer body its first bytes are kept."""

    def __init__(self, most: int) -> None:
        self.status = 0
        self.body = bytearray()
        self.cut = False
        self.done = False
        self._most = most
        self._raw = bytearray()
        self._left: int | None = None
        """Bytes until the end of the body, or of the chunk; None: until the other side hangs up."""
        self._chunked = False

    def feed(self, data: bytes) -> bytes:
        """The part of the body that these bytes brought."""
        self._raw += data
        while not self.status and self._take_head():
            pass
        if not self.status or self.done:
            return b""
        fresh = self._take_chunks() if self._chunked else self._take(self._left)
        if not self._chunked and self._left is not None:
            self._left -= len(fresh)
            self.done = self._left == 0
        room = max(0, self._most - len(self.body))
        self.body += fresh[:room]
        self.cut = self.cut or len(fresh) > room
        return fresh

    def hang_up(self) -> None:
        """The other side has ended; that may be the end of the body, or come too early."""
        if self.status and not self._chunked and self._left is None:
            self.done = True
        if not self.done:
            raise ServerFailed("The answer broke off", why="The other side hung up in the middle of it")

    def _take_head(self) -> bool:
        """Whether there was one; an interim one (100 Continue) only makes room for the next."""
        end = self._raw.find(b"\r\n\r\n")
        if end < 0:
            if len(self._raw) > LONGEST_HEAD:
                raise _nonsense()
            return False
        first, *lines = bytes(self._raw[:end]).decode("latin-1").split("\r\n")
        del self._raw[: end + 4]
        version, _, rest = first.partition(" ")
        code = rest[:3]
        if not version.startswith("HTTP/1.") or not (code.isascii() and code.isdecimal() and len(code) == 3):
            raise _nonsense()
        if code.startswith("1"):
            return True
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        self._begin_body(int(code), headers)
        return True

    def _begin_body(self, status: int, headers: dict[str, str]) -> None:
        self.status = status
        self._chunked = headers.get("transfer-encoding", "").lower() == "chunked"
        length = headers.get("content-length", "")
        if status in (204, 304):
            self.done = True
        elif self._chunked:
            self._left = 0
        elif length:
            if not (length.isascii() and length.isdecimal()):
                raise _nonsense()
            self._left = int(length)
            self.done = self._left == 0

    def _take(self, count: int | None) -> bytes:
        taken = bytes(self._raw if count is None else self._raw[:count])
        del self._raw[: len(taken)]
        return taken

    def _take_chunks(self) -> bytes:
        fresh = bytearray()
        while not self.done:
            assert self._left is not None
            if self._left:
                part = self._take(self._left)
                self._left -= len(part)
                fresh += part
                if not part:
                    break
            elif not self._next_chunk():
                break
        return bytes(fresh)

    def _next_chunk(self) -> bool:
        """Read the length of the next chunk, past the end of the last one; False if more has to come first."""
        if self._raw.startswith(b"\r\n"):
            del self._raw[:2]
        end = self._raw.find(b"\r\n")
        if end < 0:
            if len(self._raw) > LONGEST_HEAD:
                raise _nonsense()
            return False
        length = bytes(self._raw[:end]).partition(b";")[0].strip()
        if not _LENGTH.fullmatch(length):
            raise _nonsense()
        self._left = int(length, 16)
        del self._raw[: end + 2]
        self.done = self._left == 0
        return not self.done


def _nonsense() -> ServerFailed:
    return ServerFailed("What answered is no HTTP server", next_step="Something else may listen on that socket")
