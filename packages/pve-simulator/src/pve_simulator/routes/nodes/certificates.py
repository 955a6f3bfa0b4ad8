"""The certificates of a node."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from pve_simulator.http.refusals import Refusal, bad_parameters, failure
from pve_simulator.http.routing import Call, route
from pve_simulator.routes.nodes.settings import Settings
from pve_simulator.world import World


class Certificates:
    """The certificates of this cluster's endpoints; empty until the cluster runs."""

    def __init__(self, _world: World) -> None:
        self._authority = ""
        self._server = ""

    def load(self, directory: Path) -> None:
        """Load the certificates of this run."""
        self._authority = (directory / "ca.pem").read_text()
        self._server = (directory / "server.pem").read_text()

    def authority_pem(self) -> str:
        return self._authority

    def rows(self, custom: str | None) -> list[dict[str, Any]]:
        files = [("pve-root-ca.pem", self._authority), ("pve-ssl.pem", self._server)]
        if custom is not None:
            files.append(("pveproxy-ssl.pem", custom))
        return [describe(name, pem) for name, pem in files if pem]


def describe(filename: str, pem: str) -> dict[str, Any]:
    """One certificate as the API describes it."""
    certificate = read_certificate(pem)
    key = certificate.public_key()
    row: dict[str, Any] = {
        "filename": filename,
        "fingerprint": certificate.fingerprint(hashes.SHA256()).hex(":").upper(),
        "issuer": _name(certificate.issuer),
        "subject": _name(certificate.subject),
        "notbefore": int(certificate.not_valid_before_utc.timestamp()),
        "notafter": int(certificate.not_valid_after_utc.timestamp()),
        "pem": certificate.public_bytes(serialization.Encoding.PEM).decode(),
        "san": _alternative_names(certificate),
    }
    if isinstance(key, rsa.RSAPublicKey):
        row |= {"public-key-type": "rsaEncryption", "public-key-bits": key.key_size}
    elif isinstance(key, ec.EllipticCurvePublicKey):
        row |= {"public-key-type": "id-ecPublicKey", "public-key-bits": key.key_size}
    return row


def read_certificate(pem: str) -> x509.Certificate:
    """The first certificate of a chain."""
    try:
        return x509.load_pem_x509_certificate(pem.encode())
    except ValueError as error:
        raise bad_parameters({"certificates": "invalid format - value is not a valid PEM-formatted chain\n"}) from error


def check_key(certificate: x509.Certificate, key: str) -> None:
    """Refuse an invalid key, and one that does not match the certificate."""
    try:
        private = serialization.load_pem_private_key(key.encode(), password=None)
    except (ValueError, TypeError) as error:
        raise bad_parameters({"key": "invalid format - value is not a valid PEM-formatted string\n"}) from error
    encoding, form = serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    if private.public_key().public_bytes(encoding, form) != certificate.public_key().public_bytes(encoding, form):
        raise bad_parameters({"key": "Certificate and key do not match"})


def _name(name: x509.Name) -> str:
    short = {"commonName": "CN", "organizationName": "O", "organizationalUnitName": "OU", "countryName": "C"}
    return "".join(f"/{short.get(part.oid._name, part.oid._name)}={part.value!s}" for part in name)  # noqa: SLF001


def _alternative_names(certificate: x509.Certificate) -> list[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    values = []
    for name in names:
        value = name.value
        values.append(value.exploded if isinstance(value, ipaddress.IPv6Address) else str(value))
    return values


_BASE = "/nodes/{node}/certificates"


@route(f"GET {_BASE}/info")
def info(call: Call) -> list[dict[str, Any]]:
    return call.world.part(Certificates).rows(call.world.part(Settings).of(call.node).custom_certificate)


@route(f"POST {_BASE}/custom")
def upload(call: Call) -> dict[str, Any]:
    settings = call.world.part(Settings).of(call.node)
    certificate = read_certificate(call.params["certificates"])
    if "key" in call.params:
        check_key(certificate, call.params["key"])
    elif settings.custom_certificate is None:
        raise failure("Attempted to upload custom certificate without (existing) key.")
    if settings.custom_certificate is not None and not call.params.get("force"):
        raise failure("Custom certificate file exists but force flag is not set.")
    settings.custom_certificate = call.params["certificates"]
    return describe("pveproxy-ssl.pem", call.params["certificates"])


@route(f"DELETE {_BASE}/custom")
def remove(call: Call) -> None:
    call.world.part(Settings).of(call.node).custom_certificate = None


@route(f"POST {_BASE}/acme/certificate", f"PUT {_BASE}/acme/certificate", f"DELETE {_BASE}/acme/certificate")
def acme(call: Call) -> None:
    """No certificate can be ordered: no ACME authority can reach the simulator."""
    options = call.world.part(Settings).of(call.node).options
    if not any(key.startswith("acme") for key in options):
        raise Refusal(400, "ACME domain list in node configuration is missing!\n")
    raise failure("ACME account config file 'default' does not exist.")
