"""Fixed shell scripts for POSIX guests. Values are positional arguments, never part of the script's text."""

from __future__ import annotations

from quorate.inside.way import Command, Output
from quorate.problems import Conflict, GuestRefused, NotFound, Problem

SAID = 400
"""How much of a guest's words is passed on in an error."""

_ENGLISH = {"LC_ALL": "C"}
_NOT_FOUND = 127


def script(text: str, *values: str, stdin: bytes = b"") -> Command:
    """`text` run by the guest's /bin/sh with `values` as $1, $2 and so on; programs speak English."""
    return Command(("/bin/sh", "-c", text, "sh", *values), stdin=stdin, env=_ENGLISH)


def words_of(output: Output) -> str:
    """What the guest complained about, short."""
    text = (output.stderr or output.stdout).decode("utf-8", "replace").strip()
    return text if len(text) <= SAID else f"{text[:SAID]}…"


def failure(output: Output, doing: str) -> Problem:
    """What went wrong with a script, by the guest's own words."""
    said = words_of(output)
    if "No such file or directory" in said:
        return NotFound(f"{doing}: it is not there", why=f"The guest said: {said}")
    if output.exit_code == _NOT_FOUND:
        return GuestRefused(f"{doing}: the guest lacks a program for that", why=f"The guest said: {said}")
    if any(text in said for text in ("Is a directory", "Not a directory", "File exists")):
        return Conflict(f"{doing}: not possible", why=f"The guest said: {said}")
    end = f"signal {output.signal}" if output.exit_code is None else f"exit code {output.exit_code}"
    return GuestRefused(
        f"{doing}: the guest refused", why=f"The guest said: {said}" if said else f"It ended with {end}"
    )
