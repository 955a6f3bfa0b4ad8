"""Judging the server's certificate: by CA, by pinned fingerprint, or (only when told so) not at all."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import ssl
from urllib.parse import urlsplit

import aiohttp

from quorate.pve.connection import Trust
from quorate.pve.errors import UntrustedCertificate


def fingerprint_bytes(text: str) -> bytes:
    return bytes.fromhex(text.replace(":", ""))


def fingerprint_text(digest: bytes) -> str:
    return ":".join(f"{byte:02X}" for byte in digest)


def ssl_setting(trust: Trust) -> ssl.SSLContext | aiohttp.Fingerprint | bool:
    """What aiohttp wants as `ssl=`."""
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
            next_step="It has to be a certificate in PEM form, such as /etc/pve/pve-root-ca.pem of a node",
        ) from None
    # Python 3.13 turns on strict RFC 5280 checks, which the CA that PVE makes for itself does not pass.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


async def peer_certificate(endpoint: str, context: ssl.SSLContext, seconds: float) -> bytes:
    """The certificate that the server shows (DER), fetched without sending it anything."""
    parts = urlsplit(endpoint)
    async with asyncio.timeout(seconds):
        _, writer = await asyncio.open_connection(parts.hostname, parts.port or 8006, ssl=context)
        try:
            shown: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
            return shown
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


def without_checks() -> ssl.SSLContext:
    """Only for looking at what a server shows."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


async def seen_fingerprint(endpoint: str) -> str | None:
    """The SHA-256 fingerprint the server shows now."""
    try:
        certificate = await peer_certificate(endpoint, without_checks(), 5)
    except (OSError, TimeoutError):
        return None
    return fingerprint_text(hashlib.sha256(certificate).digest())


def mismatch(endpoint: str, trust: Trust, got: bytes) -> UntrustedCertificate:
    return UntrustedCertificate(
        f"The certificate of {endpoint} is not the pinned one",
        why=f"Pinned is {fingerprint_text(fingerprint_bytes(trust.fingerprint or ''))}, "
        f"the server shows {fingerprint_text(got)}",
        next_step="If it was renewed, compare with `pvenode cert info` on the node and set the new fingerprint; "
        "if not, someone may be in between",
        facts={"fingerprint": fingerprint_text(got)},
    )


async def unverified(endpoint: str, why: str) -> UntrustedCertificate:
    seen = await seen_fingerprint(endpoint)
    return UntrustedCertificate(
        f"The certificate of {endpoint} is not trusted",
        why=f"{why}; PVE signs its own certificates unless told otherwise",
        next_step=(
            f"It shows the SHA-256 fingerprint {seen}. Compare with `pvenode cert info` on the node; if equal, "
            f"trust it with PROXMOX_FINGERPRINT={seen} (fingerprint = in the config file), or give the cluster's CA, "
            "/etc/pve/pve-root-ca.pem, as PROXMOX_CA_FILE"
            if seen
            else "Give the cluster's CA, /etc/pve/pve-root-ca.pem, as PROXMOX_CA_FILE, or pin PROXMOX_FINGERPRINT"
        ),
        facts={"fingerprint": seen},
    )
