"""Files that hold secrets: ours alone, and no longer than a secret is."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from quorate.problems import NotConfigured


def read_private(file: Path, most: int) -> bytes:
    """Its content, if the file is a plain one of our own user that nobody else may open."""
    try:
        handle = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise _unusable(file, error.strerror) from None
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise _unusable(file, "It is no plain file")
        if status.st_uid != os.geteuid():
            raise _unusable(file, "It belongs to another user", f"Run `chown {os.geteuid()} {file}`")
        if status.st_mode & 0o077:
            raise _unusable(file, "Others may open it", f"Run `chmod 600 {file}`")
        content = os.read(handle, most + 1)
    finally:
        os.close(handle)
    if len(content) > most:
        raise _unusable(file, f"It is longer than {most} bytes")
    return content


def _unusable(file: Path, why: str | None, next_step: str | None = None) -> NotConfigured:
    return NotConfigured(f"The secret file {file} cannot be used", why=why, next_step=next_step)
