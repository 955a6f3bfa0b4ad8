"""What leaves the pipeline carries no secrets, and no characters that hide or reorder text."""

from __future__ import annotations

import base64
import json
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import quote, quote_plus

from quorate.hints import Wording
from quorate.operations.registry import Table
from quorate.problems import Problem
from quorate.pve.tasks import Report
from quorate.secret import HIDDEN, PRIVATE_KEY, SECRET_KEYS, secret_parameters, without_secrets
from quorate.units import Quantity

SHORTEST = 5  # a shorter "secret" would blank out ordinary words
SHORTEST_ENCODED = 8  # of a piece of base64
# Output from inside a guest is shown unchanged except for our own secrets, so a file can be written back.
VERBATIM = frozenset({"content", "stdout", "stderr"})


def secrets_in(value: Any, key: str = "", names: frozenset[str] = SECRET_KEYS) -> list[str]:
    """The secrets among a caller's arguments, by the names that hold them, at any depth."""
    if isinstance(value, Mapping):
        hidden = key.lower() in names  # such as variables as an object
        return [
            secret
            for name, inner in value.items()
            for secret in secrets_in(inner, key if hidden else str(name), _names_for(name, value, names))
        ]
    if isinstance(value, (list, tuple)):
        return [secret for inner in value for secret in secrets_in(inner, key, names)]
    return [str(value)] if key.lower() in names and value else []


def _names_for(name: str, siblings: Mapping[str, Any], names: frozenset[str]) -> frozenset[str]:
    """The keys that hold secrets under `name`; for parameters they depend on the path next to them."""
    if name == "options":  # of a guest, as PVE spells them
        return names | {"env"}
    return secret_parameters(str(siblings.get("path", ""))) if name == "params" else names


# Credentials inside a text: in a URL, a property string or a hand-written argument.
_IN_URL = re.compile(r"(?<=://)[^/\s:@]*:[^/\s@]+(?=@)")
_IN_TEXT = re.compile(r"\b((?:ci)?password=|secret=|authorization: ?)(?!\*)[^\s,&;'\"]+", re.I)


@lru_cache(maxsize=64)  # nearly always the same: the credentials of the clusters
def _spellings(secret: str) -> tuple[str, ...]:
    return tuple(_other_forms(secret))


def _other_forms(secret: str) -> Iterable[str]:
    """How a secret is spelled in a URL, in JSON, quoted for a shell or Python, and inside base64 of a longer text."""
    yield quote(secret, safe="")
    yield quote_plus(secret)
    yield json.dumps(secret)[1:-1]
    yield json.dumps(secret, ensure_ascii=False)[1:-1]
    yield repr(secret)[1:-1]
    yield shlex.quote(secret)[1:-1] if shlex.quote(secret) != secret else secret
    data = secret.encode(errors="surrogatepass")
    yield base64.b64encode(data).decode()
    for before in range(3):  # its offset determines its letters; those at its ends depend on the neighbors
        whole = base64.b64encode(bytes(before) + data).decode().rstrip("=")
        end = len(whole) if (before + len(data)) % 3 == 0 else len(whole) - 1
        if len(inner := whole[-(-before * 8 // 6) : end]) >= SHORTEST_ENCODED:
            yield inner


class Redactor:
    """Knows the secrets it was given, in every encoding that Quorate itself produces."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secrets: set[str] = set()
        self._hidden: list[str] = []
        """All spellings, the longest first: one may hold another."""
        self._shortest = 0
        """The length of the last of them: no shorter text contains one."""
        self.add(secrets)

    def add(self, secrets: Iterable[str]) -> None:
        new = {secret for secret in secrets if len(secret) >= SHORTEST} - self._secrets
        if new:
            self._secrets |= new
            spelled = {spelling for secret in new for spelling in (secret, *_spellings(secret))}
            self._hidden = sorted({*self._hidden, *spelled}, key=len, reverse=True)
            self._shortest = len(self._hidden[-1])

    def text(self, text: str) -> str:
        text = self.without_known(text)
        if "://" in text:
            text = _IN_URL.sub(HIDDEN, text)
        return _IN_TEXT.sub(rf"\1{HIDDEN}", text) if "=" in text or ":" in text else text

    def without_known(self, text: str, *, keys: bool = True) -> str:
        """The text without known secrets and, by default, without private keys."""
        if len(text) >= self._shortest:
            for secret in self._hidden:
                if secret in text:
                    text = text.replace(secret, HIDDEN)
        # Private keys are given by mistake where a public key is expected.
        return PRIVATE_KEY.sub(HIDDEN, text) if keys and "PRIVATE KEY" in text else text

    def is_clean(self, text: str) -> bool:
        """Whether no part of this text would be hidden."""
        return self.text(text) == text

    def command(self, command: str | list[str]) -> str | list[str]:
        """A command for a guest. If a secret spans arguments, the command is shown as one line."""
        line = command if isinstance(command, str) else shlex.join(command)
        hidden = self.text(without_secrets(self.without_known(line)))
        return command if hidden == line else hidden

    def value(
        self,
        value: Any,
        key: str = "",
        names: frozenset[str] = SECRET_KEYS,
        *,
        verbatim: frozenset[str] = frozenset(),
    ) -> Any:
        """The same structure with every secret hidden, and everything under the key of a secret.

        Under the keys in `verbatim`, only known secrets are hidden.
        """
        if key.lower() in names and value not in (None, ""):
            return HIDDEN
        if key == "command" and (isinstance(value, str) or _is_argv(value)):
            return self.command(value)
        if isinstance(value, Quantity):
            return value
        if isinstance(value, str):
            return self.without_known(value) if key in verbatim else self.text(value)
        if isinstance(value, dict):
            return {
                name: self.value(inner, str(name), _names_for(name, value, names), verbatim=verbatim)
                for name, inner in value.items()
            }
        if isinstance(value, (list, tuple)):
            return [self.value(inner, verbatim=verbatim) for inner in value]
        if isinstance(value, Wording):
            return value.transform(lambda part: self.value(part, verbatim=verbatim))
        return value


def _is_argv(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(word, str) for word in value)


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
        self._given = Redactor(secret for secret in own if not secret.startswith(_REFERENCES))
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
    return _UNSEEN.sub(lambda match: f"\\u{{{ord(match[0]):x}}}", text).replace("\n", "\\n")


def shorten(text: str, longest: int = LONGEST) -> str:
    return text if len(text) <= longest else f"{text[:longest]}… ({len(text)} characters)"


def clean(value: Any, longest: int | None = None, lines: int | None = LONGEST) -> Any:
    """The same structure with every text cleaned, the lines of a list cut, other texts only if `longest` is given."""
    if isinstance(value, Quantity):  # of our own making
        return value
    if isinstance(value, str):
        return clean_text(value) if longest is None else shorten(clean_text(value), longest)
    if isinstance(value, dict):
        return {clean(key): clean(inner, longest, lines) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [clean(inner, lines if isinstance(inner, str) else longest, lines) for inner in value]
    if isinstance(value, Wording):
        return value.transform(lambda part: clean(part, longest))
    return value
