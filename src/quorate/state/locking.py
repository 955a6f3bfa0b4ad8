"""One at a time, among all processes of the machine."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """The folder and not the file: closing a handle of a SQLite file would drop SQLite's own locks on it."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def lock_file(handle: int) -> None:
    """Held until the handle is closed, also by a crash."""
    fcntl.flock(handle, fcntl.LOCK_EX)
