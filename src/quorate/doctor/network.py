"""One endpoint of a cluster: its name, port and certificate."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
import ssl
from datetime import UTC, datetime, timedelta
from urllib.parse import urlsplit

from quorate.doctor import Findings
from quorate.problems import Problem
from quorate.pve.connection import Trust
from quorate.pve.trust import Certificate, fetch_certificate, objection

CONNECT_SECONDS = 5.0
RENEW_BEFORE = timedelta(days=21)
CHECK_PORT = "Check the port (PVE uses 8006) and that PVE answers there, not a web proxy"


async def check_endpoint(endpoint: str, trust: Trust, found: Findings) -> bool:
    """Whether a request may be sent there."""
    if not await check_reachable(endpoint, found):
        found.skip("certificate", "no connection")
        return False
    return await _certificate(endpoint, trust, found)


async def check_reachable(endpoint: str, found: Findings) -> bool:
    parts = urlsplit(endpoint)
    host, port = parts.hostname or "", parts.port or 8006
    if await _name(host, port, found):
        return await _connection(host, port, found)
    found.skip("connection", "no address to connect to")
    return False


async def _name(host: str, port: int, found: Findings) -> bool:
    if _is_address(host):
        return True
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            rows = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except TimeoutError:
        found.fail("name", f"The name server did not answer for {host}", "Check this machine's name server")
        return False
    except (OSError, UnicodeError):
        found.fail(
            "name",
            f"The name {host} cannot be resolved on this machine",
            "Correct the name, or use the node's IP address",
        )
        return False
    found.ok("name", f"{host} is {', '.join(dict.fromkeys(str(row[4][0]) for row in rows))}")
    return True


async def _connection(host: str, port: int, found: Findings) -> bool:
    do = "Check that the node is on and that no firewall blocks the port"
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            _, writer = await asyncio.open_connection(host, port)
    except TimeoutError:
        found.fail("connection", f"{host} does not answer on port {port} within {CONNECT_SECONDS:g} s", do)
        return False
    except ConnectionRefusedError:
        found.fail(
            "connection", f"{host} refuses connections on port {port}", f"{CHECK_PORT}; `pveproxy` must be running"
        )
        return False
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else str(error)  # asyncio puts the address into `strerror`
        found.fail("connection", f"No connection to {host} on port {port}: {why}", do)
        return False
    writer.close()
    found.ok("connection", f"{host} answers on port {port}")
    return True


async def _certificate(endpoint: str, trust: Trust, found: Findings) -> bool:
    try:
        shown = await fetch_certificate(endpoint)
        why_not = await objection(endpoint, trust, shown)
    except Problem as problem:  # the CA file
        found.fail("certificate", f"{problem.what} {problem.why or ''}".strip(), problem.next_step or "")
        return False
    except (ssl.SSLError, TimeoutError, OSError) as error:
        found.fail("certificate", f"{endpoint} does not speak TLS: {_reason(error)}", CHECK_PORT)
        return False
    if why_not is None:
        _check_validity(trust, shown, found)
        return True
    found.fail("certificate", f"It is not trusted: {why_not}. {describe(shown)}", _advice(trust, why_not, shown))
    return False


def _check_validity(trust: Trust, shown: Certificate, found: Findings) -> None:
    left = shown.ends - datetime.now(UTC)
    renew = "Renew it on the node: `pvecm updatecerts --force`, then restart pveproxy"
    if trust.fingerprint:
        renew += ", and set its new fingerprint"
    if left < timedelta():
        found.warn("certificate", f"It is trusted, but expired on {_day(shown)}", renew)
    elif left < RENEW_BEFORE:
        found.warn("certificate", f"It is trusted, but expires in {left.days} days, on {_day(shown)}", renew)
    elif not trust.fingerprint and not trust.verify:
        found.warn(
            "certificate",
            f"It is not checked. {describe(shown)}",
            "Trust it by its fingerprint (fingerprint or PROXMOX_FINGERPRINT) and remove verify = false",
        )
    else:
        how = "its fingerprint" if trust.fingerprint else trust.ca_file or "the CAs of this system"
        found.ok("certificate", f"It is trusted by {how}, until {_day(shown)}")


def _advice(trust: Trust, why_not: str, shown: Certificate) -> str:
    if "expired" in why_not:
        return "Renew it on the node: `pvecm updatecerts --force`, then restart pveproxy"
    if "mismatch" in why_not or "not valid for" in why_not:
        return f"Use a name that it covers in the settings: {', '.join(shown.names[:8]) or 'none'}"
    compared = "Compare the fingerprint with `pvenode cert info` on the node"
    if trust.fingerprint:
        return f"{compared}: if it was renewed, set the new one; otherwise someone may be intercepting the connection"
    return f"{compared}; if they match, set fingerprint (PROXMOX_FINGERPRINT) to it"


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
