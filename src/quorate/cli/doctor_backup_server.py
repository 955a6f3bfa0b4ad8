"""The checks of one Proxmox Backup Server for `quorate doctor`: endpoint, certificate, token, clock, rights."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from quorate.cli.doctor_endpoint import check_endpoint
from quorate.cli.doctor_findings import Finding, Findings, State
from quorate.config import Access
from quorate.config.pbs import BackupServerSettings
from quorate.pbs.client import grant_commands
from quorate.pbs.server import BackupServer
from quorate.problems import Problem
from quorate.pve.connection import PBS, Clock, Limits

SECONDS = 60.0
SKEW_SECONDS = 10.0
KNOWN_MAJORS = (3, 4)
AFTER_LOGIN = "version, clock, datastores, rights"
NEEDED: Final[Mapping[str, tuple[tuple[str, str], ...]]] = {
    Access.READ: (("Datastore.Audit", "DatastoreAudit"), ("Datastore.Read", "DatastoreReader")),
    Access.OPERATE: (("Datastore.Verify", "DatastoreReader"), ("Datastore.Modify", "DatastoreAdmin")),
    Access.ADMIN: (("Datastore.Prune", "DatastoreAdmin"),),
}
"""What the tools need on each datastore from this access level on, and the role that includes it."""


async def check_backup_server(settings: BackupServerSettings, level: Access, clock: Clock) -> Findings:
    """All checks of one server, in bounded time; a failed check skips those that depend on it."""
    findings = Findings(f"backup server {settings.name}")
    limits = Limits(request_seconds=10, total_seconds=20)
    server = BackupServer(settings.name, replace(settings.connection, limits=limits), clock=clock)
    try:
        async with asyncio.timeout(SECONDS):
            await _check(server, settings, level, findings)
    except TimeoutError:
        findings.fail("time", f"The checks took longer than {SECONDS:g} s", "Find out why the server is slow")
    finally:
        await server.close()
    return findings


async def _check(server: BackupServer, settings: BackupServerSettings, level: Access, findings: Findings) -> None:
    connection = settings.connection
    if not await check_endpoint(connection.endpoints[0], connection.trust, findings, PBS):
        findings.skip(f"token, {AFTER_LOGIN}", "no trusted connection")
        return
    try:
        version = await server.version()
    except Problem as problem:
        _fail("token", problem, findings)
        findings.skip(AFTER_LOGIN, "the login failed")
        return
    findings.ok("token", f"{server.client.identity} is accepted")
    _check_version(version, findings)
    skew = server.client.clock_skew
    if abs(skew) <= SKEW_SECONDS:
        findings.ok("clock", "The clocks of the server and this machine agree")
    else:
        direction = "ahead of" if skew > 0 else "behind"
        findings.warn("clock", f"Its clock is {abs(skew):.0f} s {direction} this machine's", "Use NTP on both")
    try:
        await _check_privileges(server, level, findings)
    except Problem as problem:
        _fail("datastores", problem, findings)


def _check_version(version: str, findings: Findings) -> None:
    major = version.partition(".")[0]
    if major.isdecimal() and int(major) in KNOWN_MAJORS:
        findings.ok("version", f"PBS {version}")
        return
    findings.warn(
        "version", f"PBS {version or 'of an unknown version'}: Quorate knows PBS 3.4 and 4", "Update the older of both"
    )


async def _check_privileges(server: BackupServer, level: Access, findings: Findings) -> None:
    """Privileges that the access level needs on the datastores, and the commands that grant them."""
    names = await server.datastores()
    findings.ok("datastores", f"It sees {', '.join(names) or 'none: there is none yet'}")
    held: Mapping[str, Mapping[str, bool]] = await server.get("/access/permissions") or {}
    needed = [pair for each in Access if level.allows(each) for pair in NEEDED[each]]
    for name in names:
        path = f"/datastore/{name}"
        has = {*held.get(path, held.get("/datastore", held.get("/", {})))}
        missing = [(privilege, role) for privilege, role in needed if privilege not in has]
        if not missing:
            findings.ok("rights", f"All privileges that access {level} needs on {name}")
            continue
        findings.append(
            Finding(
                findings.place,
                "rights",
                State.WARN,
                f"On {name} it lacks {', '.join(privilege for privilege, _ in missing)}, which some tools at access "
                f"{level} need",
                "Nothing to do if this is intended; otherwise on the server, as root:",
                tuple(grant_commands(server.client.identity, path, missing[-1][1])),
            )
        )


def _fail(check: str, problem: Problem, findings: Findings) -> None:
    findings.fail(check, f"{problem.what} {problem.why or ''}".strip(), problem.next_step or "")
