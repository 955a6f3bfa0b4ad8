"""Redaction: every text that leaves the pipeline passes through here."""

from __future__ import annotations

import base64
import json
import re
import shlex
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import quote, quote_plus

from quorate.command_secrets import HIDDEN, without_secrets
from quorate.hints import Wording
from quorate.operations.units import Quantity

SHORTEST = 5  # a shorter "secret" would blank out ordinary words
SHORTEST_ENCODED = 8  # of a piece of base64
SECRET_KEYS = frozenset(
    {
        "password",
        "sudo_password",
        "cipassword",
        "secret",
        "token_secret",
        "ticket",
        "csrfpreventiontoken",
        "sshkeys-private",
    }
)
# Parameters of the raw API that hold credentials; elsewhere such names are too common to mean that.
SECRET_PARAMETERS = SECRET_KEYS | {
    "token", "key", "client-key", "certkey", "encryption-key", "keyring", "eab-hmac-key", "target-endpoint", "data",
    "header", "otel-headers", "confirmation-password", "input-data", "env", "keys",
}  # fmt: skip
_FILE_WRITE = "/agent/file-write"  # elsewhere `content` is a type of volumes; here it is a file
_HOSTS_FILE = re.compile(r"/nodes/[^/]+/hosts")  # `data` is the file, which everyone on the node can read


def secret_parameters(path: str) -> frozenset[str]:
    """The parameters of a raw API call that are hidden."""
    if _HOSTS_FILE.fullmatch(path):
        return SECRET_PARAMETERS - {"data"}
    return SECRET_PARAMETERS | {"content"} if path.endswith(_FILE_WRITE) else SECRET_PARAMETERS


# Output from inside a guest is shown unchanged except for our own secrets, so a file can be written back.
VERBATIM = frozenset({"content", "stdout", "stderr"})

# Given by mistake where a public key is expected.
_PRIVATE_KEY = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.S)


def secrets_in(value: Any, key: str = "", names: frozenset[str] = SECRET_KEYS) -> list[str]:
    """The secrets among a caller's arguments, by the names that hold them, at any depth."""
    if isinstance(value, Mapping):
        return [
            secret
            for name, one in value.items()
            for secret in secrets_in(one, str(name), _names_for(name, value, names))
        ]
    if isinstance(value, (list, tuple)):
        return [secret for one in value for secret in secrets_in(one, key, names)]
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
            spelled = {one for secret in new for one in (secret, *_spellings(secret))}
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
        return _PRIVATE_KEY.sub(HIDDEN, text) if keys and "PRIVATE KEY" in text else text

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
                name: self.value(one, str(name), _names_for(name, value, names), verbatim=verbatim)
                for name, one in value.items()
            }
        if isinstance(value, (list, tuple)):
            return [self.value(one, verbatim=verbatim) for one in value]
        if isinstance(value, Wording):
            return value.transform(lambda part: self.value(part, verbatim=verbatim))
        return value


def _is_argv(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)
