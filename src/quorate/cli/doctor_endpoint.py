"""The checks of an endpoint for `quorate doctor`: its name, the connection and the certificate."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
import ssl
from datetime import UTC, datetime, timedelta
from urllib.parse import urlsplit

from quorate.cli.doctor_findings import Findings
from quorate.problems import Problem
from quorate.pve.connection import PVE, Product, Trust
from quorate.pve.trust import Certificate, fetch_certificate, objection

CONNECT_SECONDS = 5.0
RENEW_BEFORE = timedelta(days=21)


async def check_endpoint(endpoint: str, trust: Trust, findings: Findings, product: Product = PVE) -> bool:
    """Whether a request may be sent there."""
    if not await check_reachable(endpoint, findings, product):
        findings.skip("certificate", "no connection")
        return False
    return await _certificate(endpoint, trust, findings, product)


async def check_reachable(endpoint: str, findings: Findings, product: Product = PVE) -> bool:
    parts = urlsplit(endpoint)
    host, port = parts.hostname or "", parts.port or product.port
    if await _name(host, port, findings):
        return await _connection(host, port, findings, product)
    findings.skip("connection", "no address to connect to")
    return False


async def _name(host: str, port: int, findings: Findings) -> bool:
    if _is_address(host):
        return True
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            rows = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except TimeoutError:
        findings.fail("name", f"The name server did not answer for {host}", "Check this machine's name server")
        return False
    except (OSError, UnicodeError):
        findings.fail(
            "name",
            f"The name {host} cannot be resolved on this machine",
            "Correct the name, or use the node's IP address",
        )
        return False
    findings.ok("name", f"{host} is {', '.join(dict.fromkeys(str(row[4][0]) for row in rows))}")
    return True


def _check_port(product: Product) -> str:
    return f"Check the port ({product.name} uses {product.port}) and that {product.name} answers there, not a web proxy"


async def _connection(host: str, port: int, findings: Findings, product: Product) -> bool:
    do = "Check that the node is on and that no firewall blocks the port"
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            _, writer = await asyncio.open_connection(host, port)
    except TimeoutError:
        findings.fail("connection", f"{host} does not answer on port {port} within {CONNECT_SECONDS:g} s", do)
        return False
    except ConnectionRefusedError:
        findings.fail(
            "connection",
            f"{host} refuses connections on port {port}",
            f"{_check_port(product)}; `{product.service}` must be running",
        )
        return False
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else str(error)  # asyncio puts the address into `strerror`
        findings.fail("connection", f"No connection to {host} on port {port}: {why}", do)
        return False
    writer.close()
    findings.ok("connection", f"{host} answers on port {port}")
    return True


async def _certificate(endpoint: str, trust: Trust, findings: Findings, product: Product) -> bool:
    try:
        shown = await fetch_certificate(endpoint)
        why_not = await objection(endpoint, trust, shown)
    except Problem as problem:  # the CA file
        findings.fail("certificate", f"{problem.what} {problem.why or ''}".strip(), problem.next_step or "")
        return False
    except (ssl.SSLError, TimeoutError, OSError) as error:
        findings.fail("certificate", f"{endpoint} does not speak TLS: {_reason(error)}", _check_port(product))
        return False
    if why_not is None:
        _check_validity(trust, shown, findings, product)
        return True
    advice = _advice(trust, why_not, shown, product)
    findings.fail("certificate", f"It is not trusted: {why_not}. {describe(shown)}", advice)
    return False


def _check_validity(trust: Trust, shown: Certificate, findings: Findings, product: Product) -> None:
    left = shown.ends - datetime.now(UTC)
    renew = f"Renew it on the node: `{product.renew_certificate}`, then restart {product.service}"
    if trust.fingerprint:
        renew += ", and set its new fingerprint"
    if left < timedelta():
        findings.warn("certificate", f"It is trusted, but expired on {_day(shown)}", renew)
    elif left < RENEW_BEFORE:
        findings.warn("certificate", f"It is trusted, but expires in {left.days} days, on {_day(shown)}", renew)
    elif not trust.fingerprint and not trust.verify:
        findings.warn(
            "certificate",
            f"It is not checked. {describe(shown)}",
            f"Trust it by its fingerprint ({_setting(product)}) and remove verify = false",
        )
    else:
        how = "its fingerprint" if trust.fingerprint else trust.ca_file or "the CAs of this system"
        findings.ok("certificate", f"It is trusted by {how}, until {_day(shown)}")


def _setting(product: Product) -> str:
    return "fingerprint or PROXMOX_FINGERPRINT" if product is PVE else "fingerprint"


def _advice(trust: Trust, why_not: str, shown: Certificate, product: Product) -> str:
    if "expired" in why_not:
        return f"Renew it on the node: `{product.renew_certificate}`, then restart {product.service}"
    if "mismatch" in why_not or "not valid for" in why_not:
        return f"Use a name that it covers in the settings: {', '.join(shown.names[:8]) or 'none'}"
    compared = f"Compare the fingerprint with `{product.show_certificate}` on the node"
    if trust.fingerprint:
        return f"{compared}: if it was renewed, set the new one; otherwise someone may be intercepting the connection"
    also = " (PROXMOX_FINGERPRINT)" if product is PVE else ""
    return f"{compared}; if they match, set fingerprint{also} to it"


def describe(shown: Certificate) -> str:
    return f"It is {shown.subject} of {shown.issuer}, until {_day(shown)}, SHA-256 {shown.fingerprint}"


def _day(shown: Certificate) -> str:
    return f"{shown.ends:%Y-%m-%d}"


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return str(getattr(error, "reason", None) or getattr(error, "strerror", None) or error)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
