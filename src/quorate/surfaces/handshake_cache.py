"""What the server answered to a client's first questions, kept for the next start.

Importing the MCP SDK takes most of a start. What `initialize` and the lists answer depends on the question, the
settings and the code alone, so the same question gets the answer of the last start while the server is still loading
(`early_handshake.py`). The server is asked as well: an answer that turns out to be different is replaced.

A file of the cache is used only if it belongs to this user, nobody else may read or write it, and it was written for
exactly these settings and this code. It contains what any client of this server sees, and no settings or secrets.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import stat
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

import pve_schema
from quorate import __version__
from quorate.config import Settings
from quorate.config.folders import usual_cache
from quorate.secret import Secret

INITIALIZE, INITIALIZED = "initialize", "notifications/initialized"
CACHED = frozenset(
    {INITIALIZE, "server/discover", "tools/list", "prompts/list", "resources/list", "resources/templates/list"}
)
VERSION_IN_META = "io.modelcontextprotocol/protocolVersion"
"""In the `_meta` of every request since 2026-07-28, which has no `initialize`."""
MOST_ANSWERS = 48
MOST_FILES = 16
MOST_BYTES = 8 * 1024 * 1024


class Questions:
    """The requests of one session in their order, each with the digest under which its answer is cached."""

    def __init__(self) -> None:
        self._opening: str | None = None
        """The digest of `initialize`; it determines the version of all answers that follow."""
        self._initialized = False
        self._modern = False

    def digest(self, method: str, params: Any) -> str | None:
        """None if the answer must come from the server."""
        if method == INITIALIZED:
            self._initialized = self._opening is not None
        if method not in CACHED:
            return None
        modern = isinstance(params, dict) and VERSION_IN_META in (params.get("_meta") or {})
        digest = hashlib.sha256(_encode([None if modern else self._opening, method, params])).hexdigest()
        if method == INITIALIZE:
            if modern or self._modern or self._opening is not None:
                return None
            self._opening = digest
            return digest
        self._modern = self._modern or (modern and self._opening is None)
        return digest if (self._modern if modern else self._initialized) else None


class _File(msgspec.Struct):
    key: str
    answers: dict[str, msgspec.Raw]


class HandshakeCache:
    def __init__(self, folder: Path, key: str) -> None:
        self._key = key
        self._file = folder / f"{key[:32]}.json"
        self._answers: dict[str, msgspec.Raw] = _load(self._file, key)

    @classmethod
    def of(cls, settings: Settings, *, demo: bool = False) -> HandshakeCache | None:
        """The cache for a server with these settings. None where the owner of a file cannot be determined."""
        if not hasattr(os, "geteuid"):
            return None
        return cls(usual_cache() / "handshakes", _key(settings, demo))

    def __bool__(self) -> bool:
        return bool(self._answers)

    def find(self, digest: str | None) -> bytes | None:
        found = None if digest is None else self._answers.get(digest)
        return None if found is None else bytes(found)

    def record(self, digest: str, result: bytes) -> None:
        """Keep what the server has answered."""
        if self.find(digest) == result:
            return
        if digest in self._answers:
            sys.stderr.write("quorate: a cached list was outdated and is replaced; reconnect the client to see it\n")
        self._answers = {**self._answers, digest: msgspec.Raw(result)}
        for oldest in list(self._answers)[:-MOST_ANSWERS]:
            del self._answers[oldest]
        with contextlib.suppress(OSError):  # the next start is slower, that is all
            self._save()

    def _save(self) -> None:
        folder = self._file.parent
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _is_private(folder.lstat(), stat.S_ISDIR):
            return
        draft = folder / f"{self._file.name}.{os.getpid()}"
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as file:
            file.write(msgspec.json.encode(_File(self._key, self._answers)))
        draft.replace(self._file)
        for stale in sorted(folder.iterdir(), key=lambda one: one.lstat().st_mtime_ns)[:-MOST_FILES]:
            stale.unlink()


def _load(file: Path, key: str) -> dict[str, msgspec.Raw]:
    try:
        if not _is_private(file.parent.lstat(), stat.S_ISDIR):
            return {}
        with open(os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as opened:
            if not _is_private(os.fstat(opened.fileno()), stat.S_ISREG):
                return {}
            found = msgspec.json.decode(opened.read(MOST_BYTES), type=_File)
    except (OSError, msgspec.DecodeError):
        return {}
    return found.answers if found.key == key else {}


def _is_private(found: os.stat_result, kind: Any) -> bool:
    return bool(kind(found.st_mode)) and found.st_uid == os.geteuid() and not stat.S_IMODE(found.st_mode) & 0o077


def _key(settings: Settings, demo: bool) -> str:
    """A digest of everything that answers depend on, without the state's address, which may contain a password."""
    known = [__version__, sys.version, _stamps(), demo, replace(settings, state="")]
    return hashlib.sha256(_encode(known)).hexdigest()


def _stamps() -> list[Any]:
    """Versions of all packages, and the files of those in this repository, which may be edited in place."""
    sdk = importlib.util.find_spec("mcp")
    site = Path(sdk.origin).parents[1] if sdk and sdk.origin else None
    installed = sorted(name for name in os.listdir(site) if name.endswith(".dist-info")) if site else []
    ours = []
    for package in (Path(__file__).parents[1], Path(pve_schema.__file__).parent):
        for folder, below, files in os.walk(package):
            below[:] = [name for name in below if name not in ("__pycache__", "data")]
            for name in files:
                found = os.stat(os.path.join(folder, name))
                ours.append((folder, name, found.st_mtime_ns, found.st_size))
    return [str(site), installed, sorted(ours)]


def _encode(value: Any) -> bytes:
    return msgspec.json.encode(value, enc_hook=_plain, order="deterministic")


def _plain(value: Any) -> Any:
    """What JSON lacks: paths and networks as text. Secrets and functions change no answer and are left out."""
    return None if isinstance(value, Secret) or callable(value) else str(value)
