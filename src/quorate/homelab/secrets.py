"""The machine that a stored secret belongs to: a person approves each new pair of reference and address.

A reference says where a secret is, and a caller may combine any reference with any host: the password of one machine
could be sent to another. Once a pair is approved, the registered host itself binds it; any other address is asked about
again.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from quorate.config.homelab import HomelabSettings
from quorate.homelab.host import Host
from quorate.homelab.vault import LONGEST_SECRET, Vault, read_private
from quorate.problems import BadArgument, NotConfigured, NotFound, TimedOut
from quorate.secret import Secret
from quorate.server_files import expand_home

BOUND = ("vault:", "keyring:")


def new_pairs(host: Host, registered: Iterable[Host]) -> list[str]:
    """The references of the host that no registered host has at the same address, by the same way."""
    known = {
        reference
        for other in registered
        if (other.address, other.port, other.jump) == (host.address, host.port, host.jump)
        for reference in _references(other)
    }
    return [reference for reference in _references(host) if reference not in known]


def secrets_in(settings: Mapping[str, Any]) -> list[str]:
    """The references among the settings of a service, or the variables of a workload."""
    return [value for value in settings.values() if isinstance(value, str) and value.startswith(BOUND)]


def question_about(references: Iterable[str], destination: str) -> str:
    """The question for approval. It names the secrets, because the references are arguments, which are not shown."""
    named = (reference.partition(":") for reference in references)
    return f"{', '.join(f'the secret {name} of the {kind}' for kind, _, name in named)} would be sent to {destination}"


def _references(host: Host) -> list[str]:
    references = (host.password, host.sudo_password)
    return list(
        dict.fromkeys(reference for reference in references if reference is not None and reference.startswith(BOUND))
    )


KINDS = ("env:NAME", "file:PATH", "keyring:NAME", "vault:NAME")
SECONDS = 30.0
"""How long a keyring may wait to be unlocked."""
_VARIABLE = re.compile(r"(?:HOMELAB|SSH|QUORATE_HOST)_[A-Z0-9_]+")


class Secrets:
    """Resolves references, and remembers the secrets so that every result is redacted."""

    def __init__(self, settings: HomelabSettings) -> None:
        self._settings = settings
        self._vault = Vault(settings.secrets_file, settings.passphrase)
        self.revealed: set[str] = set()
        if settings.passphrase is not None:
            self.revealed.add(settings.passphrase.reveal())

    async def fetch(self, reference: str) -> Secret:
        """Resolve it in a thread: a keyring may wait for its user, and opening the vault takes time."""
        try:
            async with asyncio.timeout(SECONDS):
                return await asyncio.to_thread(self.find, reference)
        except TimeoutError:
            raise TimedOut(
                f"The secret was not available within {SECONDS:g} s", next_step="Unlock the keyring, then try again"
            ) from None

    def find(self, reference: str) -> Secret:
        kind, _, name = reference.partition(":")
        match kind:
            case "env" if name:
                text = self._from_variable(name)
            case "file" if name:
                text = self._from_file(name)
            case "keyring" if name:
                text = from_keyring(name)
            case "vault" if name:
                text = self._vault.find(name).reveal()
            case _:
                raise BadArgument(
                    "A secret must be a reference",
                    why="This value is stored, and secrets are not stored",
                    next_step=f"Use one of {', '.join(KINDS)}",
                )
        self.revealed.add(text)
        return Secret(text)

    def _from_variable(self, name: str) -> str:
        if not _VARIABLE.fullmatch(name):
            raise BadArgument(
                f"{name} is not a variable for host secrets",
                next_step="Use a name that starts with HOMELAB_, SSH_ or QUORATE_HOST_",
            )
        if not (text := {**self._settings.ssh.variables(), **os.environ}.get(name)):
            raise NotConfigured(
                f"The variable {name} is not set", next_step="The operator has to set it before Quorate starts"
            )
        return text

    def _from_file(self, name: str) -> str:
        folder = self._settings.secrets_folder
        file = _locate(name, folder)
        if file is None:
            raise BadArgument(
                f"{name} is not a file for host secrets",
                why=f"Those are in {folder}",
                next_step="The operator can put it there, or set another secrets_folder in [homelab]",
            )
        try:
            text = read_private(file, LONGEST_SECRET).decode().strip("\r\n")
        except UnicodeDecodeError:
            raise NotConfigured(f"The secret in {file} is not UTF-8 text") from None
        if not text:
            raise NotConfigured(f"The secret in {file} is empty")
        return text


def _locate(name: str, folder: Path) -> Path | None:
    """The file of that name in the folder. Its text decides first: what is elsewhere on this machine has no effect."""
    try:
        inner = expand_home(name)
        file = folder / inner
        if ".." in inner.parts or not file.is_relative_to(folder):
            return None
        return file if file.resolve().is_relative_to(folder.resolve()) else None
    except (OSError, RuntimeError, ValueError):  # such as links in a circle
        return None


SERVICE = "quorate"
TRUSTED = ("SecretService", "libsecret", "kwallet", "macOS", "Windows")
"""Backends that the operating system protects. Others may silently store plain text."""


def from_keyring(name: str) -> str:
    try:
        import keyring
        from keyring.errors import KeyringError
    except ImportError:
        raise NotConfigured(
            "The keyring cannot be used: the package keyring is not installed",
            next_step='Install it with `pip install "quorate[keyring]"`, or use env:, file: or vault:',
        ) from None
    backend = _require_protected(keyring.get_keyring())
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
            f"The keyring has no {name!r} for {SERVICE}",
            next_step=f"The operator can add it with `keyring set {SERVICE} {name}`",
        )
    return str(secret)


def _require_protected(backend: Any) -> Any:
    """The backend, or the first of a chain, that the operating system protects."""
    chain = getattr(backend, "backends", None) or [backend]
    for candidate in chain:
        if type(candidate).__module__ in [f"keyring.backends.{name}" for name in TRUSTED]:
            return candidate
    kind = f"{type(backend).__module__}.{type(backend).__qualname__}"
    raise NotConfigured(
        "There is no trustworthy keyring here",
        why=f"The package keyring would use {kind}, which is not a keyring of the operating system",
        next_step="Use env:, file: or vault: instead",
    )
