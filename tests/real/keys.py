"""SSH keys of the laboratory."""

from __future__ import annotations

from pathlib import Path

from tests.real.network import run


def make_key(path: Path) -> Path:
    """A new key pair at the path, in the place of an old one; the private part's path."""
    for old in (path, path.with_name(f"{path.name}.pub")):
        old.unlink(missing_ok=True)
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", path.name, "-f", path)
    return path


def public(path: Path) -> str:
    """Type and key of a pair, as known_hosts and authorized_keys have them."""
    kind, key, *_ = path.with_name(f"{path.name}.pub").read_text().split()
    return f"{kind} {key}"


def known_hosts(host: str, port: int, key: Path) -> str:
    """The line of known_hosts for a server with this host key."""
    return f"{host if port == 22 else f'[{host}]:{port}'} {public(key)}\n"
