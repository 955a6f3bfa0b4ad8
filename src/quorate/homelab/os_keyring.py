"""The keyring of the operating system, by the package `keyring` (the extra `keyring`)."""

from __future__ import annotations

from typing import Any

from quorate.problems import NotConfigured, NotFound

SERVICE = "quorate"
TRUSTED = ("SecretService", "libsecret", "kwallet", "macOS", "Windows")
"""Backends that the operating system itself protects. Others may keep plain text without saying so."""


def from_keyring(name: str) -> str:
    try:
        import keyring
        from keyring.errors import KeyringError
    except ImportError:
        raise NotConfigured(
            "The keyring cannot be used: the package keyring is not installed",
            next_step='Install it with `pip install "quorate[keyring]"`, or use env:, file: or vault:',
        ) from None
    backend = _trusted(keyring.get_keyring())
    try:
        secret = backend.get_password(SERVICE, name)
    except KeyringError as error:
        raise NotConfigured(
            "The keyring does not answer",
            why=str(error) or type(error).__name__,
            next_step="Unlock it in the session that starts Quorate, or use env:, file: or vault:",
        ) from None
    if secret is None:
        raise NotFound(
            f"There is no {name!r} of {SERVICE} in the keyring",
            next_step=f"The operator runs `keyring set {SERVICE} {name}`",
        )
    return str(secret)


def _trusted(backend: Any) -> Any:
    """The backend, or the first of a chain, that the operating system protects."""
    chain = getattr(backend, "backends", None) or [backend]
    for one in chain:
        if type(one).__module__ in [f"keyring.backends.{name}" for name in TRUSTED]:
            return one
    kind = f"{type(backend).__module__}.{type(backend).__qualname__}"
    raise NotConfigured(
        "There is no keyring here that can be trusted with a secret",
        why=f"The package keyring would use {kind}, which is none of the operating system's own",
        next_step="Use env:, file: or vault: instead",
    )
