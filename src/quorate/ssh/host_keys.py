"""Which host keys are trusted: those in the operator's known_hosts files and those pinned with `quorate trust`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quorate.problems import HostKeyRefused
from quorate.ssh.target import SSH_PORT, SshTarget

if TYPE_CHECKING:
    import asyncssh

PREFERRED = (
    "ssh-ed25519",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "rsa-sha2-512",
    "rsa-sha2-256",
    "ssh-ed448",
    "ssh-rsa",
)
"""The algorithms for an unknown host, in OpenSSH's order, so that both show the same key."""


@dataclass(frozen=True, slots=True)
class HostKeys:
    files: tuple[Path, ...]
    """The operator's; a missing one counts as empty."""
    pins: Path
    """Quorate's own file, which only `quorate trust` writes."""

    def load(self) -> asyncssh.SSHKnownHosts:
        """Read for every connection, so that a key counts as soon as it is trusted. Broken lines are skipped."""
        import asyncssh

        known = asyncssh.SSHKnownHosts()
        for line in [line for file in (*self.files, self.pins) for line in _lines(file)]:
            try:
                known.load(line)
            except ValueError:
                continue
        return known

    def match(self, host: str, addr: str, port: int | None) -> Sequence[Sequence[asyncssh.SSHKey]]:
        """Keys of hosts, of authorities, and revoked ones, for asyncssh. A name is not trusted because its address is
        known: the name server chooses the address."""
        known = self.load()
        hosts, authorities, *_ = known.match(host, "", port)
        return hosts, authorities, known.match(host, addr, port)[2]

    def refusal(self, target: SshTarget, key: asyncssh.SSHKey | None, why: str) -> HostKeyRefused:
        """The problem with a key that does not match; None if the host offers no key of a known type."""
        shown = f"It shows {key_type(key)} {key.get_fingerprint()}" if key else "It offers no key of a known type"
        where = ", ".join(str(file) for file in (*self.files, self.pins))
        if "revoked" in why:
            return HostKeyRefused(
                f"The host key of {target.address} is revoked",
                why=f"{shown}, which is marked @revoked in one of {where}",
                next_step="Nothing was sent. Do not use this host until its owner has given it a new key",
            )
        if key is None or self._matching(target)[0]:
            return HostKeyRefused(
                f"WARNING: THE HOST KEY OF {target.address} HAS CHANGED",
                why=f"{shown}, which is not its known key ({where}). "
                "Either it was reinstalled, or someone in between impersonates it",
                next_step=f"Nothing was sent. If it was reinstalled ({_key_hint(key)}), remove the old key with "
                f"`ssh-keygen -R '{entry_name(target.host, target.port)}'` or "
                f"`quorate trust --remove {target.address}`, "
                f"then trust the new one with `quorate trust {target.address}`",
            )
        return HostKeyRefused(
            f"The host key of {target.address} is not known",
            why=f"{shown}, and no key for it is in {where}",
            next_step=f"Only the operator can change that, at a terminal: `quorate trust {target.address}` "
            f"({_key_hint(key)})",
        )

    def knows(self, target: SshTarget) -> bool:
        """True if a key of the host, or of an authority for it, is trusted."""
        hosts, authorities, *_ = self._matching(target)
        return bool(hosts or authorities)

    def key_algorithms(self, target: SshTarget) -> tuple[str, ...]:
        """The key types to request from the host; empty for those already known."""
        return () if self.knows(target) else PREFERRED

    def _matching(self, target: SshTarget) -> Sequence[Sequence[Any]]:
        return self.load().match(target.host, "", None if target.port == SSH_PORT else target.port)


@dataclass(frozen=True, slots=True)
class Pin:
    name: str
    kind: str
    fingerprint: str


def entry_name(host: str, port: int) -> str:
    """A host as known_hosts writes it."""
    return host if port == SSH_PORT else f"[{host}]:{port}"


def key_type(key: asyncssh.SSHKey) -> str:
    return key.get_algorithm()


def fingerprint_command(key: asyncssh.SSHKey | None) -> str:
    """The command that shows the fingerprint of this key on the host itself."""
    kind = next((short for short in ("rsa", "ecdsa") if key and short in key_type(key)), "ed25519")
    return f"ssh-keygen -lf /etc/ssh/ssh_host_{kind}_key.pub"


def _key_hint(key: asyncssh.SSHKey | None) -> str:
    return f"`{fingerprint_command(key)}` on the host shows its real key"


def load_pins(pins: Path) -> list[Pin]:
    import asyncssh

    loaded = []
    for line in _lines(pins):
        name, _, data = line.partition(" ")
        key = asyncssh.import_public_key(data)
        loaded.append(Pin(name, key_type(key), key.get_fingerprint()))
    return loaded


def pin(pins: Path, host: str, port: int, key: asyncssh.SSHKey) -> None:
    """Trust this key, and no other pinned one, of this host."""
    public = " ".join(key.export_public_key().decode().split()[:2])
    _write(pins, [*_others(pins, host, port), f"{entry_name(host, port)} {public}"])


def unpin(pins: Path, host: str, port: int) -> bool:
    """Remove the pinned key of a host; returns False if there was none."""
    others = _others(pins, host, port)
    if len(others) == len(_lines(pins)):
        return False
    _write(pins, others)
    return True


def _others(pins: Path, host: str, port: int) -> list[str]:
    return [line for line in _lines(pins) if line.partition(" ")[0] != entry_name(host, port)]


def _lines(file: Path) -> list[str]:
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]


def _write(pins: Path, lines: Sequence[str]) -> None:
    """Atomically and readable by our user only."""
    pins.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = pins.with_name(f"{pins.name}.{os.getpid()}")
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write("".join(f"{line}\n" for line in lines))
    new.replace(pins)
