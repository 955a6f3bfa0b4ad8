"""Keeping secrets in: every text that leaves passes here."""

from __future__ import annotations

import base64
import json
import re
import shlex
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote, quote_plus

from quorate.command_secrets import without_secrets

HIDDEN = "***"
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
    "header", "confirmation-password", "input-data",
}  # fmt: skip
_FILE_WRITE = "/agent/file-write"  # only here is `content` not a kind of volumes, but a file of a guest


def secret_parameters(path: str) -> frozenset[str]:
    """Which parameters of a call of the raw API are not told."""
    return SECRET_PARAMETERS | {"content"} if path.endswith(_FILE_WRITE) else SECRET_PARAMETERS


# What comes from inside a guest is told as it is but for our own secrets: who asked for a file may write it back.
VERBATIM = frozenset({"content", "stdout", "stderr"})

# Given by mistake where a public key is wanted.
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


def _names_for(name: str, beside: Mapping[str, Any], names: frozenset[str]) -> frozenset[str]:
    """The names that mean secrets in what stands under `name`; those of parameters depend on the path beside them."""
    return secret_parameters(str(beside.get("path", ""))) if name == "params" else names


# Credentials inside a text: of a URL, and of a property string or an argument that was put together by hand.
_IN_URL = re.compile(r"(?<=://)[^/\s:@]*:[^/\s@]+(?=@)")
_IN_TEXT = re.compile(r"\b((?:ci)?password=|secret=|authorization: ?)(?!\*)[^\s,&;'\"]+", re.I)


def _spellings(secret: str) -> Iterable[str]:
    """Other forms of a secret: in a URL, in JSON, in quotes of a shell or of Python, and in base64 of a longer text."""
    yield quote(secret, safe="")
    yield quote_plus(secret)
    yield json.dumps(secret)[1:-1]
    yield json.dumps(secret, ensure_ascii=False)[1:-1]
    yield repr(secret)[1:-1]
    yield shlex.quote(secret)[1:-1] if shlex.quote(secret) != secret else secret
    data = secret.encode(errors="surrogatepass")
    yield base64.b64encode(data).decode()
    for before in range(3):  # where it begins decides which letters it becomes; those at its ends it shares
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
        self.add(secrets)

    def add(self, secrets: Iterable[str]) -> None:
        new = {secret for secret in secrets if len(secret) >= SHORTEST} - self._secrets
        if new:
            self._secrets |= new
            spelled = {one for secret in new for one in (secret, *_spellings(secret))}
            self._hidden = sorted({*self._hidden, *spelled}, key=len, reverse=True)

    def text(self, text: str) -> str:
        return _IN_TEXT.sub(rf"\1{HIDDEN}", _IN_URL.sub(HIDDEN, self.known(text)))

    def known(self, text: str) -> str:
        """Without the secrets that we know, and without private keys."""
        for secret in self._hidden:
            if secret in text:
                text = text.replace(secret, HIDDEN)
        return _PRIVATE_KEY.sub(HIDDEN, text) if "PRIVATE KEY" in text else text

    def command(self, command: str | list[str]) -> str | list[str]:
        """A command for a guest. Arguments that hold a secret together are told as one line."""
        line = command if isinstance(command, str) else shlex.join(command)
        hidden = self.text(without_secrets(self.known(line)))
        return command if hidden == line else hidden

    def value(
        self,
        value: Any,
        key: str = "",
        names: frozenset[str] = SECRET_KEYS,
        *,
        verbatim: frozenset[str] = frozenset(),
    ) -> Any:
        """The same structure, with secrets hidden wherever they stand and whatever a secret's key holds.

        Under the keys in `verbatim` only the secrets that we know are hidden.
        """
        if key.lower() in names and value not in (None, ""):
            return HIDDEN
        if key == "command" and (isinstance(value, str) or _is_argv(value)):
            return self.command(value)
        if isinstance(value, str):
            return self.known(value) if key in verbatim else self.text(value)
        if isinstance(value, dict):
            return {
                name: self.value(one, str(name), _names_for(name, value, names), verbatim=verbatim)
                for name, one in value.items()
            }
        if isinstance(value, (list, tuple)):
            return [self.value(one, verbatim=verbatim) for one in value]
        return value


def _is_argv(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)
