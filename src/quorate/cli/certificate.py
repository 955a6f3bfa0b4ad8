"""quorate certificate: a certificate for HTTPS in your own network, signed by your own CA."""

from __future__ import annotations

import argparse
import contextlib
import ipaddress
import os
import re
import shlex
import socket
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from cryptography import x509

from quorate.certificates import Authority, certificate_pem, distinguished_name, key_pem, load_authority, names_of
from quorate.cli.options import OK, add_command
from quorate.config import ConfigError
from quorate.config.files import usual_config_file, write_private

CA_LIFETIME = timedelta(days=3650)
LIFETIME = timedelta(days=397)
"""The most that all common clients accept."""
COMMON_NAME = "Quorate server"
"""Deliberately not a host name, which OpenSSL would check against the names that the CA may sign for."""
PRIVATE_NAMES = ("home.arpa", "internal", "lan", "local", "localhost")
PRIVATE_NETWORKS = (
    "10.0.0.0/8",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "127.0.0.0/8",
    "100.64.0.0/10",
    "fc00::/7",
    "::1/128",
)
_NAME = re.compile(r"[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*", re.ASCII)

TRUST = """\
Copy {ca} to each client and trust it there once:
  Debian, Ubuntu   sudo cp ca.pem /usr/local/share/ca-certificates/quorate.crt && sudo update-ca-certificates
  Fedora, RHEL     sudo cp ca.pem /etc/pki/ca-trust/source/anchors/quorate.pem && sudo update-ca-trust
  macOS            sudo security add-trusted-cert -d -r trustRoot -k /Library/Keychains/System.keychain ca.pem
  Windows          certutil -addstore Root ca.pem
  Node.js clients  NODE_EXTRA_CA_CERTS=/path/to/ca.pem in their environment (Claude Code, mcp-remote)"""


def add(commands: Any) -> None:
    certificate = add_command(
        commands,
        "certificate",
        _certificate,
    )
    certificate.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="names and addresses that clients use (default: those of the existing certificate, or this machine's)",
    )
    certificate.add_argument(
        "--folder", metavar="DIR", type=Path, help="where to write (default: `tls` next to the configuration)"
    )
    certificate.add_argument("--new-ca", action="store_true", help="replace the CA; clients must trust the new one")
    certificate.epilog = (
        "Run it again to renew the certificate or to change its names: the CA stays, and a running server uses the new "
        "certificate at once. The CA can sign only for private names and addresses, and for the names it was created "
        "with; keep ca.key secret anyway."
    )


def _certificate(options: argparse.Namespace) -> int:
    folder = (options.folder or usual_config_file(os.environ).parent / "tls").expanduser().absolute()
    names = [_parse_host(name) for name in options.names] or _present_names(folder) or _own_names()
    authority = _authority(folder, names, renew=options.new_ca)
    if strange := [name for name in names if not authority.covers(name)]:
        them = "it" if len(strange) == 1 else "them"
        raise ConfigError(
            f"The CA in {folder} does not cover {', '.join(strange)}: leave {them} out, or replace the CA: --new-ca."
        )
    certificate, key = authority.issue(distinguished_name("Quorate", COMMON_NAME), names, LIFETIME)
    ca, cert, key_file = (folder / name for name in ("ca.pem", "cert.pem", "key.pem"))
    _write(key_file, key_pem(key))
    _write(cert, certificate_pem(certificate))
    print(f"Written: {cert} and {key_file}")
    print(f"for {', '.join(names)}, until {certificate.not_valid_after_utc:%Y-%m-%d}.\n")
    serve = ["quorate", "serve", "--http", "0.0.0.0:8443", "--tls-cert", str(cert), "--tls-key", str(key_file)]
    print(f"Serve with it:\n  quorate tokens create NAME\n  {shlex.join(serve)}\n")
    print(TRUST.format(ca=ca))
    return OK


def _authority(folder: Path, names: Sequence[str], *, renew: bool) -> Authority:
    ca, key = folder / "ca.pem", folder / "ca.key"
    if ca.exists() and not renew:
        try:
            return load_authority(ca.read_bytes(), key.read_bytes())
        except (OSError, ValueError) as error:
            raise ConfigError(f"The CA in {folder} cannot be used ({error}): create a new one with --new-ca.") from None

    only: list[x509.GeneralName] = [x509.DNSName(name) for name in PRIVATE_NAMES]
    only += [x509.IPAddress(ipaddress.ip_network(network)) for network in PRIVATE_NETWORKS]
    only += [_exactly(name) for name in names]
    made = Authority.create(distinguished_name("Quorate", f"Quorate CA of {socket.gethostname()}"), CA_LIFETIME, only)
    _write(key, key_pem(made.key))
    _write(ca, certificate_pem(made.certificate))
    return made


def _exactly(name: str) -> Any:
    """A constraint to this name (and those below it), or to this address."""
    try:
        return x509.IPAddress(ipaddress.ip_network(name))
    except ValueError:
        return x509.DNSName(name)


def _parse_host(name: str) -> str:
    with contextlib.suppress(ValueError):
        return str(ipaddress.ip_address(name))
    if not _NAME.fullmatch(name.lower()) or len(name) > 253:
        raise ConfigError(f"{name!r} is neither a host name nor an IP address.")
    return name.lower()


def _present_names(folder: Path) -> list[str]:
    """The names in the certificate that is renewed."""
    try:
        return list(names_of((folder / "cert.pem").read_bytes()))
    except (OSError, ValueError):
        return []


def _own_names() -> list[str]:
    """This machine's name, the same for mDNS, and the address by which it reaches its network."""
    name = socket.gethostname().lower()
    names = [name, *([f"{name}.local"] if "." not in name else [])] if _NAME.fullmatch(name) else []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        probe.connect(("192.0.2.1", 9))  # nothing is sent
        names.append(probe.getsockname()[0])
    if not names:
        raise ConfigError("The name of this machine is unknown: pass the names that clients use.")
    return names


def _write(file: Path, text: str) -> None:
    try:
        write_private(file, text)
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error.strerror}.") from None
