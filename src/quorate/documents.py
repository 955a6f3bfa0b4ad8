"""Read what others send: bodies of HTTP responses, JSON and YAML, bounded in length, depth and time."""

from __future__ import annotations

import re
import time
import zlib
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

if TYPE_CHECKING:
    import aiohttp

T = TypeVar("T")

DEEPEST = 64
"""Levels of nesting. PVE, Docker and Terraform stay below twenty; our own recursion is safe far beyond this."""
LONGEST_YAML = 256 * 1024
MOST_NODES = 50_000
"""The most nodes of a YAML document, with its aliases expanded."""
YAML_SECONDS = 5.0
LONGEST_NUMBER = 64
_NUMBER = re.compile(r"[-+]?[0-9][0-9a-fA-FxXoO_:.]*")


class Unreadable(ValueError):
    """The text is invalid or too large. The message completes "it …"."""


def read_json(data: bytes | bytearray | str, kind: type[T] | Any = Any, *, strict: bool = True) -> Any:
    try:
        value = msgspec.json.decode(data, type=kind, strict=strict)
    except RecursionError:
        raise Unreadable(_too_deep(DEEPEST)) from None
    except (msgspec.MsgspecError, ValueError) as error:  # a ValueError is a number with thousands of digits
        raise Unreadable(f"is not valid: {error}") from None
    if can_be_deep(data):
        refuse_depth(value)
    return value


def can_be_deep(data: bytes | bytearray | str) -> bool:
    """Whether this JSON opens enough lists and objects to be nested too deeply."""
    if isinstance(data, str):
        return data.count("[") + data.count("{") > DEEPEST
    return data.count(b"[") + data.count(b"{") > DEEPEST


def refuse_depth(value: Any, deepest: int = DEEPEST) -> None:
    if is_deeper(value, deepest):
        raise Unreadable(_too_deep(deepest))


def is_deeper(value: Any, deepest: int = DEEPEST) -> bool:
    """Whether lists and objects are nested too deeply. Checked level by level, because this must not recurse."""
    level = [value] if isinstance(value, (dict, list)) else []
    for _ in range(deepest):
        if not level:
            return False
        level = [
            inner
            for outer in level
            for inner in (outer.values() if type(outer) is dict else outer)
            if type(inner) is dict or type(inner) is list
        ]
    return bool(level)


def read_yaml(text: str, *, aliases: bool = True, longest: int = LONGEST_YAML) -> Any:
    """The value of a YAML document. It takes up to YAML_SECONDS, so a server calls it in a thread."""
    import yaml  # only the homelab's tools need it

    try:
        inspect_yaml(text, aliases=aliases, longest=longest)
        return yaml.load(text, _loader())  # noqa: S506 (both loaders are safe ones)
    except yaml.YAMLError as error:
        raise Unreadable(f"is not YAML: {' '.join(str(error).split())[:300]}") from None
    except (RecursionError, ValueError) as error:  # a date such as 2026-99-99 is a ValueError of the loader's
        raise error if isinstance(error, Unreadable) else Unreadable(f"is not YAML: {error}") from None


def inspect_yaml(text: str, *, aliases: bool = True, longest: int = LONGEST_YAML) -> None:
    """Refuse what would cost too much to build, from events alone, before anything is built."""
    import yaml

    if len(text) > longest:
        raise Unreadable(f"has {len(text)} characters; the limit is {longest}")
    deadline = time.monotonic() + YAML_SECONDS
    open_nodes: list[tuple[str | None, int]] = []
    """The anchor of each open collection, and the number of nodes before it."""
    sizes: dict[str, int] = {}
    """How many nodes an alias expands to."""
    nodes = 0
    for event in yaml.parse(text, _loader()):
        if time.monotonic() > deadline:
            raise Unreadable(f"takes longer than {YAML_SECONDS:g} s to read")
        if isinstance(event, yaml.AliasEvent):
            if not aliases:
                raise Unreadable("has YAML aliases; write it out, without & and *")
            nodes += sizes.get(event.anchor or "", MOST_NODES)  # one that is still open would contain itself
        elif isinstance(event, yaml.ScalarEvent):
            nodes += 1
            if event.implicit[0] and len(event.value) > LONGEST_NUMBER and _NUMBER.fullmatch(event.value):
                raise Unreadable(f"has a number of {len(event.value)} digits")
            sizes |= {event.anchor: 1} if event.anchor else {}
        elif isinstance(event, yaml.CollectionStartEvent):
            open_nodes.append((event.anchor, nodes))
            nodes += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = open_nodes.pop()
            sizes |= {anchor: nodes - before} if anchor else {}
        if len(open_nodes) > DEEPEST:
            raise Unreadable(_too_deep(DEEPEST))
        if nodes > MOST_NODES:
            raise Unreadable(f"has more than {MOST_NODES} values")


def _loader() -> Any:
    import yaml

    return getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _too_deep(deepest: int) -> str:
    return f"is nested more than {deepest} levels deep"


# -- bodies of HTTP responses ------------------------------------------------------------------------------------------

ACCEPTED = {"Accept-Encoding": "gzip, deflate"}
"""Sent with every request: the encodings that `read_body` supports."""
MOST_RATIO = 250
"""Long tables of PVE reach fifty; a compression bomb reaches a thousand."""
RATIO_COUNTS_FROM = 1 << 20
PIECE = 1 << 16


class BodyRefused(ValueError):
    """It is too large or badly encoded. The message completes "the answer …"."""


async def read_body(response: aiohttp.ClientResponse, most: int) -> bytes | bytearray:
    """The whole body, decompressed as it arrives, without a second copy.

    The session must use auto_decompress=False.
    """
    encoding = response.headers.get("Content-Encoding", "").strip().lower()
    unpacking = None if encoding in ("", "identity") else _Unpacking(encoding, most)
    body: bytes | bytearray = b""
    async for piece in response.content.iter_chunked(PIECE):
        more = piece if unpacking is None else unpacking.feed(piece)
        if isinstance(body, bytes):  # most have only one piece
            body = bytearray(body) + more if body else more
        else:
            body += more
        if len(body) > most:
            raise BodyRefused(f"is longer than {most} bytes")
    if unpacking is not None:
        unpacking.finish()
    return body


class _Unpacking:
    def __init__(self, encoding: str, most: int) -> None:
        if encoding not in ("gzip", "x-gzip", "deflate"):
            raise BodyRefused(f"comes packed as {encoding[:40]!r}, which was not asked for")
        self._zlib = zlib.decompressobj(zlib.MAX_WBITS | 32 if encoding != "deflate" else zlib.MAX_WBITS)
        self._most = most
        self._received = self._unpacked = 0

    def feed(self, piece: bytes) -> bytes:
        self._received += len(piece)
        try:
            unpacked = self._zlib.decompress(piece, self._most + 1 - self._unpacked)
        except zlib.error as error:
            raise BodyRefused(f"cannot be unpacked: {error}") from None
        self._unpacked += len(unpacked)
        if self._unpacked > self._most:
            raise BodyRefused(f"is longer than {self._most} bytes")
        if self._unpacked > RATIO_COUNTS_FROM and self._unpacked > MOST_RATIO * self._received:
            raise BodyRefused(f"unpacks to more than {MOST_RATIO} times its size")
        return unpacked

    def finish(self) -> None:
        if self._received and not self._zlib.eof:
            raise BodyRefused("breaks off")
