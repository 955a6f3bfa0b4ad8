"""The audit trail: one JSON line for every change that was tried, whatever became of it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from quorate.pve.errors import Problem


class AuditUnwritable(Problem):
    kind = "audit"


ROOM_FOR_ENTRIES = 256 * 1024


class AuditTrail:
    def __init__(self, file: Path) -> None:
        self._file = file

    def ensure_writable(self) -> None:
        """Changes that cannot be recorded are not made."""
        try:
            self._append(b"")
            free = os.statvfs(self._file).f_bavail * os.statvfs(self._file).f_frsize
        except OSError as error:
            raise self._unwritable("so nothing is changed", error.strerror or str(error)) from None
        if free < ROOM_FOR_ENTRIES:
            raise self._unwritable("so nothing is changed", "The disk is full")

    def record(self, entry: Mapping[str, Any]) -> None:
        try:
            self._append(msgspec.json.encode(entry) + b"\n")
        except OSError as error:
            what = f"{entry.get('tool')} is not recorded there; it ended with: {entry.get('outcome')}"
            raise self._unwritable(what, error.strerror or str(error)) from None

    def _unwritable(self, what: str, why: str) -> AuditUnwritable:
        return AuditUnwritable(
            f"The audit trail {self._file} cannot be written, {what}",
            why=why,
            next_step="Make room or set QUORATE_AUDIT_FILE to a writable place",
        )

    def _append(self, line: bytes) -> None:
        self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(handle, line)  # one write, so that lines of several processes never mix
        finally:
            os.close(handle)
