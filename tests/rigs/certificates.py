"""A test CA and certificates for this machine, and the certificates that simulated clusters share."""

from __future__ import annotations

import datetime
import functools
import ipaddress
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from quorate.sim.http.certificates import ServerIdentity, create_identity

DAY = datetime.timedelta(days=1)


def shared_identity(directory: Path, node_names: Iterable[str]) -> ServerIdentity:
    """Shared by all simulated clusters with nodes of these names, because creating one takes milliseconds."""
    identity, files = _identity(tuple(node_names))
    for name, content in files.items():
        (directory / name).write_bytes(content)
    return replace(identity, ca_file=directory / identity.ca_file.name)


@functools.cache
def _identity(node_names: tuple[str, ...]) -> tuple[ServerIdentity, dict[str, bytes]]:
    with tempfile.TemporaryDirectory() as folder:
        identity = create_identity(Path(folder), node_names)
        return identity, {file.name: file.read_bytes() for file in Path(folder).iterdir()}


@dataclass
class Authority:
    folder: Path
    key: ec.EllipticCurvePrivateKey = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()))

    def __post_init__(self) -> None:
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Test CA")])
        self.file = self.folder / "ca.pem"
        ca = self._signed(self.name, self.key.public_key(), x509.BasicConstraints(ca=True, path_length=0))
        self.file.write_bytes(ca.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str = "server") -> tuple[Path, Path]:
        """Certificate and key for 127.0.0.1."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        alternative = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        certificate = self._signed(subject, key.public_key(), alternative)
        cert_file, key_file = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        cert_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        key_file.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return cert_file, key_file

    def _signed(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, extension: x509.ExtensionType
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - DAY)
            .not_valid_after(now + DAY)
            .add_extension(extension, critical=isinstance(extension, x509.BasicConstraints))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False)
            .sign(self.key, hashes.SHA256())
        )
