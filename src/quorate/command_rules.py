"""Which commands may be run inside guests, as the operator wrote it down."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass

from quorate.problems import Refused


@dataclass(frozen=True, slots=True)
class CommandRules:
    """Patterns for whole command lines: `*` stands for anything, `?` for one character, `[ab]` for one of these.

    A command line is the arguments with blanks between them. A text for the shell counts as `sh -c TEXT` (`powershell
    TEXT` in Windows): so `systemctl status *` allows the program systemctl, but no text that only begins so and goes on
    with something else.
    """

    allow: tuple[str, ...] = ()
    """If there are any, a command has to match one of them."""
    deny: tuple[str, ...] = ()
    """A command that matches one of these is refused, even if allowed; of a text for the shell the text counts too."""

    def objection(self, argv: Sequence[str], text: str | None = None) -> Refused | None:
        """`text` is what the caller gave for the shell, if that is what they did."""
        line = " ".join(argv)
        for pattern in self.deny:
            if any(fnmatch.fnmatchcase(one, pattern) for one in (line, *([text] if text else []))):
                return Refused(
                    "This command is refused",
                    why=f"It matches the pattern {pattern!r} under deny in [inside] of the configuration",
                    next_step="Only the operator can change that",
                )
        if self.allow and not any(fnmatch.fnmatchcase(line, pattern) for pattern in self.allow):
            return Refused(
                "This command is refused",
                why=f"It is {line[:200]} and matches none of the patterns under allow in [inside] of the "
                f"configuration: {', '.join(self.allow[:8])}",
                next_step="Only the operator can change that. A list of arguments is matched as such; "
                "a text for the shell counts as sh -c TEXT",
            )
        return None
