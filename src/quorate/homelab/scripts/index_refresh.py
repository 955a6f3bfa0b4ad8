"""Builds a new index from the project's repository archive; only facts about the scripts are kept."""

from __future__ import annotations

import asyncio
import gzip
import io
import re
import tarfile
import time
from pathlib import Path

import msgspec

from quorate.homelab.scripts.download import MOST_SCRIPT, fetch
from quorate.homelab.scripts.index import Index, load_packaged_index
from quorate.homelab.scripts.script import PATH, Script, parse_script
from quorate.problems import Conflict

MOST_ARCHIVE = 128 * 1024 * 1024
MOST_UNPACKED = 1024 * 1024 * 1024
SECONDS = 300.0
_RAW = re.compile(r"https://raw\.githubusercontent\.com/(?P<owner>[^/]+)/(?P<repo>[^/]+)/(?P<ref>.+)")


def archive_of(base: str) -> str:
    """The address of all files at once: GitHub's archive, or archive.tar.gz of a mirror."""
    if found := _RAW.fullmatch(base.rstrip("/")):
        return f"https://codeload.github.com/{found['owner']}/{found['repo']}/tar.gz/{found['ref']}"
    return f"{base.rstrip('/')}/archive.tar.gz"


async def refresh(base: str, into: Path) -> Index:
    from quorate.config.writer import write_private

    address = archive_of(base)
    data = await fetch(address, MOST_ARCHIVE, seconds=SECONDS)
    try:
        scripts, commit = await asyncio.to_thread(_read, data)
    except (tarfile.TarError, OSError, EOFError, ValueError, RecursionError) as error:
        raise Conflict(f"{address} is not an archive", why=str(error)) from None
    if not scripts:
        raise Conflict(f"{address} contains no scripts", why="It has no files like ct/NAME.sh")
    index = Index(tuple(sorted(scripts, key=lambda one: one.path)), time.time(), address, commit)
    write_private(into, msgspec.json.encode(index).decode())
    return index


def _read(data: bytes) -> tuple[list[Script], str]:
    known = {one.path: one for one in load_packaged_index().scripts}
    found = []
    # As a stream, so that every byte is read and counted once.
    with tarfile.open(fileobj=_BoundedGzip(fileobj=io.BytesIO(data)), mode="r|") as archive:
        commit = archive.pax_headers.get("comment", "")
        for member in archive:
            path = member.name.partition("/")[2]  # everything is in one folder, named after the commit
            if not (member.isreg() and PATH.fullmatch(path) and member.size <= MOST_SCRIPT):
                continue
            content = archive.extractfile(member)
            assert content is not None  # it is a regular file
            found.append(_in_our_words(parse_script(path, content.read().decode("utf-8", "replace")), known.get(path)))
    return found, commit


class _BoundedGzip(gzip.GzipFile):
    """Limits how much a compressed stream may expand to."""

    _left = MOST_UNPACKED

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(size)
        self._left -= len(data)
        if self._left < 0:
            raise ValueError(f"it unpacks to more than {MOST_UNPACKED} bytes")
        return data


def _in_our_words(script: Script, known: Script | None) -> Script:
    return msgspec.structs.replace(script, name=known.name, about=known.about) if known else script
