"""Facts about a community script, read from its text without running it."""

from __future__ import annotations

import re
from typing import Literal

import msgspec

Category = Literal["ct", "vm", "misc", "addon"]
FOLDERS: dict[str, Category] = {"ct": "ct", "vm": "vm", "tools/pve": "misc", "tools/addon": "addon"}
"""The project's folders. Scripts for nodes moved from misc/, but people still use that name."""
PATH = re.compile(rf"(?P<folder>{'|'.join(FOLDERS)})/(?P<slug>[A-Za-z0-9][A-Za-z0-9._-]*)\.sh")
_APP = re.compile(r'^APP="([^"$`]{1,80})"', re.M)
# var_cpu="2" or var_cpu="${var_cpu:-2}" at the start of a line: indented ones are conditional.
_DEFAULT = re.compile(r'^var_(\w+)="?(?:\$\{var_\w+:-)?([^"}$`\n]*)\}?"?\s*$', re.M)
_PORT = re.compile(r"\$\{IP\}:(\d{1,5})\b")


class Script(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    path: str
    name: str
    about: str = ""
    cpu: int | None = None
    ram: int | None = None
    """MB"""
    disk: int | None = None
    """GB"""
    os: str = ""
    version: str = ""
    unprivileged: bool | None = None
    tags: tuple[str, ...] = ()
    port: int | None = None

    @property
    def slug(self) -> str:
        return self.path.rpartition("/")[2].removesuffix(".sh")

    @property
    def category(self) -> Category:
        return FOLDERS[self.path.rpartition("/")[0]]


def parse_script(path: str, text: str) -> Script:
    """The defaults that the script sets, and the port of the address that it shows at its end."""
    defaults = dict(reversed(_DEFAULT.findall(text)))  # the first one counts
    app, port = _APP.search(text), _PORT.search(text)
    slug = path.rpartition("/")[2].removesuffix(".sh")
    tags = re.split(r"[;,\s]+", defaults.get("tags", "").lower())
    return Script(
        path,
        app[1] if app else slug,
        cpu=_number(defaults.get("cpu")),
        ram=_number(defaults.get("ram")),
        disk=_number(defaults.get("disk")),
        os=defaults.get("os", ""),
        version=defaults.get("version", ""),
        unprivileged={"1": True, "0": False}.get(defaults.get("unprivileged", "")),
        tags=tuple(tag for tag in tags if tag),
        port=int(port[1]) if port else None,
    )


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 10 else None
