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


class AuditTrail:
    def __init__(self, file: Path) -> None:
        self._file = file

    def ensure_writable(self) -> None:
        """Changes that cannot be recorded are not made."""
        self._append(b"")

    def record(self, entry: Mapping[str, Any]) -> None:
        self._append(msgspec.json.encode(entry) + b"\n")

    def _append(self, line: bytes) -> None:
        try:
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                os.write(handle, line)  # one write, so that lines of several processes never mix
            finally:
                os.close(handle)
        except OSError as error:
            raise AuditUnwritable(
                f"The audit trail {self._file} cannot be written, so nothing is changed",
                why=error.strerror or str(error),
                next_step="Make room or set QUORATE_AUDIT_FILE to a writable place",
            ) from None
