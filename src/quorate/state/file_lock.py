"""Locks among all processes of a machine."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Locks the folder, because closing a handle of a SQLite file would drop SQLite's own locks on it."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def lock_file(handle: int) -> None:
    """Held until the handle is closed, even by a crash."""
    fcntl.flock(handle, fcntl.LOCK_EX)


class NamedLocks:
    """Locks that end with the process: one file per name, locked while its holder lives."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held: dict[str, int] = {}

    def hold(self, name: str) -> None:
        if name in self._held:
            return
        self._folder.mkdir(mode=0o700, exist_ok=True)
        handle = os.open(self._folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(handle, fcntl.LOCK_EX)
        self._held[name] = handle

    def is_held(self, name: str) -> bool:
        """Removes the file if its holder is gone, because names are never reused."""
        if name in self._held:
            return True
        try:
            handle = os.open(self._folder / name, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            (self._folder / name).unlink(missing_ok=True)
        except BlockingIOError:
            return True
        finally:
            os.close(handle)
        return False

    def release(self) -> None:
        for name, handle in self._held.items():
            (self._folder / name).unlink(missing_ok=True)
            os.close(handle)
        self._held.clear()
