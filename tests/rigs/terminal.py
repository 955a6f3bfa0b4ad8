"""A command in a real terminal: the test reads what it shows and types what a person would."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path

from tests.rigs.processes import FORKED, PATIENCE, become_quorate

AGAIN_SECONDS = 2.0
_READY = b"\0"
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    def __init__(self, process: BaseProcess, screen: int, inner: int) -> None:
        self._process = process
        self._screen = screen
        self._seen = 0
        self.text = ""
        self.expect(_READY.decode())
        os.close(inner)  # now that the process has it open
        self.text, self._seen = self.text[self._seen :], 0

    def expect(self, expected: str) -> str:
        """Read until this appears; return what came since the last expectation."""
        deadline = time.monotonic() + PATIENCE
        while expected not in self.text[self._seen :]:
            left = deadline - time.monotonic()
            assert left > 0, f"{expected!r} never appeared in:\n{self.text}"
            assert self._read(left), f"it ended without {expected!r}:\n{self.text}"
        end = self.text.index(expected, self._seen) + len(expected)
        shown, self._seen = self.text[self._seen : end], end
        return shown

    def type(self, line: str) -> None:
        self.press(f"{line}\n")

    def press(self, keys: str) -> None:
        os.write(self._screen, keys.encode())

    def interrupt(self) -> int:
        """Press Ctrl-C until the command ends, as a person does: the first may come before it reads."""
        deadline = time.monotonic() + PATIENCE
        while self._process.is_alive() and time.monotonic() < deadline:
            self.press("\x03")
            while self._read(AGAIN_SECONDS):
                pass
        return self._exit_code()

    def end(self) -> int:
        """Wait until the command ends; return its exit code."""
        deadline = time.monotonic() + PATIENCE
        while self._read(deadline - time.monotonic()):
            pass
        return self._exit_code()

    def _exit_code(self) -> int:
        self._process.join(PATIENCE)
        assert self._process.exitcode is not None, self.text
        return self._process.exitcode

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
    """Run `quorate` with these arguments on its own controlling terminal."""
    screen, inner = pty.openpty()
    process = FORKED.Process(
        target=_run_quorate, args=(os.ttyname(inner), arguments, {**environ, "TERM": "dumb"}, Path.cwd()), daemon=True
    )
    process.start()
    try:
        yield Terminal(process, screen, inner)
    finally:
        process.kill()
        process.join()
        os.close(screen)


def _run_quorate(place: str, arguments: Sequence[str], environ: Mapping[str, str], cwd: Path) -> None:
    os.setsid()
    inner = os.open(place, os.O_RDWR)  # the first terminal that is opened becomes the controlling one
    for standard in (0, 1, 2):
        os.dup2(inner, standard)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.write(inner, _READY)
    become_quorate(arguments, environ, cwd)
