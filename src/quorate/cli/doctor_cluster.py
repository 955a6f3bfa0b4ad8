"""The checks of one cluster for `quorate doctor`: endpoints, certificate, login, version, clock, privileges."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

from quorate.cli.doctor_findings import Finding, Findings, State
from quorate.config import Access, ClusterSettings
from quorate.inside.pct import SshNotSetUp, try_pct
from quorate.operations.privileges import describe_withheld
from quorate.problems import Problem
from quorate.pve.cluster import Cluster
from quorate.pve.connection import Clock, Limits, Token, Trust
from quorate.pve.trust import Certificate, fetch_certificate, objection
from quorate.ssh.settings import Login, SshAccess
from quorate.tools.permissions import permission_audit

CONNECT_SECONDS = 5.0
RENEW_BEFORE = timedelta(days=21)
CHECK_PORT = "Check the port (PVE uses 8006) and that PVE answers there, not a web proxy"


async def check_endpoint(endpoint: str, trust: Trust, findings: Findings) -> bool:
    """Whether a request may be sent there."""
    if not await check_reachable(endpoint, findings):
        findings.skip("certificate", "no connection")
        return False
    return await _certificate(endpoint, trust, findings)


async def check_reachable(endpoint: str, findings: Findings) -> bool:
    parts = urlsplit(endpoint)
    host, port = parts.hostname or "", parts.port or 8006
    if await _name(host, port, findings):
        return await _connection(host, port, findings)
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


async def _connection(host: str, port: int, findings: Findings) -> bool:
    do = "Check that the node is on and that no firewall blocks the port"
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            _, writer = await asyncio.open_connection(host, port)
    except TimeoutError:
        findings.fail("connection", f"{host} does not answer on port {port} within {CONNECT_SECONDS:g} s", do)
        return False
    except ConnectionRefusedError:
        findings.fail(
            "connection", f"{host} refuses connections on port {port}", f"{CHECK_PORT}; `pveproxy` must be running"
        )
        return False
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else str(error)  # asyncio puts the address into `strerror`
        findings.fail("connection", f"No connection to {host} on port {port}: {why}", do)
        return False
    writer.close()
    findings.ok("connection", f"{host} answers on port {port}")
    return True


async def _certificate(endpoint: str, trust: Trust, findings: Findings) -> bool:
    try:
        shown = await fetch_certificate(endpoint)
        why_not = await objection(endpoint, trust, shown)
    except Problem as problem:  # the CA file
        findings.fail("certificate", f"{problem.what} {problem.why or ''}".strip(), problem.next_step or "")
        return False
    except (ssl.SSLError, TimeoutError, OSError) as error:
        findings.fail("certificate", f"{endpoint} does not speak TLS: {_reason(error)}", CHECK_PORT)
        return False
    if why_not is None:
        _check_validity(trust, shown, findings)
        return True
    findings.fail("certificate", f"It is not trusted: {why_not}. {describe(shown)}", _advice(trust, why_not, shown))
    return False


def _check_validity(trust: Trust, shown: Certificate, findings: Findings) -> None:
    left = shown.ends - datetime.now(UTC)
    renew = "Renew it on the node: `pvecm updatecerts --force`, then restart pveproxy"
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
            "Trust it by its fingerprint (fingerprint or PROXMOX_FINGERPRINT) and remove verify = false",
        )
    else:
        how = "its fingerprint" if trust.fingerprint else trust.ca_file or "the CAs of this system"
        findings.ok("certificate", f"It is trusted by {how}, until {_day(shown)}")


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


CLUSTER_SECONDS = 60.0
SKEW_SECONDS = 10.0
KNOWN_MAJORS = (8, 9)
AFTER_LOGIN = "version, clock, privileges, SSH"


async def check_cluster(
    settings: ClusterSettings, level: str, toolsets: Sequence[str], clock: Clock, *, simulated: bool = False
) -> Findings:
    """All checks of one cluster, in bounded time; a failed check skips those that depend on it.

    The node addresses that a `simulated` cluster reports belong to nobody, or to someone else.
    """
    findings = Findings(f"cluster {settings.name}")
    limits = Limits(request_seconds=10, total_seconds=20, connections=settings.connection.limits.connections)
    cluster = Cluster(
        settings.name, replace(settings.connection, limits=limits), clock=clock, ssh=SshAccess(settings.ssh)
    )
    try:
        async with asyncio.timeout(CLUSTER_SECONDS):
            if await _check(cluster, settings, level, toolsets, findings):
                runs_commands = "inside" in toolsets and level != Access.READ.value
                await _check_ssh(cluster, runs_commands and not simulated, findings)
    except TimeoutError:
        findings.fail("time", f"The checks took longer than {CLUSTER_SECONDS:g} s", "Find out why the cluster is slow")
    finally:
        await cluster.close()
    return findings


async def _check(
    cluster: Cluster, settings: ClusterSettings, level: str, toolsets: Sequence[str], findings: Findings
) -> bool:
    """Whether the cluster is usable at all."""
    parts = [Findings(findings.place) for _ in settings.connection.endpoints]
    usable = await asyncio.gather(
        *(
            check_endpoint(endpoint, settings.connection.trust, part)
            for endpoint, part in zip(settings.connection.endpoints, parts, strict=True)
        )
    )
    for part in parts:
        findings += part
    if not any(usable):
        findings.skip(f"token, {AFTER_LOGIN}", "no trusted connection")
        return False
    if not await check_login(cluster, isinstance(settings.connection.credentials, Token), findings):
        findings.skip(AFTER_LOGIN, "the login failed")
        return False
    await check_version(cluster, findings)
    _check_clock(cluster, findings)
    await check_privileges(cluster, level, toolsets, findings)
    return True


async def check_login(cluster: Cluster, is_token: bool, findings: Findings) -> bool:
    check = "token" if is_token else "login"
    try:
        await cluster.version()
    except Problem as problem:
        findings.fail(check, _what(problem), problem.next_step or "")
        return False
    findings.ok(check, f"{cluster.client.identity} is accepted")
    return True


async def check_version(cluster: Cluster, findings: Findings) -> None:
    version = str((await cluster.version()).get("version", ""))
    major = version.partition(".")[0]
    if major.isdecimal() and int(major) in KNOWN_MAJORS:
        findings.ok("version", f"PVE {version}")
        return
    do = (
        "Update PVE to 8 or 9"
        if major.isdecimal() and int(major) < KNOWN_MAJORS[0]
        else "Look for a newer version of Quorate"
    )
    findings.warn("version", f"PVE {version or 'of an unknown version'}: Quorate supports PVE 8 and 9", do)


def _check_clock(cluster: Cluster, findings: Findings) -> None:
    skew = cluster.client.clock_skew
    if abs(skew) <= SKEW_SECONDS:
        findings.ok("clock", "The clocks of the cluster and this machine agree")
        return
    direction = "ahead of" if skew > 0 else "behind"
    findings.warn(
        "clock",
        f"The cluster's clock is {abs(skew):.0f} s {direction} this machine's",
        "Use NTP on both: `timedatectl` here, `chronyc tracking` on the node",
    )


# -- privileges --------------------------------------------------------------------------------------------------------


async def check_privileges(cluster: Cluster, level: str, toolsets: Sequence[str], findings: Findings) -> None:
    """Privileges that each toolset lacks at this level, and the commands that grant them."""
    checked = [name for name in toolsets if name != "api"]
    try:
        verdict = await permission_audit(cluster, level=level, toolsets=checked) if checked else {"allowed": True}  # type: ignore[arg-type]
        if verdict["allowed"]:
            findings.ok("privileges", f"All privileges that access {level} needs: {', '.join(checked)}")
            for what in describe_withheld(level, checked):
                findings.ok("privileges", f"Not part of access {level}, because it would also allow changes: {what}")
            return
        held: Mapping[str, Mapping[str, int]] = await cluster.get("/access/permissions")
        lacks = False
        for toolset in checked:
            audit = await permission_audit(cluster, level=level, toolsets=[toolset])  # type: ignore[arg-type]
            if not audit["allowed"]:
                lacks = _report_missing(toolset, audit["missing"], held, findings) or lacks
    except Problem as problem:
        findings.fail("privileges", _what(problem), problem.next_step or "")
        return
    _report_commands(level, verdict, lacks, findings)


def _report_missing(
    toolset: str, missing: Sequence[Mapping[str, Any]], held: Mapping[str, Mapping[str, int]], findings: Findings
) -> bool:
    """Whether a privilege is missing everywhere: privileges on some guests only may be intended."""
    nowhere = [
        row
        for row in missing
        if not all(_held_on_some(row["path"], privilege, held) for privilege in row["privileges"])
    ]
    listed = "; ".join(f"{', '.join(row['privileges'])} on {row['path']}" for row in nowhere or missing)
    if nowhere:
        findings.fail(f"toolset {toolset}", f"lacks {listed}", "Run the commands below on a node, as root")
    else:
        findings.warn(
            f"toolset {toolset}",
            f"has these privileges only on some objects: {listed}",
            "Nothing to do if this is intended",
        )
    return bool(nowhere)


def _held_on_some(path: str, privilege: str, held: Mapping[str, Mapping[str, int]]) -> bool:
    below = path.rstrip("/") + "/"
    pooled = ("/pool/",) if path in ("/vms", "/storage") else ()
    return any(privilege in privileges for at, privileges in held.items() if at.startswith((below, *pooled)))


def _report_commands(level: str, verdict: Mapping[str, Any], lacks: bool, findings: Findings) -> None:
    commands = tuple(verdict.get("commands", ()))
    findings.append(
        Finding(
            findings.place,
            "privileges",
            State.FAIL if lacks else State.WARN,
            f"Access {level} needs more privileges than the token has",
            f"On a node, as root ({'; '.join(verdict.get('notes', ()))}):",
            commands,
        )
    )


# -- SSH ---------------------------------------------------------------------------------------------------------------


async def _check_ssh(cluster: Cluster, needed: bool, findings: Findings) -> None:
    settings = cluster.ssh.settings
    if not (needed or settings.node_hosts or settings.nodes != Login()):
        findings.skip("SSH", "not configured; only commands and files in containers need it")
        return
    try:
        nodes = sorted(str(row["node"]) for row in await cluster.get("/nodes") if row.get("status") == "online")
    except Problem as problem:
        findings.fail("SSH", _what(problem), problem.next_step or "")
        return
    parts = [Findings(findings.place) for _ in nodes]
    results = await asyncio.gather(*(_check_node(cluster, node, part) for node, part in zip(nodes, parts, strict=True)))
    if missing := next((result for result in results if result is not None), None):
        findings.warn("SSH", _what(missing), missing.next_step or "")
    for part in parts:
        findings += part


async def _check_node(cluster: Cluster, node: str, findings: Findings) -> SshNotSetUp | None:
    """The problem that all nodes share and that needs to be reported only once."""
    check = f"SSH to {node}"
    try:
        target = await try_pct(cluster, node)
    except SshNotSetUp as problem:
        return problem
    except Problem as problem:
        findings.fail(check, _what(problem), problem.next_step or "")
    else:
        findings.ok(check, f"{target} accepts the login and runs pct")
    return None


def _what(problem: Problem) -> str:
    return f"{problem.what} {problem.why or ''}".strip()
