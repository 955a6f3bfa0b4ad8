"""The certificate that a server shows, as people judge it: whose it is, until when, and its fingerprint."""

from __future__ import annotations

import hashlib
import ssl
from dataclasses import dataclass
from datetime import datetime

from quorate.pve.connection import Trust
from quorate.pve.trust import fingerprint_bytes, fingerprint_text, peer_certificate, ssl_setting, without_checks

HANDSHAKE_SECONDS = 8.0


@dataclass(frozen=True, slots=True)
class Certificate:
    subject: str
    issuer: str
    names: tuple[str, ...]
    """Host names and addresses that it was made for."""
    begins: datetime
    ends: datetime
    fingerprint: str
    """SHA-256, in capitals with colons."""


async def shown_by(endpoint: str) -> Certificate:
    """What the server at this URL shows to everybody; nothing is sent to it.

    OSError (of which ssl.SSLError is a kind) or TimeoutError where no certificate comes.
    """
    return _read(await peer_certificate(endpoint, without_checks(), HANDSHAKE_SECONDS))


async def objection(endpoint: str, trust: Trust, shown: Certificate) -> str | None:
    """Why the certificate is not to be trusted, None if it is: the same judgement that every call makes."""
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


def _read(der: bytes) -> Certificate:
    from cryptography import x509

    found = x509.load_der_x509_certificate(der)
    try:
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        names = x509.SubjectAlternativeName([])
    return Certificate(
        subject=found.subject.rfc4514_string(),
        issuer=found.issuer.rfc4514_string(),
        names=tuple(str(name.value) for name in names),
        begins=found.not_valid_before_utc,
        ends=found.not_valid_after_utc,
        fingerprint=fingerprint_text(hashlib.sha256(der).digest()),
    )
