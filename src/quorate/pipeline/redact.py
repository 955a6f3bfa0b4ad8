"""Keeping secrets in: every text that leaves passes here."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote, quote_plus

HIDDEN = "***"
SHORTEST = 6  # a shorter "secret" would blank out ordinary words
SECRET_KEYS = frozenset(
    {"password", "cipassword", "secret", "token_secret", "ticket", "csrfpreventiontoken", "sshkeys-private"}
)


def secrets_in(value: Any, key: str = "") -> list[str]:
    """The secrets among a caller's arguments, by the names that hold them, at any depth."""
    if isinstance(value, Mapping):
        return [secret for name, one in value.items() for secret in secrets_in(one, str(name))]
    if isinstance(value, (list, tuple)):
        return [secret for one in value for secret in secrets_in(one, key)]
    return [str(value)] if key.lower() in SECRET_KEYS and value else []


class Redactor:
    """Knows the secrets it was given, in every encoding that Quorate itself produces."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._hidden: set[str] = set()
        self.add(secrets)

    def add(self, secrets: Iterable[str]) -> None:
        for secret in secrets:
            if len(secret) >= SHORTEST:
                encoded = base64.b64encode(secret.encode()).decode()
                self._hidden |= {
                    secret,
                    quote(secret, safe=""),
                    quote_plus(secret),
                    encoded,
                    encoded.rstrip("="),
                }

    def text(self, text: str) -> str:
        for secret in sorted(self._hidden, key=len, reverse=True):
            if secret in text:
                text = text.replace(secret, HIDDEN)
        return text

    def value(self, value: Any, key: str = "") -> Any:
        """The same structure, with secrets hidden wherever they stand and whatever a secret's key holds."""
        if key.lower() in SECRET_KEYS and value not in (None, ""):
            return HIDDEN
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {name: self.value(one, str(name)) for name, one in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.value(one) for one in value]
        return value
