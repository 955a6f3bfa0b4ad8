"""Files inside backups: trees that can be browsed, and downloads of a file or a folder."""

from __future__ import annotations

import base64
import binascii
import io
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pve_simulator.pbs.refusals import Refusal

_BLOCK = 128 << 10
_LETTERS = {
    "folder": "d",
    "file": "f",
    "symlink": "l",
    "hardlink": "h",
    "fifo": "p",
    "socket": "s",
    "char": "c",
    "block": "b",
}


@dataclass(slots=True)
class Entry:
    """A file, link, fifo or folder."""

    kind: str = "file"
    content: bytes = b""
    mtime: int = 0
    children: dict[str, Entry] = field(default_factory=dict)

    @property
    def letter(self) -> str:
        return _LETTERS[self.kind]


@dataclass(slots=True)
class Tree:
    """The content of one archive."""

    root: Entry = field(default_factory=lambda: Entry("folder"))

    @classmethod
    def of(cls, files: Mapping[str, bytes | str | Entry], mtime: int = 0) -> Tree:
        """From paths such as `etc/hosts` with their content; an `Entry` for anything but files."""
        tree = cls(Entry("folder", mtime=mtime))
        for path, content in files.items():
            *folders, name = path.strip("/").split("/")
            at = tree.root
            for folder in folders:
                at = at.children.setdefault(folder, Entry("folder", mtime=mtime))
            data = content.encode() if isinstance(content, str) else content
            at.children[name] = data if isinstance(data, Entry) else Entry("file", data, mtime)
        return tree

    @property
    def size(self) -> int:
        return sum(80 + len(name) + len(entry.content) for name, entry in self.walk())

    @property
    def catalog_size(self) -> int:
        return 24 + sum(10 + len(name.rpartition("/")[2]) for name, _ in self.walk())

    def walk(self) -> Iterator[tuple[str, Entry]]:
        """Every entry below the root with its path, folders before their content."""
        pending = [("", self.root)]
        while pending:
            path, folder = pending.pop()
            for name, entry in folder.children.items():
                below = f"{path}/{name}" if path else name
                yield below, entry
                if entry.kind == "folder":
                    pending.append((below, entry))

    def find(self, path: str) -> Entry | None:
        at = self.root
        for part in path.split("/"):
            if part:
                if part not in at.children:
                    return None
                at = at.children[part]
        return at


def decode_path(text: str) -> str:
    """A `filepath` parameter: `/` itself, or a path in base64."""
    if text in ("", "/"):
        return "/"
    try:
        return base64.b64decode(text, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError) as error:
        raise Refusal("base64 decoding of path failed - error decoding base64 data") from error


def encode_path(path: str) -> str:
    return base64.b64encode(path.encode()).decode()


def listing(tree: Tree, path: str, prefix: str) -> list[dict[str, Any]]:
    """The rows of a folder; `prefix` and a slash stand before each path."""
    folder = tree.find(path)
    if folder is None:
        raise Refusal(f'path "{prefix and "/"}{prefix}{"/" if prefix else ""}{path.strip("/")}" not found in catalog')
    if folder.kind != "folder":
        raise Refusal("parent is not a directory - internal error")
    rows = []
    for name, entry in folder.children.items():
        below = "/".join(part for part in (prefix, path.strip("/"), name) if part)
        row: dict[str, Any] = {
            "filepath": encode_path(below if prefix else f"/{below}"),
            "leaf": entry.kind != "folder",
            "text": name,
            "type": entry.letter,
        }
        if entry.kind == "file":
            row |= {"size": len(entry.content), "mtime": entry.mtime}
        rows.append(row)
    return rows


def download(tree: Tree, path: str, *, as_tar: bool) -> bytes:
    """A file as it is; a folder as a zip archive, or as tar."""
    entry = tree.find(path)
    name = path.strip("/").rpartition("/")[2]
    if entry is None:
        raise Refusal(f"error opening '\"{path.strip('/')}\"'")
    if entry.kind == "file":
        return entry.content
    if entry.kind == "symlink":
        target = ", ".join(map(str, entry.content + b"\0"))
        raise Refusal(f"cannot download file of type Symlink(Symlink {{ data: [{target}] }})")
    if entry.kind != "folder":
        raise Refusal(f"cannot download file of type {entry.kind.capitalize()}")
    return _as_tar(entry, name) if as_tar else _as_zip(entry, name)


def _as_zip(folder: Entry, name: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, entry in Tree(folder).walk():
            archive.writestr(f"{name}/{path}" + ("/" if entry.kind == "folder" else ""), entry.content)
    return buffer.getvalue()


def _as_tar(folder: Entry, name: str) -> bytes:
    """Packed with Zstandard, in blocks that are not compressed: Python has none before 3.14."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path, entry in Tree(folder).walk():
            info = tarfile.TarInfo(f"{name}/{path}")
            info.type = tarfile.DIRTYPE if entry.kind == "folder" else tarfile.REGTYPE
            info.size, info.mtime = len(entry.content), entry.mtime
            archive.addfile(info, io.BytesIO(entry.content))
    return _as_zstd_frame(buffer.getvalue())


def _as_zstd_frame(content: bytes) -> bytes:
    """RFC 8878: magic number, a header with the size of the content, raw blocks."""
    header = b"\x28\xb5\x2f\xfd\xa0" + len(content).to_bytes(4, "little")
    blocks = [content[at : at + _BLOCK] for at in range(0, len(content), _BLOCK)] or [b""]
    last = len(blocks) - 1
    sizes = ((len(block) << 3 | (number == last)).to_bytes(3, "little") for number, block in enumerate(blocks))
    return header + b"".join(size + block for size, block in zip(sizes, blocks, strict=True))
