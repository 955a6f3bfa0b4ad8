"""Verification of the server's certificate: by CA, by pinned fingerprint, or not at all if the operator says so."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import ssl
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import urlsplit

import aiohttp

from quorate.problems import UntrustedCertificate
from quorate.pve.connection import PVE, Connection, Product, Trust

HANDSHAKE_SECONDS = 8.0


def fingerprint_bytes(text: str) -> bytes:
    return bytes.fromhex(text.replace(":", ""))


def fingerprint_text(digest: bytes) -> str:
    return ":".join(f"{byte:02X}" for byte in digest)


def ssl_setting(trust: Trust) -> ssl.SSLContext | aiohttp.Fingerprint | bool:
    """The value for aiohttp's `ssl=`."""
    if trust.fingerprint:
        return aiohttp.Fingerprint(fingerprint_bytes(trust.fingerprint))
    if not trust.verify:
        return False
    try:
        context = ssl.create_default_context(cafile=trust.ca_file)
    except (OSError, ssl.SSLError) as error:
        raise UntrustedCertificate(
            f"The CA file {trust.ca_file} cannot be used",
            why=error.strerror or str(error),
            next_step="It must be a certificate in PEM format, such as /etc/pve/pve-root-ca.pem of a node",
        ) from None
    # Python 3.13 enables strict RFC 5280 checks, which PVE's self-made CA does not pass.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


async def peer_certificate(endpoint: str, context: ssl.SSLContext, seconds: float) -> bytes:
    """The certificate that the server presents (DER), fetched without sending a request."""
    parts = urlsplit(endpoint)
    async with asyncio.timeout(seconds):
        _, writer = await asyncio.open_connection(parts.hostname, parts.port or 8006, ssl=context)
        try:
            shown: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
            return shown
        finally:
            writer.transport.abort()  # a server that never says goodbye would keep it open
            with contextlib.suppress(OSError):
                await writer.wait_closed()


def without_checks() -> ssl.SSLContext:
    """A TLS context that verifies nothing, only to look at the certificate that a server presents."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


async def presented_fingerprint(endpoint: str) -> str | None:
    """The SHA-256 fingerprint that the server presents now."""
    try:
        certificate = await peer_certificate(endpoint, without_checks(), 5)
    except (OSError, TimeoutError):
        return None
    return fingerprint_text(hashlib.sha256(certificate).digest())


def mismatch(endpoint: str, connection: Connection, digest: bytes) -> UntrustedCertificate:
    return UntrustedCertificate(
        f"The certificate of {endpoint} is not the pinned one",
        why=f"Pinned is {fingerprint_text(fingerprint_bytes(connection.trust.fingerprint or ''))}, "
        f"the server shows {fingerprint_text(digest)}",
        next_step=f"If it was renewed, compare with `{connection.product.show_certificate}` on the node and set the "
        "new fingerprint; if not, someone may be in between",
        facts={"fingerprint": fingerprint_text(digest)},
    )


async def untrusted_certificate(endpoint: str, product: Product, why: str) -> UntrustedCertificate:
    seen = await presented_fingerprint(endpoint)
    if product is not PVE:
        return UntrustedCertificate(
            f"The certificate of {endpoint} is not trusted",
            why=f"{why}; {product.name} signs its own certificate unless configured otherwise",
            next_step=f"It shows the SHA-256 fingerprint {seen}. Compare with `{product.show_certificate}` on the "
            "server; if equal, set it as fingerprint in the config file",
            facts={"fingerprint": seen},
        )
    return UntrustedCertificate(
        f"The certificate of {endpoint} is not trusted",
        why=f"{why}; PVE signs its own certificates unless configured otherwise",
        next_step=(
            f"It shows the SHA-256 fingerprint {seen}. Compare with `pvenode cert info` on the node; if equal, "
            f"trust it with PROXMOX_FINGERPRINT={seen} (fingerprint = in the config file), or give the cluster's CA, "
            "/etc/pve/pve-root-ca.pem, as PROXMOX_CA_FILE"
            if seen
            else "Give the cluster's CA, /etc/pve/pve-root-ca.pem, as PROXMOX_CA_FILE, or pin PROXMOX_FINGERPRINT"
        ),
        facts={"fingerprint": seen},
    )


# -- the certificate itself --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Certificate:
    subject: str
    issuer: str
    names: tuple[str, ...]
    """The host names and addresses that it is valid for."""
    begins: datetime
    ends: datetime
    fingerprint: str
    """SHA-256 in uppercase with colons."""


async def fetch_certificate(endpoint: str) -> Certificate:
    """Fetch the certificate that the server at this URL presents, without sending a request.

    Raises OSError (which includes ssl.SSLError) or TimeoutError if there is no certificate.
    """
    return _parse(await peer_certificate(endpoint, without_checks(), HANDSHAKE_SECONDS))


async def objection(endpoint: str, trust: Trust, shown: Certificate) -> str | None:
    """Why the certificate is not trusted, or None: the same check that every call makes."""
    if trust.fingerprint:
        pinned = fingerprint_text(fingerprint_bytes(trust.fingerprint))
        return None if pinned == shown.fingerprint else f"it is not the pinned one, {pinned}"
    setting = ssl_setting(trust)
    if not isinstance(setting, ssl.SSLContext):
        return None
    try:
        await peer_certificate(endpoint, setting, HANDSHAKE_SECONDS)
    except ssl.SSLCertVerificationError as error:
        return error.verify_message
    return None


def _parse(der: bytes) -> Certificate:
    from cryptography import x509  # takes 50 ms, which only showing a certificate needs

    certificate = x509.load_der_x509_certificate(der)
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        names = x509.SubjectAlternativeName([])
    return Certificate(
        subject=certificate.subject.rfc4514_string(),
        issuer=certificate.issuer.rfc4514_string(),
        names=tuple(str(name.value) for name in names),
        begins=certificate.not_valid_before_utc,
        ends=certificate.not_valid_after_utc,
        fingerprint=fingerprint_text(hashlib.sha256(der).digest()),
    )
