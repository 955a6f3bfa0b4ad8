"""Fixed shell scripts for POSIX guests. Values are positional arguments, never part of the script's text."""

from __future__ import annotations

from quorate.inside.transport import Command, Output
from quorate.problems import Conflict, GuestRefused, NotFound, Problem

MAX_MESSAGE = 400
"""How many characters of a guest's message an error shows."""

_ENGLISH = {"LC_ALL": "C"}
_NOT_FOUND = 127


def shell_script(text: str, *values: str, stdin: bytes = b"") -> Command:
    """`text` for the guest's /bin/sh, with `values` as $1, $2 and so on; messages are in English."""
    return Command(("/bin/sh", "-c", text, "sh", *values), stdin=stdin, env=_ENGLISH)


def error_message(output: Output) -> str:
    """The guest's error message, shortened."""
    text = (output.stderr or output.stdout).decode("utf-8", "replace").strip()
    return text if len(text) <= MAX_MESSAGE else f"{text[:MAX_MESSAGE]}…"


def failure(output: Output, doing: str) -> Problem:
    """What went wrong with a script, with the guest's own message."""
    said = error_message(output)
    if "No such file or directory" in said:
        return NotFound(f"{doing}: it does not exist", why=f"It said: {said}")
    if output.exit_code == _NOT_FOUND:
        return GuestRefused(f"{doing}: it lacks a program for this", why=f"It said: {said}")
    if any(text in said for text in ("Is a directory", "Not a directory", "File exists")):
        return Conflict(f"{doing}: not possible", why=f"It said: {said}")
    end = f"signal {output.signal}" if output.exit_code is None else f"exit code {output.exit_code}"
    return GuestRefused(f"{doing}: it refused", why=f"It said: {said}" if said else f"It ended with {end}")
