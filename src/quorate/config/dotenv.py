"""The `.env` file of the working directory: safe reading, and its format."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import NamedTuple

from quorate.config.settings import ConfigError

MOST_BYTES = 64 * 1024
_ASSIGNMENT = re.compile(r"\s*(?:export\s+)?(?P<name>[A-Za-z_]\w*)\s*=\s*(?P<value>.*)", re.ASCII)
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}


class Dotenv(NamedTuple):
    variables: dict[str, str]
    unreadable_lines: tuple[int, ...]
    """Lines with our variables that cannot be parsed."""


def read_dotenv(file: Path) -> str:
    """Read the file. It may come from a stranger, so links, devices and endless files are refused."""
    try:
        if file.is_symlink():
            raise ConfigError(f"{file} is a symbolic link: use a plain file.")
        flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        with open(os.open(file, flags), "rb") as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                raise ConfigError(f"{file} is not a plain file: use one.")
            raw = stream.read(MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{file} cannot be read ({error.strerror}): correct its path or its permissions.") from None
    if len(raw) > MOST_BYTES:
        raise ConfigError(f"{file} is larger than {MOST_BYTES // 1024} KiB: keep only the connection there.")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigError(f"{file} is not UTF-8 text: save it as UTF-8.") from None


def parse_dotenv(text: str) -> Dotenv:
    variables: dict[str, str] = {}
    unreadable = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        assignment = _ASSIGNMENT.match(line)
        value = dotenv_value(assignment["value"].strip()) if assignment else None
        if assignment and value is not None:
            variables[assignment["name"]] = value
        elif "PROXMOX_" in line or "QUORATE_" in line:
            # The file may belong to another program, so only lines with our variables must parse.
            unreadable.append(number)
    return Dotenv(variables, tuple(unreadable))


def dotenv_value(text: str) -> str | None:
    """The value without quotes and trailing comment, or None if a quote is not closed."""
    if text.startswith("'"):
        quoted = re.fullmatch(r"'([^']*)'\s*(?:#.*)?", text)
        return quoted and quoted[1]
    if text.startswith('"'):
        quoted = re.fullmatch(r'"((?:[^"\\]|\\.)*)"\s*(?:#.*)?', text)
        return quoted and re.sub(r"\\(.)", lambda escape: _ESCAPES.get(escape[1], escape[1]), quoted[1])
    return re.split(r"(?:^|\s)#", text, maxsplit=1)[0].strip()
