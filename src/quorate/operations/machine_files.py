"""Files and folders of a machine, whether it is a guest, a host or a node."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import unicodedata
from dataclasses import dataclass
from typing import Any, Literal

from quorate.command_rules import CommandRules
from quorate.hints import Advice
from quorate.homelab.machines import Machine
from quorate.inside import files, names, posix_files
from quorate.inside.entries import Entry
from quorate.inside.paths import guest_path
from quorate.inside.transport import Transport
from quorate.operations.machine import machine_action, machine_label
from quorate.operations.plan import Action, ActionResult, StepContext
from quorate.operations.units import moment, size
from quorate.problems import BadArgument

READ_AT_ONCE = 1024 * 1024
MOST_WRITTEN = 16 * 1024 * 1024
LONGEST_SHOWN = 8000
"""Bytes of a file that the person who approves reads; of a longer one they see the digest."""
COLUMNS = ("name", "type", "size", "mode", "owner", "group", "modified", "name_base64")

Encoding = Literal["text", "base64"]


async def read_file(
    transport: Transport, path: str, *, offset: int, limit: int, encoding: Encoding | None = None
) -> dict[str, Any]:
    """A file or a part of it; as text unless it is binary."""
    path = guest_path(path, transport.system)
    file = await files.require_readable(transport, path)
    data = await transport.read_file(path, offset=offset, limit=limit)
    part = _Part(data, offset, cut=offset + len(data) < file.size)
    as_text = part.is_text if encoding is None else encoding == "text"
    shown = part.text if as_text else base64.b64encode(data).decode()
    start, end = part.text_bounds if as_text else (offset, offset + len(data))
    # Files that the kernel generates while they are read report no size.
    more = end < file.size or (file.size == 0 and len(data) == limit)
    return {
        "path": path,
        "size": max(file.size, offset + len(data)),
        **({"offset": start} if start else {}),
        "bytes": end - start,
        "content" if as_text else "base64": shown,
        **({"note": part.remark} if as_text and part.remark else {}),
        **(
            {"next": Advice(f"{{offset}} continues; {size(max(file.size - end, 1))} are left", offset=end)}
            if more
            else {}
        ),
    }


async def list_folder(transport: Transport, path: str) -> tuple[list[Entry], str]:
    """What is in a folder, by name, and a remark if that is not all of it."""
    listing = await files.list_folder(transport, guest_path(path, transport.system))
    entries = sorted(listing.entries, key=lambda entry: entry.name)
    cut = (
        f"The folder has more entries than the {len(entries)} that were read, in no particular order"
        if listing.cut
        else ""
    )
    return entries, cut


@dataclass(frozen=True, slots=True)
class FileWrite:
    """A file to write: replaced atomically, or appended to."""

    path: str
    data: bytes
    append: bool
    parents: bool
    mode: str | None
    owner: str | None


def write_action(rules: CommandRules, machine: Machine, write: FileWrite) -> Action:
    transport, data, append = machine.transport, write.data, write.append
    path = guest_path(write.path, transport.system)
    if write.path.endswith(("/", "\\") if transport.system == "windows" else "/"):
        raise BadArgument(f"{write.path!r} names a folder", next_step="Give the path of the file")
    mode = None if write.mode is None else names.require_mode(write.mode)
    owner = None if write.owner is None else names.require_owner(write.owner)
    if objection := rules.write_objection(path):
        raise objection

    async def perform(_: StepContext) -> ActionResult:
        if rules and transport.system != "windows":
            behind = await posix_files.real_path(transport, path)
            if refused := rules.write_objection(behind):
                raise refused
        written = await files.write_atomically(
            transport, path, data, parents=write.parents, append=append, owner=owner, mode=mode
        )
        return ActionResult(
            {"path": path, "bytes": len(data), **_replaced_facts(written.old, written.path, path, append=append)}
        )

    verb = "Append" if append else "Write"
    ownership = "".join(f" {name}={value}" for name, value in (("mode", mode), ("owner", owner)) if value)
    return machine_action(
        machine,
        f"{verb} {len(data)} bytes to {path} on {machine_label(machine)}",
        f"{transport.description}: {verb.lower()} {len(data)} bytes to {path}{ownership}",
        perform,
        writes=True,
        opens=not rules.allows_write(path),
        input=_describe(data) if machine.kind in ("node", "host") else "",
    )


def _describe(data: bytes) -> str:
    """For the person who approves: a text that can be read, anything else by its digest."""
    part = _Part(data, 0, cut=False)
    if part.is_text and len(data) <= LONGEST_SHOWN:
        return f"content={json.dumps(part.text, ensure_ascii=False)}"
    return f"content=sha256:{hashlib.sha256(data).hexdigest()}"


class _Part:
    """A piece of a file. Where it begins or ends inside a character, that character is left to the next piece."""

    def __init__(self, data: bytes, offset: int, *, cut: bool) -> None:
        begin = 0
        while offset and begin < min(3, len(data)) and data[begin] & 0xC0 == 0x80:
            begin += 1
        self._inner = data[begin : len(data) - _partial_character_length(data) if cut else len(data)]
        self._start = offset + begin
        try:
            self.text = self._inner.decode()
            self.is_text = "\0" not in self.text
        except UnicodeDecodeError:
            self._inner, self._start = data, offset
            self.text, self.is_text = data.decode("utf-8", "replace"), False

    @property
    def remark(self) -> Advice | None:
        """What the text does not show."""
        if not self.is_text:
            return Advice("It is not UTF-8 text").then(Advice("{encoding} gives every byte", encoding="base64"), "; ")
        unseen = any(char not in "\n\t" and unicodedata.category(char) in ("Cc", "Cf") for char in set(self.text))
        if not unseen:
            return None
        hidden = Advice("Carriage returns and other invisible characters are left out")
        return hidden.then(Advice("{encoding} shows them", encoding="base64"), "; ")

    @property
    def text_bounds(self) -> tuple[int, int]:
        return self._start, self._start + len(self._inner)


def _partial_character_length(data: bytes) -> int:
    """The number of bytes at the end that form an incomplete UTF-8 character."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue
        length = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
        return back if length > back else 0
    return 0


