"""The key pair of an administration account. One for each account, for all hosts: the private key never leaves here."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from quorate.homelab.settings import HomelabSettings
from quorate.problems import NotConfigured

FOLDER = "admin-keys"


@dataclass(frozen=True, slots=True)
class AdminKey:
    path: Path
    account: str

    @property
    def line(self) -> str | None:
        """What stands in authorized_keys; None while there is no key yet."""
        if not self.path.exists():
            return None
        try:
            kind, blob, *_ = self.path.with_name(f"{self.path.name}.pub").read_text().split()
        except (OSError, ValueError):
            return None
        return f"{kind} {blob} quorate:{self.account}"

    def made(self) -> str:
        """The line, for a key that is made if there is none."""
        if line := self.line:
            return line
        import asyncssh

        private = asyncssh.generate_private_key("ssh-ed25519", comment=f"quorate:{self.account}")
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _write(self.path, private.export_private_key(), 0o600)
            _write(self.path.with_name(f"{self.path.name}.pub"), private.export_public_key(), 0o644)
        except OSError as error:
            raise NotConfigured(
                f"The key {self.path} cannot be written", why=error.strerror, next_step="Nothing was done on the host"
            ) from None
        made = self.line
        assert made is not None
        return made


def admin_key(settings: HomelabSettings, account: str) -> AdminKey:
    return AdminKey(settings.secrets_file.parent / FOLDER / account, account)


def key_of(settings: HomelabSettings, user: str) -> Path | None:
    """The private key of an account that was set up by that name."""
    path = admin_key(settings, user).path
    return path if Path(user).name == user and path.exists() else None


def _write(path: Path, data: bytes, mode: int) -> None:
    """At no moment can anybody else read it, nor is half a key ever there."""
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)
    new.replace(path)
