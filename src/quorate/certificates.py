"""A private certificate authority, and the server certificates that it signs."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

PrivateKey = ec.EllipticCurvePrivateKey


@dataclass(frozen=True, slots=True)
class Authority:
    certificate: x509.Certificate
    key: PrivateKey

    @classmethod
    def create(cls, subject: x509.Name, lifetime: timedelta, only: Sequence[x509.GeneralName] = ()) -> Authority:
        """Create an authority. Certificates for names outside of `only`, if given, are not trusted."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = (
            _builder(subject, subject, key, lifetime)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(certificates=True), critical=True)
        )
        if only:
            builder = builder.add_extension(x509.NameConstraints(list(only), None), critical=True)
        return cls(builder.sign(key, hashes.SHA256()), key)

    def issue(
        self, subject: x509.Name, names: Sequence[str], lifetime: timedelta
    ) -> tuple[x509.Certificate, PrivateKey]:
        """A certificate for a server with these names and addresses."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = (
            _builder(subject, self.certificate.subject, key, lifetime)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.SubjectAlternativeName([as_general_name(name) for name in names]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False)
            .sign(self.key, hashes.SHA256())
        )
        return certificate, key

    def covers(self, name: str) -> bool:
        """Whether a certificate for this name would be trusted."""
        try:
            permitted = self.certificate.extensions.get_extension_for_class(x509.NameConstraints).value
        except x509.ExtensionNotFound:
            return True
        return any(
            _within(as_general_name(name).value, subtree.value) for subtree in permitted.permitted_subtrees or ()
        )


def distinguished_name(organization: str, common_name: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization),
            x509.NameAttribute(NameOID.COMMON_NAME, common_name[:64]),  # all that X.509 allows
        ]
    )


def as_general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def names_of(pem: bytes) -> tuple[str, ...]:
    """The names and addresses in a server certificate, in its order. Raises ValueError if it is not one."""
    certificate = x509.load_pem_x509_certificate(pem)
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    return tuple(
        str(general_name.value).lower()
        for general_name in names
        if isinstance(general_name, (x509.DNSName, x509.IPAddress))
    )


def certificate_pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def key_pem(key: PrivateKey) -> str:
    pkcs8, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, pkcs8, plain).decode()


def load_authority(certificate: bytes, key: bytes) -> Authority:
    """Raises ValueError if they are not what an authority consists of."""
    private = serialization.load_pem_private_key(key, None)
    loaded = x509.load_pem_x509_certificate(certificate)
    if not isinstance(private, PrivateKey) or loaded.public_key() != private.public_key():
        raise ValueError("the key does not belong to the certificate")
    return Authority(loaded, private)


def _within(name: object, permitted: object) -> bool:
    if isinstance(permitted, ipaddress.IPv4Network | ipaddress.IPv6Network):
        return isinstance(name, ipaddress.IPv4Address | ipaddress.IPv6Address) and name in permitted
    return isinstance(name, str) and f".{name}".endswith(f".{permitted}")


def _builder(subject: x509.Name, issuer: x509.Name, key: PrivateKey, lifetime: timedelta) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + lifetime)
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
