"""The cluster's own certificate authority and the certificate of its endpoints."""

from __future__ import annotations

import ipaddress
import ssl
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_LIFETIME = timedelta(days=3650)
_FILES = _CA, _SERVER, _KEY = ("ca.pem", "server.pem", "server.key")


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """The certificate of the endpoints, and what a client needs to trust it."""

    context: ssl.SSLContext
    ca_file: Path
    fingerprint: str


def create_identity(directory: Path, node_names: Iterable[str]) -> ServerIdentity:
    """A new authority and a server certificate for loopback and the nodes' names, as files in `directory`."""
    nodes = list(node_names)
    ca_key, server_key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    ca_name = _distinguished_name("Proxmox Virtual Environment", "PVE Cluster Manager CA (simulated)")
    authority = (
        _builder(ca_name, ca_name, ca_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(certificates=True), critical=True)
        .sign(ca_key, hashes.SHA256())
    )
    hosts = ["localhost", *(name for node in nodes for name in (node, f"{node}.lan"))]
    addresses = [ipaddress.ip_address(address) for address in ("127.0.0.1", "::1")]
    names = [*map(x509.IPAddress, addresses), *map(x509.DNSName, hosts)]
    certificate = (
        _builder(_distinguished_name("PVE Cluster Node", nodes[0]), ca_name, server_key)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    ca_file, server_file, key_file = (directory / name for name in _FILES)
    ca_file.write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    server_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key_file.touch(mode=0o600)
    pkcs8, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    key_file.write_bytes(server_key.private_bytes(serialization.Encoding.PEM, pkcs8, plain))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(server_file, key_file)
    return ServerIdentity(context, ca_file, certificate.fingerprint(hashes.SHA256()).hex(":").upper())


def lasting_identity(folder: Path) -> Callable[[Path, Iterable[str]], ServerIdentity]:
    """An identity that stays the same: that of the files in `folder`, which are created if it has none."""

    def load(directory: Path, node_names: Iterable[str]) -> ServerIdentity:
        folder.mkdir(parents=True, exist_ok=True)
        missing = [name for name in _FILES if not (folder / name).exists()]
        if missing == list(_FILES):
            create_identity(folder, node_names)
        elif missing:
            raise ValueError(f"the folder of the certificate lacks {', '.join(missing)}: {folder}")
        for name in _FILES:
            (directory / name).write_bytes((folder / name).read_bytes())
        certificate = x509.load_pem_x509_certificate((folder / _SERVER).read_bytes())
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(folder / _SERVER, folder / _KEY)
        return ServerIdentity(context, folder / _CA, certificate.fingerprint(hashes.SHA256()).hex(":").upper())

    return load


def shared_identity(directory: Path, node_names: Iterable[str]) -> ServerIdentity:
    """One identity for all clusters of this process with nodes of these names: creating one takes milliseconds."""
    identity, files = _identity(tuple(node_names))
    for name, content in files.items():
        (directory / name).write_bytes(content)
    return replace(identity, ca_file=directory / identity.ca_file.name)


@cache
def _identity(node_names: tuple[str, ...]) -> tuple[ServerIdentity, dict[str, bytes]]:
    with tempfile.TemporaryDirectory() as folder:
        identity = create_identity(Path(folder), node_names)
        return identity, {file.name: file.read_bytes() for file in Path(folder).iterdir()}


def _distinguished_name(organization: str, common_name: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization),
            x509.NameAttribute(NameOID.COMMON_NAME, common_name[:64]),  # all that X.509 allows
        ]
    )


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + _LIFETIME)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _key_usage(*, certificates: bool) -> x509.KeyUsage:
    """How the key may be used: for signing certificates, or for TLS."""
    return x509.KeyUsage(
        digital_signature=not certificates,
        key_cert_sign=certificates,
        crl_sign=certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
