"""The format of a `.env` file."""

from __future__ import annotations

import re
from pathlib import Path

from quorate.config.settings import ConfigError

_ASSIGNMENT = re.compile(r"\s*(?:export\s+)?(?P<name>[A-Za-z_]\w*)\s*=\s*(?P<value>.*)", re.ASCII)
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}


def parse_dotenv(text: str, file: Path) -> dict[str, str]:
    variables: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        assignment = _ASSIGNMENT.match(line)
        value = dotenv_value(assignment["value"].strip()) if assignment else None
        if assignment and value is not None:
            variables[assignment["name"]] = value
        elif "PROXMOX_" in line or "QUORATE_" in line:
            # The file may belong to another program, so only lines that are meant for us have to be right.
            raise ConfigError(f"Line {number} of {file} is not understood: write NAME=value or NAME='value'.")
    return variables


def dotenv_value(text: str) -> str | None:
    """The value without quotes and trailing comment, or None where a quote is not closed."""
    if text.startswith("'"):
        quoted = re.fullmatch(r"'([^']*)'\s*(?:#.*)?", text)
        return quoted and quoted[1]
    if text.startswith('"'):
        quoted = re.fullmatch(r'"((?:[^"\\]|\\.)*)"\s*(?:#.*)?', text)
        return quoted and re.sub(r"\\(.)", lambda escape: _ESCAPES.get(escape[1], escape[1]), quoted[1])
    return re.split(r"(?:^|\s)#", text, maxsplit=1)[0].strip()
