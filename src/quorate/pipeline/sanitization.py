"""What leaves the pipeline carries no secrets, and no characters that hide or reorder text.

Text from guests, logs and notes is written by strangers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from quorate.hints import Wording
from quorate.operations.registry import Table
from quorate.operations.units import Quantity
from quorate.pipeline.redaction import VERBATIM, Redactor
from quorate.problems import Problem
from quorate.pve.tasks import Report

# Control characters but tab and newline; soft hyphen; zero-width, bidi and invisible operators; variation selectors;
# byte order mark; interlinear marks; format controls of rare scripts; lone surrogates; the tag block that can carry
# unseen instructions.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\u2800\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb\U00013430-\U0001343f\U0001bca0-\U0001bca3"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
SEPARATOR = " | "
"""Between cells that are searched as one text; it ends every word, and no pattern begins with it."""
_REFERENCES = ("env:", "file:", "keyring:", "vault:")
"""Prefixes of references: what names a secret is not a secret."""
_ATOMS = frozenset({str, int, float, bool, type(None), Quantity})
LONGEST = 4096
"""The longest cell, line or sentence: more than a name or a remark needs, but not a flood."""
OUR_OWN_WORDS = ("time", "cluster", "tool", "risk", "access", "decision", "outcome", "steps", "step", "state", "task")
"""Keys of a journal line whose values never contain a secret, so redaction must not blank them out."""


class Sanitizer:
    """Sanitizes everything that leaves one call.

    What a caller passes as a secret is hidden in that call alone, so nobody can blank out what others see.
    """

    def __init__(self, secrets: Callable[[], Iterable[str]], own: Iterable[str] = ()) -> None:
        self._secrets = secrets
        own = list(own)
        self._given = Redactor(one for one in own if not one.startswith(_REFERENCES))
        self._redactor = Redactor(own)

    def sanitize(self, data: Any) -> Any:
        """The data without secrets and invisible characters."""
        if isinstance(data, Table):
            if not self._is_plain(data.rows):
                data.rows = clean(self._redact(data.rows), LONGEST)
            data.facts = clean(self._redact(data.facts, VERBATIM))
            return data
        return clean(self._redact(data, VERBATIM))

    def command(self, line: str) -> str:
        """A command for the person who approves it: without known secrets, but with everything that could run."""
        self._redactor.add(self._secrets())
        return clean_text(self._redactor.without_known(line, keys=False))

    def hides_given(self, text: str) -> bool:
        """Whether a secret that the caller passed occurs in a text."""
        return self._given.without_known(text, keys=False) != text

    def _is_plain(self, rows: list[list[Any]]) -> bool:
        """Whether no cell needs a change, found in one pass over the text of all cells.

        What is hidden or removed in a cell is hidden or removed in the joined text as well.
        """
        cells = [cell for row in rows for cell in row]
        texts = [cell for cell in cells if type(cell) is str]
        if not _ATOMS.issuperset(map(type, cells)) or any(len(text) > LONGEST for text in texts):
            return False
        joined = SEPARATOR.join(texts)
        self._redactor.add(self._secrets())
        return clean_text(joined) == joined and self._redactor.is_clean(joined)

    def problem(self, problem: Problem) -> Problem:
        problem.transform(lambda part: clean(self.sanitize(part), LONGEST))
        problem.facts = self.sanitize(problem.facts)
        return problem

    def report(self, report: Report | None) -> Report | None:
        """Progress is sanitized as well: its lines come from logs."""
        if report is None:
            return None

        async def tell(done: float, whole: float | None, line: str) -> None:
            await report(done, whole, self.sanitize(line))

        return tell

    def journal_line(self, line: Mapping[str, Any]) -> dict[str, Any]:
        self._redactor.add(self._secrets())
        hide = self._redactor.value
        redacted = {name: value if name in OUR_OWN_WORDS else hide(value) for name, value in line.items()}
        written: dict[str, Any] = clean(redacted)
        return written

    def _redact(self, value: Any, verbatim: frozenset[str] = frozenset()) -> Any:
        self._redactor.add(self._secrets())
        return self._redactor.value(value, verbatim=verbatim)


def clean_text(text: str) -> str:
    return text if text.isascii() and text.isprintable() else _UNSEEN.sub("", text)


def one_line(text: str) -> str:
    """Cleaned and without line ends: a name must not look like one of Quorate's own lines."""
    return " ".join(clean_text(text).split())


def escape_invisible(text: str) -> str:
    """The text with every invisible character as its number, so that texts that look alike can be distinguished."""
    return _UNSEEN.sub(lambda found: f"\\u{{{ord(found[0]):x}}}", text).replace("\n", "\\n")


def shorten(text: str, longest: int = LONGEST) -> str:
    return text if len(text) <= longest else f"{text[:longest]}… ({len(text)} characters)"


def clean(value: Any, longest: int | None = None, lines: int | None = LONGEST) -> Any:
    """The same structure with every text cleaned, the lines of a list cut, other texts only if `longest` is given."""
    if isinstance(value, Quantity):  # of our own making
        return value
    if isinstance(value, str):
        return clean_text(value) if longest is None else shorten(clean_text(value), longest)
    if isinstance(value, dict):
        return {clean(key): clean(one, longest, lines) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [clean(one, lines if isinstance(one, str) else longest, lines) for one in value]
    if isinstance(value, Wording):
        return value.transform(lambda part: clean(part, longest))
    return value
