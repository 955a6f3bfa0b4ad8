"""The key pair of an administration account: one per account for all hosts. The private key stays on this machine."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from quorate.config.settings import HomelabSettings
from quorate.problems import NotConfigured

FOLDER = "admin-keys"
LONGEST_ACCOUNT = 64
ADOPTED = {"mcp_admin": "~/.ssh/mcp/mcp_admin_key"}
"""Accounts of other programs -> their private key. Used until Quorate has generated its own key."""


@dataclass(frozen=True, slots=True)
class AdminKey:
    path: Path
    account: str

    @property
    def line(self) -> str | None:
        """The line for authorized_keys; None before the key exists."""
        return f"{public} quorate:{self.account}" if (public := self.public) else None

    @property
    def public(self) -> str | None:
        """The key without its comment, which other programs write differently."""
        if not self.path.exists():
            return None
        try:
            kind, blob, *_ = self.path.with_name(f"{self.path.name}.pub").read_text().split()
        except (OSError, ValueError):
            return None
        return f"{kind} {blob}"

    def public_line(self) -> str:
        """The line for authorized_keys; the key is generated if it does not exist."""
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
                f"The key {self.path} could not be written",
                why=error.strerror,
                next_step="Nothing was changed on the host. Check the permissions of the folder",
            ) from None
        made = self.line
        assert made is not None
        return made


def admin_key(settings: HomelabSettings, account: str) -> AdminKey:
    own = AdminKey(settings.secrets_file.parent / FOLDER / account, account)
    if own.public is None and account in ADOPTED:
        adopted = AdminKey(Path(ADOPTED[account]).expanduser(), account)
        return adopted if adopted.public else own
    return own


def key_of(settings: HomelabSettings, user: str) -> Path | None:
    """The private key of the administration account of that name, if it exists."""
    if Path(user).name != user or len(user) > LONGEST_ACCOUNT:
        return None
    path = admin_key(settings, user).path
    return path if path.exists() else None


def _write(path: Path, data: bytes, mode: int) -> None:
    """Atomically, and never readable by others."""
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)
    new.replace(path)
