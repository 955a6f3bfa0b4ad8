"""The checks of one cluster for `quorate doctor`: endpoints, certificate, login, version, clock, privileges."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from quorate.cli.doctor_endpoint import check_endpoint
from quorate.cli.doctor_findings import Finding, Findings, State
from quorate.config import Access, ClusterSettings
from quorate.inside.pct import SshNotSetUp, try_pct
from quorate.operations.privileges import describe_withheld
from quorate.problems import Problem
from quorate.pve.cluster import Cluster
from quorate.pve.connection import Clock, Limits, Token
from quorate.ssh.settings import Login, SshAccess
from quorate.tools.permissions import permission_audit

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
