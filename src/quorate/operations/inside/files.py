"""Reading and writing files inside guests."""

from __future__ import annotations

import base64
import binascii
import unicodedata
from typing import Annotated, Any, Literal

from msgspec import Meta

from quorate.inside import files, names
from quorate.inside.paths import guest_path
from quorate.inside.reaching import way_into
from quorate.operations.inside.parameters import Path, WayName, needs_of, target_of
from quorate.operations.plan import Action, Performed, Plan
from quorate.operations.registry import GuestRef, Risk, operation
from quorate.operations.units import size
from quorate.pve.cluster import Cluster
from quorate.pve.errors import BadArgument
from quorate.pve.tasks import Report

READ_AT_ONCE = 1024 * 1024
MOST_WRITTEN = 16 * 1024 * 1024

Encoding = Literal["text", "base64"]


@operation(risk=Risk.LOOK_INSIDE)
async def guest_file_read(
    pve: Cluster,
    guest: GuestRef,
    path: Path,
    offset: Annotated[int, Meta(ge=0, description="First byte")] = 0,
    limit: Annotated[int, Meta(ge=1, le=READ_AT_ONCE, description="Most bytes")] = 64 * 1024,
    encoding: Annotated[Encoding, Meta(description="Default: base64 only for what is no text")] | None = None,
    way: WayName | None = None,
) -> dict[str, Any]:
    """Read a file inside a guest, or a part of it."""
    found = await pve.guest(guest)
    into = await way_into(pve, found, prefer=way)
    path = guest_path(path, into.system)
    file = await files.readable(into, path)
    data = await into.read_file(path, offset=offset, limit=limit)
    part = _Part(data, offset, cut=offset + len(data) < file.size)
    as_text = part.is_text if encoding is None else encoding == "text"
    shown = part.text if as_text else base64.b64encode(data).decode()
    start, end = part.text_bounds if as_text else (offset, offset + len(data))
    # What the kernel makes up as it is read has no size beforehand.
    more = end < file.size or (file.size == 0 and len(data) == limit)
    return {
        "guest": found.label,
        "way": into.description,
        "path": path,
        "size": max(file.size, offset + len(data)),
        **({"offset": start} if start else {}),
        "bytes": end - start,
        "content" if as_text else "base64": shown,
        **({"note": part.remark} if as_text and part.remark else {}),
        **({"next": f"offset={end} reads on; {size(max(file.size - end, 1))} are left"} if more else {}),
    }


class _Part:
    """A piece of a file. Where it begins or ends inside a character, that character is left to the next piece."""

    def __init__(self, data: bytes, offset: int, *, cut: bool) -> None:
        begin = 0
        while offset and begin < min(3, len(data)) and data[begin] & 0xC0 == 0x80:
            begin += 1
        self._inner = data[begin : len(data) - _unfinished(data) if cut else len(data)]
        self._start = offset + begin
        try:
            self.text = self._inner.decode()
            self.is_text = "\0" not in self.text
        except UnicodeDecodeError:
            self._inner, self._start = data, offset
            self.text, self.is_text = data.decode("utf-8", "replace"), False

    @property
    def remark(self) -> str:
        """What the text does not show."""
        if not self.is_text:
            return "It is not UTF-8 text; encoding=base64 gives every byte"
        unseen = any(char not in "\n\t" and unicodedata.category(char) in ("Cc", "Cf") for char in set(self.text))
        return "Carriage returns and other unseen characters are left out; encoding=base64 gives them" if unseen else ""

    @property
    def text_bounds(self) -> tuple[int, int]:
        return self._start, self._start + len(self._inner)


def _unfinished(data: bytes) -> int:
    """How many bytes at the end begin a character of UTF-8 without ending it."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue
        length = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
        return back if length > back else 0
    return 0


@operation(risk=Risk.CHANGE, unrecorded=("content",))
async def guest_file_write(
    pve: Cluster,
    guest: GuestRef,
    path: Path,
    content: str,
    encoding: Annotated[Encoding, Meta(description="What content is in")] = "text",
    append: bool = False,
    parents: Annotated[bool, Meta(description="Make missing folders")] = False,
    mode: Annotated[str, Meta(description="Octal, such as 0644; default: as it was")] | None = None,
    owner: Annotated[str, Meta(description="user, user:group or :group; default: as it was")] | None = None,
    way: WayName | None = None,
) -> Plan:
    """Write a file inside a guest: as a whole and at once, or append to it."""
    data = _bytes_of(content, encoding)
    found = await pve.guest(guest)
    into = await way_into(pve, found, prefer=way)
    given, path = path, guest_path(path, into.system)
    if given.endswith(("/", "\\") if into.system == "windows" else "/"):
        raise BadArgument(f"{given!r} names a folder", next_step="Give the path of the file")
    mode = None if mode is None else names.mode(mode)
    owner = None if owner is None else names.owner(owner)

    async def perform(wait: float, report: Report | None) -> Performed:
        del wait, report  # a file is written in moments; what goes on too long the way itself ends
        place = await files.write(into, path, data, parents=parents, append=append, owner=owner, mode=mode)
        return Performed(_told(place.old, place.target, path, append=append))

    verb = "Append" if append else "Write"
    rights = "".join(f" {name}={value}" for name, value in (("mode", mode), ("owner", owner)) if value)
    return Plan(
        f"{verb} {len(data)} bytes to {path} in {found}",
        (
            Action(
                f"{verb} {len(data)} bytes to {path}",
                f"{into.description}: {verb.lower()} {len(data)} bytes to {path}{rights}",
                perform,
                target_of(found),
                needs_of(found, into, writes=True),
            ),
        ),
        facts={"guest": found.label, "way": into.description, "path": path, "bytes": len(data)},
    )


def _bytes_of(content: str, encoding: Encoding) -> bytes:
    try:
        data = base64.b64decode(content, validate=True) if encoding == "base64" else content.encode()
    except (binascii.Error, ValueError):
        told = "base64" if encoding == "base64" else "text (it holds half a character)"
        raise BadArgument(f"The content is no {told}", next_step="Nothing was written") from None
    if len(data) > MOST_WRITTEN:
        raise BadArgument(
            f"The content has {size(len(data))}, and {size(MOST_WRITTEN)} is the most",
            next_step="Write it in parts with append=true",
        )
    return data


def _told(old: Any, target: str, path: str, *, append: bool) -> dict[str, Any]:
    what = "made" if old is None else "appended to" if append else f"replaced, {old.size} bytes before"
    shared = old is not None and old.links > 1 and not append
    return {
        "file": what,
        **({"behind_link": target} if target != path else {}),
        **({"note": "Its other hard links keep the old content"} if shared else {}),
    }
