"""Secrets in one encrypted file.

Each secret is sealed separately (AES-256-GCM) with its name as associated data, so that secrets cannot be swapped. The
key is derived from a passphrase by scrypt. A checksum distinguishes a damaged file from a wrong passphrase; the seals
protect against deliberate changes.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec

from quorate.config.files import write_private
from quorate.documents import Unreadable, read_json
from quorate.problems import AuthenticationFailed, BadArgument, Conflict, NotConfigured, NotFound
from quorate.secret import Secret
from quorate.state.passphrase import BLOCK, COST, LANES, derive_key

FORMAT, VERSION = "quorate-secrets", 1
LONGEST_FILE, LONGEST_SECRET = 4 * 1024 * 1024, 4096
LEAST_COST, MOST_COST = 2**15, 2**20
SHORTEST_PASSPHRASE = 12
_CHECK = ""
"""A name that no secret can have: opening what is sealed under it verifies the passphrase."""
T = TypeVar("T")
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.@-]{0,62}[A-Za-z0-9])?")


class SealedSecret(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    nonce: bytes
    data: bytes


class VaultContent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of the file."""

    format: str
    version: int
    cost: int
    block: int
    lanes: int
    salt: bytes
    check: SealedSecret
    secrets: dict[str, SealedSecret]
    sha256: str = ""

    @property
    def is_usual(self) -> bool:
        """Within the supported parameters: neither easier to guess nor so expensive that opening blocks the server."""
        costs = LEAST_COST <= self.cost <= MOST_COST and 8 <= self.block <= 16 and 1 <= self.lanes <= 16
        return costs and (self.format, self.version) == (FORMAT, VERSION)

    def text(self) -> str:
        """The canonical serialization."""
        return msgspec.json.format(msgspec.json.encode(self)).decode() + "\n"

    def checksum(self) -> str:
        return hashlib.sha256(msgspec.json.encode(msgspec.structs.replace(self, sha256=""))).hexdigest()


class _Head(msgspec.Struct):
    version: int


class Vault:
    """The file and its passphrase."""

    def __init__(self, file: Path, passphrase: Secret | None) -> None:
        self.file = file
        self._passphrase = passphrase
        self._keys: dict[tuple[bytes, int, int, int], bytes] = {}
        """Derived once for each salt, which takes a few tenths of a second by design."""

    def names(self) -> list[str]:
        """Needs no passphrase: names are not secret."""
        return sorted(self._read().secrets) if self.file.exists() else []

    def find(self, name: str) -> Secret:
        if self._passphrase is None:
            raise NotConfigured(
                f"{self.file} is locked",
                why="No passphrase for it is configured",
                next_step="Set QUORATE_SECRETS_PASSPHRASE_FILE, or secrets_passphrase in [homelab]",
            )
        book = self._read()
        key = self._unlock(book)
        if name not in book.secrets:
            raise NotFound(
                f"There is no secret {name!r} in {self.file}",
                next_step=f"The operator can add it with `quorate secrets set {name}`",
            )
        return Secret(self._unseal(key, name, book.secrets[name]))

    # -- for the operator's own command ----------------------------------------------------------------------------

    def put(self, name: str, secret: Secret) -> bool:
        """Store it; returns whether it replaced another."""
        if not _NAME.fullmatch(name):
            advice = "Use letters and digits, with . _ @ - between them"
            raise BadArgument(f"{name!r} is not a valid name for a secret", next_step=advice)
        if not secret.reveal() or len(secret.reveal().encode()) > LONGEST_SECRET:
            raise BadArgument(f"A secret has 1 to {LONGEST_SECRET} bytes")
        with self._changing() as book:
            sealed = _seal(self._unlock(book), name, secret.reveal())
            self._write(msgspec.structs.replace(book, secrets={**book.secrets, name: sealed}))
        return name in book.secrets

    def remove(self, name: str) -> bool:
        """Remove a secret; returns False if there was none. Like every change, this needs the passphrase."""
        with self._changing() as book:
            self._unlock(book)
            left = {other: sealed for other, sealed in book.secrets.items() if other != name}
            if len(left) < len(book.secrets):
                self._write(msgspec.structs.replace(book, secrets=left))
        return name in book.secrets

    def change_passphrase(self, passphrase: Secret) -> None:
        """Seal everything again, with a new salt and new nonces."""
        with self._changing() as book:
            key = self._unlock(book)
            plain = {name: self._unseal(key, name, sealed) for name, sealed in book.secrets.items()}
            self._passphrase = passphrase
            new = self._empty()
            key = self._unlock(new)
            self._write(
                msgspec.structs.replace(new, secrets={name: _seal(key, name, text) for name, text in plain.items()})
            )

    def check_passphrase(self) -> None:
        """Raises if it does not open the file. Before the file exists, any passphrase is right."""
        if self.file.exists():
            self._unlock(self._read())

    @contextmanager
    def _changing(self) -> Iterator[VaultContent]:
        """The file or a new one, locked against concurrent changes."""
        from quorate.state.sqlite import locked_folder

        self.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with locked_folder(self.file.parent):
            yield self._read() if self.file.exists() else self._empty()

    def _write(self, book: VaultContent) -> None:
        write_private(self.file, msgspec.structs.replace(book, sha256=book.checksum()).text())

    # -- reading and opening ---------------------------------------------------------------------------------------

    def _read(self) -> VaultContent:
        if not self.file.exists():
            raise NotConfigured(
                f"There is no {self.file}", next_step="The operator can create it with `quorate secrets set NAME`"
            )
        content = read_private(self.file, LONGEST_FILE)
        head = _decode(content, _Head)
        book = _decode(content, VaultContent)
        if head is not None and head.version > VERSION and book is None:
            raise Conflict(
                f"{self.file} was written by a newer Quorate",
                why=f"It has version {head.version}; this Quorate supports {VERSION}",
                next_step="Use that Quorate, or another secrets_file",
            )
        if book is None or not book.is_usual or book.sha256 != book.checksum() or book.text().encode() != content:
            raise Conflict(
                f"{self.file} is damaged",
                why="Its content does not match its checksum; the passphrase is not the cause",
                next_step="Restore it from a backup, or move it away and set the secrets again: `quorate secrets set`",
            )
        return book

    def _unlock(self, book: VaultContent) -> bytes:
        """The key. Raises AuthenticationFailed if the passphrase is wrong."""
        key = self._key(book)
        if _decrypt(key, _CHECK, book.check) is None:
            raise AuthenticationFailed(
                f"The passphrase does not open {self.file}",
                next_step="Use the one that the file was created with; `quorate secrets list` needs none",
            )
        return key

    def _unseal(self, key: bytes, name: str, sealed: SealedSecret) -> str:
        text = _decrypt(key, name, sealed)
        if text is None:
            raise Conflict(
                f"The secret {name!r} in {self.file} was changed by another program",
                why="The passphrase is right, but the seal of this secret is broken",
                next_step=f"Restore the file from a backup, or set the secret again: `quorate secrets set {name}`",
            )
        return text

    def _empty(self) -> VaultContent:
        unchecked = VaultContent(FORMAT, VERSION, COST, BLOCK, LANES, os.urandom(16), SealedSecret(b"", b""), {})
        return msgspec.structs.replace(unchecked, check=_seal(self._key(unchecked), _CHECK, ""))

    def _key(self, book: VaultContent) -> bytes:
        assert self._passphrase is not None
        made_of = (book.salt, book.cost, book.block, book.lanes)
        if made_of not in self._keys:
            self._keys = {made_of: derive_key(self._passphrase.reveal(), *made_of)}
        return self._keys[made_of]


