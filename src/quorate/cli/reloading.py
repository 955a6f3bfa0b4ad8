"""Settings that are changed while the server runs: read anew when it is told to, or when their file has changed."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from quorate.config import ConfigError, Settings

if TYPE_CHECKING:
    from quorate.app import App


class Reloader:
    def __init__(self, app: App, file: Path | None, read: Callable[[], Settings]) -> None:
        self._app = app
        self._file = file
        self._read = read
        self._known = self._state()

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """As long as the server runs: SIGHUP, and a look at the file before every call."""
        self._app.pipeline.sites.refresh = self.if_changed
        loop, hangup = asyncio.get_running_loop(), getattr(signal, "SIGHUP", None)  # Windows has none
        if hangup is not None:
            loop.add_signal_handler(hangup, self.reload)
        try:
            yield
        finally:
            if hangup is not None:
                loop.remove_signal_handler(hangup)

    def if_changed(self) -> None:
        if self._file is not None and self._state() != self._known:
            self.reload()

    def reload(self) -> None:
        """What is wrong in the new settings leaves the old ones in force: nothing is opened by a slip."""
        self._known = self._state()
        try:
            self._app.adopt(self._read())
        except ConfigError as error:
            print(f"quorate: the settings were not read anew, the old ones hold: {error}", file=sys.stderr)
        else:
            print("quorate: access, rules and limits were read anew", file=sys.stderr)

    def _state(self) -> tuple[int, int, int] | None:
        try:
            now = self._file.stat() if self._file else None
        except OSError:  # it is just being written
            return self._known
        return (now.st_mtime_ns, now.st_size, now.st_ino) if now else None
