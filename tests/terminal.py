"""A command in a real terminal: what it shows is read, what a person would type is typed."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

PATIENCE = 60.0
AGAIN_SECONDS = 2.0
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    def __init__(self, process: subprocess.Popen[bytes], screen: int) -> None:
        self._process = process
        self._screen = screen
        self._seen = 0
        self.text = ""

    def expect(self, wanted: str) -> str:
        """Read on until this appears; what came since the last expectation is given back."""
        deadline = time.monotonic() + PATIENCE
        while wanted not in self.text[self._seen :]:
            left = deadline - time.monotonic()
            assert left > 0, f"{wanted!r} never appeared in:\n{self.text}"
            assert self._read(left), f"it ended without {wanted!r}:\n{self.text}"
        end = self.text.index(wanted, self._seen) + len(wanted)
        shown, self._seen = self.text[self._seen : end], end
        return shown

    def type(self, line: str) -> None:
        os.write(self._screen, line.encode() + b"\n")

    def interrupt(self) -> int:
        """Press Ctrl-C until it ends, as a person does: one that comes just before it reads is only noticed then."""
        deadline = time.monotonic() + PATIENCE
        while self._process.poll() is None and time.monotonic() < deadline:
            os.write(self._screen, b"\x03")
            while self._read(AGAIN_SECONDS):
                pass
        return self._process.wait(PATIENCE)

    def end(self) -> int:
        """Wait for the end of the command; its exit code."""
        deadline = time.monotonic() + PATIENCE
        while self._read(deadline - time.monotonic()):
            pass
        return self._process.wait(PATIENCE)

    def _read(self, seconds: float) -> bool:
        if not select.select([self._screen], [], [], max(0.0, seconds))[0]:
            return False
        try:
            shown = os.read(self._screen, 65536)
        except OSError:  # the other end is closed
            return False
        self.text += _ESCAPES.sub("", shown.decode(errors="replace").replace("\r\n", "\n"))
        return bool(shown)


@contextmanager
def terminal(*arguments: str, environ: Mapping[str, str]) -> Iterator[Terminal]:
    """`quorate` with these arguments, on a terminal of its own that is also its controlling one."""
    screen, inner = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", _TAKE_TERMINAL, *arguments],
        stdin=inner,
        stdout=inner,
        stderr=inner,
        env={**environ, "TERM": "dumb"},
        start_new_session=True,
    )
    os.close(inner)
    try:
        yield Terminal(process, screen)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            process.wait()
        os.close(screen)


_TAKE_TERMINAL = """
import fcntl, signal, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGINT, signal.default_int_handler)
from quorate.cli import main
main(sys.argv[1:])
"""