def ensure_long(passphrase: Secret) -> None:
    if len(passphrase.reveal().strip()) < SHORTEST_PASSPHRASE:
        raise BadArgument(
            f"The passphrase is too short: it needs {SHORTEST_PASSPHRASE} characters or more",
            next_step="Use a few random words",
        )


def _decode(content: bytes, kind: type[T]) -> T | None:
    try:
        value: T = read_json(content, kind)
        return value
    except Unreadable:
        return None


def _seal(key: bytes, name: str, text: str) -> SealedSecret:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    nonce = os.urandom(12)
    return SealedSecret(nonce, AESGCM(key).encrypt(nonce, text.encode(), _bound_to(name)))


def _decrypt(key: bytes, name: str, sealed: SealedSecret) -> str | None:
    """The secret; None if key, name or data do not match the seal."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    try:
        return AESGCM(key).decrypt(sealed.nonce, sealed.data, _bound_to(name)).decode()
    except (InvalidTag, ValueError):  # a nonce of another length
        return None


def _bound_to(name: str) -> bytes:
    return f"{FORMAT} {VERSION} {name}".encode()


def read_private(file: Path, limit: int) -> bytes:
    """The content. Raises NotConfigured unless it is a regular file that only our user can open."""
    try:
        handle = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise _unusable(file, error.strerror) from None
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise _unusable(file, "It is not a regular file")
        if status.st_uid != os.geteuid():
            raise _unusable(file, "It belongs to another user", f"Run `chown {os.geteuid()} {file}`")
        if status.st_mode & 0o077:
            raise _unusable(file, "Other users may open it", f"Run `chmod 600 {file}`")
        content = os.read(handle, limit + 1)
    finally:
        os.close(handle)
    if len(content) > limit:
        raise _unusable(file, f"It is longer than {limit} bytes")
    return content


def _unusable(file: Path, why: str | None, next_step: str | None = None) -> NotConfigured:
    return NotConfigured(f"The secret file {file} cannot be used", why=why, next_step=next_step)
