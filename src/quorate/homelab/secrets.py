"""Secrets by reference: what is kept of a host says where its secret is, never what it is.

A caller may name a reference, and the secret is then sent to the host that they name with it. So references reach only
what the operator has put aside for hosts, never other variables, files or keyring entries of this server.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path

from quorate.homelab.private_files import read_private
from quorate.homelab.settings import HomelabSettings
from quorate.homelab.vault import LONGEST_SECRET, Vault
from quorate.problems import BadArgument, NotConfigured, TimedOut
from quorate.secret import Secret

KINDS = ("env:NAME", "file:PATH", "keyring:NAME", "vault:NAME")
SECONDS = 30.0
"""How long a keyring may ask its user to be unlocked."""
_VARIABLE = re.compile(r"(?:HOMELAB|SSH|QUORATE_HOST)_[A-Z0-9_]+")


_lent: ContextVar[tuple[str, ...]] = ContextVar("secrets of one call", default=())


@contextlib.contextmanager
def hidden_in_this_call(secret: Secret | None) -> Iterator[None]:
    """What a caller brought along is kept out of the answers to that caller, and forgotten afterwards."""
    token = _lent.set((*_lent.get(), *([secret.reveal()] if secret else [])))
    try:
        yield
    finally:
        _lent.reset(token)


def lent() -> tuple[str, ...]:
    return _lent.get()


class Secrets:
    """Reads what references lead to, and remembers it so that it can be kept out of every answer."""

    def __init__(self, settings: HomelabSettings) -> None:
        self._settings = settings
        self._vault = Vault(settings.secrets_file, settings.passphrase)
        self.revealed: set[str] = set()
        if settings.passphrase is not None:
            self.revealed.add(settings.passphrase.reveal())

    async def fetch(self, reference: str) -> Secret:
        """Find it without keeping others waiting: a keyring may ask its user, and opening the vault takes its time."""
        try:
            async with asyncio.timeout(SECONDS):
                return await asyncio.to_thread(self.find, reference)
        except TimeoutError:
            raise TimedOut(
                f"The secret did not come within {SECONDS:g} s", next_step="Unlock the keyring, then try again"
            ) from None

    def find(self, reference: str) -> Secret:
        kind, _, name = reference.partition(":")
        match kind:
            case "env" if name:
                text = self._from_variable(name)
            case "file" if name:
                text = self._from_file(name)
            case "keyring" if name:
                from quorate.homelab.os_keyring import from_keyring

                text = from_keyring(name)
            case "vault" if name:
                text = self._vault.find(name).reveal()
            case _:
                raise BadArgument(
                    "A secret is given by reference only",
                    why="What is given here is kept, and a secret must not be",
                    next_step=f"Write one of {', '.join(KINDS)}",
                )
        self.revealed.add(text)
        return Secret(text)

    def _from_variable(self, name: str) -> str:
        if not _VARIABLE.fullmatch(name):
            raise BadArgument(
                f"{name} is no variable for a host's secret",
                next_step="Its name begins with HOMELAB_, SSH_ or QUORATE_HOST_",
            )
        if not (text := {**self._settings.ssh.variables(), **os.environ}.get(name)):
            raise NotConfigured(
                f"The variable {name} is not set", next_step="The operator sets it before Quorate starts"
            )
        return text

    def _from_file(self, name: str) -> str:
        folder = self._settings.secrets_folder
        file = folder / Path(name).expanduser()
        if not file.resolve().is_relative_to(folder.resolve()):
            raise BadArgument(
                f"{name} is no file for a host's secret",
                why=f"Those stand in {folder}",
                next_step="The operator puts it there, or names another secrets_folder in [homelab]",
            )
        try:
            text = read_private(file, LONGEST_SECRET).decode().strip("\r\n")
        except UnicodeDecodeError:
            raise NotConfigured(f"The secret in {file} is no text") from None
        if not text:
            raise NotConfigured(f"The secret in {file} is empty")
        return text
