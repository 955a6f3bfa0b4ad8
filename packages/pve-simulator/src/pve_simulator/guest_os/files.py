"""A file system in memory, with the error texts of a Unix one."""

from __future__ import annotations

import posixpath
import stat
from collections.abc import Callable
from dataclasses import dataclass, field, replace

NOT_FOUND = "No such file or directory"
IS_DIRECTORY = "Is a directory"
NOT_DIRECTORY = "Not a directory"
EXISTS = "File exists"
NOT_EMPTY = "Directory not empty"

_MAX_LINKS = 16


class FileError(Exception):
    """A file error with the kernel's text, such as "No such file or directory"."""

    def __init__(self, path: str, text: str) -> None:
        super().__init__(text)
        self.path = path
        self.text = text


@dataclass(slots=True)
class Entry:
    """One file, directory, link or special file. `content` may be computed on each read, as in /proc."""

    content: bytes | Callable[[], bytes] | None = None  # None: a directory
    link: str | None = None
    mode: int = 0o644
    owner: str = "root"
    mtime: float = 0.0
    children: dict[str, Entry] = field(default_factory=dict)
    group: str = "root"
    special: int | None = None  # the type of a pipe, socket or device, as in stat.S_IFIFO

    @property
    def kind(self) -> int:
        """The file type bits of st_mode."""
        if self.special is not None:
            return self.special
        return stat.S_IFDIR if self.is_directory else stat.S_IFLNK if self.link is not None else stat.S_IFREG

    @property
    def is_directory(self) -> bool:
        return self.content is None and self.link is None

    @property
    def is_virtual(self) -> bool:
        return callable(self.content)

    def read(self) -> bytes:
        if callable(self.content):
            return self.content()
        return self.content or b""

    def copy(self) -> Entry:
        return replace(self, children={name: child.copy() for name, child in self.children.items()})

    def mode_text(self) -> str:
        """The mode as `ls -l` shows it."""
        return stat.filemode(self.kind | self.mode)

    @property
    def size(self) -> int:
        if self.link is not None:
            return len(self.link)
        return 4096 if self.is_directory else 0 if self.is_virtual else len(self.read())


class FileSystem:
    """The tree of one guest. All paths are absolute; see `absolute`."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._root = Entry(mode=0o755, mtime=now())

    def snapshot(self) -> Entry:
        """A copy of the whole tree, for `restore`."""
        return self._root.copy()

    def restore(self, snapshot: Entry) -> None:
        self._root = snapshot.copy()

    @staticmethod
    def absolute(path: str, cwd: str) -> str:
        return posixpath.normpath(posixpath.join(cwd, path)) if path else ""

    def find(self, path: str, *, follow: bool = True) -> Entry | None:
        """The entry at a path, with links followed; None if there is none."""
        try:
            return self.get(path, follow=follow)
        except FileError:
            return None

    def get(self, path: str, *, follow: bool = True, depth: int = 0) -> Entry:
        if not path:
            raise FileError(path, NOT_FOUND)
        if depth > _MAX_LINKS:
            raise FileError(path, "Too many levels of symbolic links")
        entry, walked = self._root, "/"
        names = [name for name in path.split("/") if name]
        for position, name in enumerate(names):
            if not entry.is_directory:
                raise FileError(path, NOT_DIRECTORY)
            child = entry.children.get(name)
            if child is None:
                raise FileError(path, NOT_FOUND)
            last = position == len(names) - 1
            if child.link is not None and (follow or not last):
                target = self.absolute(child.link, walked)
                child = self.get(target, depth=depth + 1)
            entry, walked = child, posixpath.join(walked, name)
        return entry

    def read(self, path: str) -> bytes:
        entry = self.get(path)
        if entry.is_directory:
            raise FileError(path, IS_DIRECTORY)
        return entry.read()

    def write(self, path: str, data: bytes, *, append: bool = False) -> None:
        """Create or change a file; its directory must exist."""
        entry = self.find(path)
        if entry is not None and entry.is_directory:
            raise FileError(path, IS_DIRECTORY)
        if path == "/dev/null":
            return
        if entry is not None and entry.is_virtual:
            raise FileError(path, "Permission denied")
        if entry is None:
            parent = self._parent(path)
            entry = parent.children[posixpath.basename(path)] = Entry(b"")
        entry.content = entry.read() + data if append else data
        entry.mtime = self._now()

    def add(self, path: str, content: str | bytes | Callable[[], bytes], mode: int = 0o644) -> None:
        """Add a file of the installation, creating its directories."""
        self.make_directories(posixpath.dirname(path))
        data = content.encode() if isinstance(content, str) else content
        self._parent(path).children[posixpath.basename(path)] = Entry(data, mode=mode, mtime=self._now())

    def add_link(self, path: str, target: str) -> None:
        self.make_directories(posixpath.dirname(path))
        entry = Entry(link=target, mode=0o777, mtime=self._now())
        self._parent(path).children[posixpath.basename(path)] = entry

    def make_directory(self, path: str) -> None:
        if self.find(path) is not None:
            raise FileError(path, EXISTS)
        parent = self._parent(path)
        parent.children[posixpath.basename(path)] = Entry(mode=0o755, mtime=self._now())

    def make_directories(self, path: str) -> None:
        at = ""
        for name in (name for name in path.split("/") if name):
            at = f"{at}/{name}"
            entry = self.find(at)
            if entry is None:
                self.make_directory(at)
            elif not entry.is_directory:
                raise FileError(at, NOT_DIRECTORY)

    def remove(self, path: str) -> None:
        """A file, a link, or an empty directory."""
        entry = self.get(path, follow=False)
        if entry.is_directory and entry.children:
            raise FileError(path, NOT_EMPTY)
        del self._parent(path).children[posixpath.basename(path)]

    def remove_tree(self, path: str) -> None:
        self.get(path, follow=False)
        del self._parent(path).children[posixpath.basename(path)]

    def put(self, path: str, entry: Entry) -> None:
        """Insert an entry at a path, for moves and copies."""
        self._parent(path).children[posixpath.basename(path)] = entry

    def touch(self, path: str) -> None:
        entry = self.find(path)
        if entry is None:
            self.write(path, b"")
        else:
            entry.mtime = self._now()

    def _parent(self, path: str) -> Entry:
        if path in ("", "/"):
            raise FileError(path, "Device or resource busy")
        parent = self.find(posixpath.dirname(path) or "/")
        if parent is None:
            raise FileError(path, NOT_FOUND)
        if not parent.is_directory:
            raise FileError(path, NOT_DIRECTORY)
        return parent