def content_bytes(content: str, encoding: Encoding) -> bytes:
    try:
        data = base64.b64decode(content, validate=True) if encoding == "base64" else content.encode()
    except (binascii.Error, ValueError):
        form = "base64" if encoding == "base64" else "valid text (it contains an invalid Unicode surrogate)"
        raise BadArgument(f"The content is not {form}", next_step="Nothing was written") from None
    if len(data) > MOST_WRITTEN:
        raise BadArgument(
            f"The content has {size(len(data))}; the limit is {size(MOST_WRITTEN)}",
            next_step=Advice("Write it in parts with {append}", append=True),
        )
    return data


def _replaced_facts(old: Any, target: str, path: str, *, append: bool) -> dict[str, Any]:
    what = "made" if old is None else "appended to" if append else f"replaced, {old.size} bytes before"
    shared = old is not None and old.links > 1 and not append
    return {
        "file": what,
        **({"behind_link": target} if target != path else {}),
        **({"note": "Its other hard links keep the old content"} if shared else {}),
    }


def entry_row(entry: Entry) -> list[Any]:
    name = entry.name.decode("utf-8", "replace")
    return [
        name,
        entry.type,
        entry.size if entry.type == "file" else None,
        entry.mode,
        entry.owner,
        entry.group,
        moment(entry.modified),
        "" if _is_plain(name, entry.name) else base64.b64encode(entry.name).decode(),
    ]


def _is_plain(text: str, name: bytes) -> bool:
    """Whether the text shows the name exactly: nothing invisible, nothing replaced."""
    return text.encode() == name and all(unicodedata.category(char)[0] not in "CZ" or char == " " for char in text)
