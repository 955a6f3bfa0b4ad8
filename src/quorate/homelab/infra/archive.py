"""A backup as one file: a tar of compressed pieces and their list, each sealed if a passphrase is configured.

The key is derived from the passphrase of the secrets file by scrypt. Every piece is bound to the archive and to its own
name, so that pieces cannot be swapped.
"""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
import zlib
from pathlib import Path

import msgspec

from quorate.problems import AuthenticationFailed, Conflict, NotConfigured, NotFound
from quorate.secret import Secret
from quorate.state.passphrase import BLOCK, COST, LANES, derive_key

FORMAT = "quorate-backup 1"
MOST_PIECE = 256 * 1024 * 1024
_HEAD, _LIST = "head.json", "list"


class Piece(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file, a workload's definition, the data of a volume, or the list of packages."""

    section: str
    kind: str
    """file, workload, data or packages"""
    name: str
    sha256: str
    """The hash of what is compared: a file's content, or a workload's definition."""
    member: str
    mode: int = 0
    uid: int = 0
    gid: int = 0
    engine: str = ""
    running: bool = False
    enabled: bool = False
    """For a systemd unit."""

    @property
    def key(self) -> tuple[str, str, str]:
        return self.kind, self.engine, self.name


class DeviceBackup(msgspec.Struct, omit_defaults=True):
    device: str
    """The name that `machine` accepts."""
    machine_id: str = ""
    pieces: list[Piece] = []
    cannot: dict[str, str] = {}
    """What could not be backed up, and why."""


class Manifest(msgspec.Struct, omit_defaults=True):
    id: str
    created: float
    sections: list[str]
    devices: list[DeviceBackup] = []


class _Head(msgspec.Struct):
    format: str
    salt: bytes = b""
    """Empty: not encrypted."""


class Writer:
    """Writes to a temporary file; `finish` moves it into place."""

    def __init__(self, folder: Path, name: str, passphrase: Secret | None) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.file = folder / f"{name}.tar"
        self._part = folder / f".{name}.part"
        self._handle = os.fdopen(os.open(self._part, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600), "wb")
        self._tar = tarfile.open(fileobj=self._handle, mode="w")  # noqa: SIM115 - closed by finish or discard
        self._count = 0
        self._cipher = _Cipher(name, passphrase, os.urandom(16) if passphrase else b"")
        self.encrypted = passphrase is not None
        self._add(_HEAD, msgspec.json.encode(_Head(FORMAT, self._cipher.salt)))

    def add(self, content: bytes) -> str:
        """The name of the new member."""
        self._count += 1
        name = f"{self._count:05}"
        self._add(name, self._cipher.encrypt(name, zlib.compress(content)))
        return name

    def finish(self, manifest: Manifest) -> str:
        """The hash of the whole file."""
        self._add(_LIST, self._cipher.encrypt(_LIST, zlib.compress(msgspec.json.encode(manifest))))
        self._tar.close()
        self._handle.flush()
        os.fsync(self._handle.fileno())
        self._handle.close()
        self._part.rename(self.file)
        return _sha256_of(self.file)

    def discard(self) -> None:
        self._handle.close()
        self._part.unlink(missing_ok=True)

    def _add(self, name: str, data: bytes) -> None:
        info = tarfile.TarInfo(name)
        info.size, info.mode = len(data), 0o600
        self._tar.addfile(info, io.BytesIO(data))


class Reader:
    def __init__(self, file: Path, sha256: str, passphrase: Secret | None) -> None:
        """Raises unless the archive is the one that was written: its hash is stored separately."""
        if not file.exists():
            raise NotFound(f"The archive {file} is missing", next_step="Restore the file, or use another backup")
        if _sha256_of(file) != sha256:
            raise Conflict(
                f"The archive {file} was changed",
                why="Its hash does not match",
                next_step="Restore the file from elsewhere, or use another backup",
            )
        self._file = file
        head = msgspec.json.decode(self._raw(_HEAD), type=_Head)
        if head.salt and passphrase is None:
            raise NotConfigured(
                f"The archive {file} is encrypted",
                why="No passphrase is configured",
                next_step="Set QUORATE_SECRETS_PASSPHRASE_FILE, or secrets_passphrase in [homelab]",
            )
        self._cipher = _Cipher(file.name.removesuffix(".tar"), passphrase if head.salt else None, head.salt)
        self.manifest = msgspec.json.decode(self.content(_LIST), type=Manifest)

    def content(self, member: str) -> bytes:
        unpacking = zlib.decompressobj()
        data = unpacking.decompress(self._cipher.decrypt(member, self._raw(member)), MOST_PIECE)
        if unpacking.unconsumed_tail:
            raise Conflict(f"{member} of {self._file} is longer than {MOST_PIECE} bytes")
        return data

    def _raw(self, member: str) -> bytes:
        with tarfile.open(self._file, "r") as tar:
            opened = tar.extractfile(member)
            assert opened is not None, "we wrote plain members only"
            return opened.read()


class _Cipher:
    def __init__(self, archive: str, passphrase: Secret | None, salt: bytes) -> None:
        self.salt = salt
        self._archive = archive
        self._key = derive_key(passphrase.reveal(), salt, COST, BLOCK, LANES) if passphrase else None

    def encrypt(self, member: str, data: bytes) -> bytes:
        if self._key is None:
            return data
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        nonce = os.urandom(12)
        return nonce + AESGCM(self._key).encrypt(nonce, data, self._bound_to(member))

    def decrypt(self, member: str, data: bytes) -> bytes:
        if self._key is None:
            return data
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        try:
            return AESGCM(self._key).decrypt(data[:12], data[12:], self._bound_to(member))
        except InvalidTag:
            raise AuthenticationFailed(
                "The passphrase does not open the archive",
                next_step="Configure the passphrase that was set when the backup was made",
            ) from None

    def _bound_to(self, member: str) -> bytes:
        return f"{FORMAT} {self._archive} {member}".encode()


def _sha256_of(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
