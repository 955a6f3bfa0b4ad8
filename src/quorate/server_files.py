"""Files of the machine that runs Quorate, where a caller names them: an image to upload, a private key, a new file.

A caller on the same machine, over stdio or at the command line, could open them itself. Everyone else may use only
what the operator set aside in a folder. Any other path gets the same refusal, whether or not something is there: the
answer must not tell which files exist. The path alone decides whether anything is opened.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

from quorate.hints import Advice
from quorate.problems import Refused

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class ServerFile:
    path: Path
    folder: Path | None = None
    """The folder that it must be in, without links; None for a caller on this machine."""

    def open(self, mode: Literal["rb"] = "rb") -> BinaryIO:
        """Open it again, with every check. Raises OSError if it is not there, or not a file that may be used."""
        if self.folder is None:
            return self.path.open(mode)
        return os.fdopen(_open_below(self.folder, self.path.relative_to(self.folder).parts), mode)

    @property
    def size(self) -> int:
        with self.open() as file:
            return os.fstat(file.fileno()).st_size

    def is_taken(self) -> bool:
        """Whether anything is there, even a link to nothing. Raises OSError if its folder may not be used."""
        with self._parent() as folder:
            try:
                os.stat(self.path.name, dir_fd=folder, follow_symlinks=False)
            except FileNotFoundError:
                return False
        return True

    def create(self, data: bytes) -> None:
        """Write it for its owner alone. Raises OSError if anything is there, or if its folder may not be used."""
        with self._parent() as folder, os.fdopen(os.open(self.path.name, _NEW_FILE, 0o600, dir_fd=folder), "wb") as new:
            new.write(data)

    @contextmanager
    def _parent(self) -> Iterator[int]:
        if self.folder is None:
            handle = os.open(self.path.parent, _FOLDER)
        else:
            handle = _open_folder_below(self.folder, self.path.relative_to(self.folder).parts[:-1])
        try:
            yield handle
        finally:
            os.close(handle)


@dataclass(frozen=True, slots=True)
class ServerFiles:
    """Which files of this machine a caller may name."""

    local: bool = True
    """Whether the caller is on this machine."""
    folders: tuple[Path, ...] = ()
    """What all other callers may use."""
    setting: str = ""
    """Where the operator lists these folders."""

    def find(self, text: str, otherwise: str | Advice) -> ServerFile:
        """The file of that path. Raises OSError for a caller on this machine, and one Refused for any other.

        `otherwise` is what the caller can do instead.
        """
        if self.local:
            return ServerFile(expand_home(text).resolve(strict=True))
        for folder in self.folders:
            file = _file_below(folder, text)
            with suppress(OSError, ValueError):
                if file is not None:
                    file.open().close()
                    return file
        raise self.refusal(otherwise)

    def place(self, text: str, otherwise: str | Advice) -> ServerFile:
        """A path for a new file. Raises OSError for a caller on this machine, and one Refused for any other."""
        if self.local:
            return ServerFile(expand_home(text).absolute())
        for folder in self.folders:
            file = _file_below(folder, text)
            with suppress(OSError, ValueError):
                if file is not None:
                    file.is_taken()
                    return file
        raise self.refusal(otherwise)

    def require(self, text: str, otherwise: str | Advice) -> None:
        """Refuse a path that `find` would refuse to a caller elsewhere."""
        if not self.local:
            self.find(text, otherwise)

    def refusal(self, otherwise: str | Advice) -> Refused:
        return Refused(
            "Callers over HTTP cannot use this file of the server",
            why=f"They can use regular files, but no links, in the folders that the operator lists as {self.setting}",
            next_step=otherwise,
        )


def expand_home(text: str) -> Path:
    """The path with `~` replaced. Raises FileNotFoundError if it names an unknown user."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise FileNotFoundError(2, "Its home directory is unknown") from None


def _file_below(folder: Path, text: str) -> ServerFile | None:
    """By the text alone: nothing is read, and `..` leads nowhere."""
    path = Path(text)
    if ".." in path.parts or path == folder or not path.is_relative_to(folder):
        return None
    return ServerFile(path, folder)


def _open_folder_below(folder: Path, parts: Sequence[str]) -> int:
    """Open one folder after the other, so that no link leads elsewhere, not even one that appears in the meantime."""
    handle = os.open(folder, _FOLDER)
    for part in parts:
        try:
            inner = os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=handle)
        finally:
            os.close(handle)
        handle = inner
    return handle


def _open_below(folder: Path, parts: Sequence[str]) -> int:
    handle = _open_folder_below(folder, parts[:-1])
    try:
        file = os.open(parts[-1], _FILE, dir_fd=handle)
    finally:
        os.close(handle)
    status = os.fstat(file)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:  # a second name may be elsewhere
        os.close(file)
        raise OSError("It is not a regular file with a single name")
    return file
