"""One cluster: the way to it, the login, its version and clock, the rights of the token, SSH to its nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from quorate.checkup.findings import Finding, Findings, State
from quorate.checkup.network import check_endpoint
from quorate.config import ClusterSettings
from quorate.operations.access.permission_audit import permission_audit
from quorate.problems import Problem
from quorate.pve.clock import Clock
from quorate.pve.cluster import Cluster
from quorate.pve.connection import Limits, Token
from quorate.ssh.access import SshAccess
from quorate.ssh.settings import Login

CLUSTER_SECONDS = 60.0
SKEW_SECONDS = 10.0
KNOWN_MAJORS = (8, 9)
AFTER_LOGIN = "version, clock, privileges, SSH"


async def check_cluster(
    settings: ClusterSettings, level: str, toolsets: Sequence[str], clock: Clock, *, simulated: bool = False
) -> Findings:
    """All checks of one cluster, in bounded time; what a failed check makes pointless is skipped.

    The addresses that a `simulated` cluster tells of its nodes belong to nobody, or to somebody else.
    """
    found = Findings(f"cluster {settings.name}")
    limits = Limits(request_seconds=10, total_seconds=20, connections=settings.connection.limits.connections)
    cluster = Cluster(
        settings.name, replace(settings.connection, limits=limits), clock=clock, ssh=SshAccess(settings.ssh)
    )
    try:
        async with asyncio.timeout(CLUSTER_SECONDS):
            if await _check(cluster, settings, level, toolsets, found):
                await _check_ssh(cluster, "inside" in toolsets and not simulated, found)
    except TimeoutError:
        found.fail("time", f"The checks took longer than {CLUSTER_SECONDS:g} s", "See why the cluster answers slowly")
    finally:
        await cluster.close()
    return found


async def _check(
    cluster: Cluster, settings: ClusterSettings, level: str, toolsets: Sequence[str], found: Findings
) -> bool:
    """Whether the cluster can be used at all."""
    ways = [Findings(found.place) for _ in settings.connection.endpoints]
    passable = await asyncio.gather(
        *(
            check_endpoint(endpoint, settings.connection.trust, way)
            for endpoint, way in zip(settings.connection.endpoints, ways, strict=True)
        )
    )
    for way in ways:
        found += way
    if not any(passable):
        found.skip(f"token, {AFTER_LOGIN}", "there is no trusted connection")
        return False
    if not await check_login(cluster, isinstance(settings.connection.credentials, Token), found):
        found.skip(AFTER_LOGIN, "the login did not work")
        return False
    await check_version(cluster, found)
    _check_clock(cluster, found)
    await check_privileges(cluster, level, toolsets, found)
    return True


async def check_login(cluster: Cluster, is_token: bool, found: Findings) -> bool:
    check = "token" if is_token else "login"
    try:
        await cluster.version()
    except Problem as problem:
        found.fail(check, _what(problem), problem.next_step or "")
        return False
    found.ok(check, f"{cluster.client.identity} is accepted")
    return True


async def check_version(cluster: Cluster, found: Findings) -> None:
    version = str((await cluster.version()).get("version", ""))
    major = version.partition(".")[0]
    if major.isdecimal() and int(major) in KNOWN_MAJORS:
        found.ok("version", f"PVE {version}")
        return
    do = "Update PVE to 8 or 9" if major.isdecimal() and int(major) < KNOWN_MAJORS[0] else "Look for a newer Quorate"
    found.warn("version", f"PVE {version or 'of an unknown version'}: Quorate knows the API of PVE 8 and 9", do)


def _check_clock(cluster: Cluster, found: Findings) -> None:
    skew = cluster.client.clock_skew
    if abs(skew) <= SKEW_SECONDS:
        found.ok("clock", "The cluster's clock and ours agree")
        return
    way = "ahead of" if skew > 0 else "behind"
    found.warn(
        "clock",
        f"The cluster's clock is {abs(skew):.0f} s {way} ours",
        "Let both be set by NTP: `timedatectl` here, `chronyc tracking` on the node",
    )


# -- rights ------------------------------------------------------------------------------------------------------------


async def check_privileges(cluster: Cluster, level: str, toolsets: Sequence[str], found: Findings) -> None:
    """What each toolset lacks at this level, and the commands that grant all of it at once."""
    wanted = [name for name in toolsets if name != "api"]
    try:
        verdict = await permission_audit(cluster, level=level, toolsets=wanted) if wanted else {"allowed": True}  # type: ignore[arg-type]
        if verdict["allowed"]:
            found.ok("privileges", f"All that access {level} needs: {', '.join(wanted)}")
            return
        held: Mapping[str, Mapping[str, int]] = await cluster.get("/access/permissions")
        lacks = False
        for toolset in wanted:
            one = await permission_audit(cluster, level=level, toolsets=[toolset])  # type: ignore[arg-type]
            if not one["allowed"]:
                lacks = _tell_lack(toolset, one["missing"], held, found) or lacks
    except Problem as problem:
        found.fail("privileges", _what(problem), problem.next_step or "")
        return
    _tell_commands(level, verdict, lacks, found)


def _tell_lack(
    toolset: str, missing: Sequence[Mapping[str, Any]], held: Mapping[str, Mapping[str, int]], found: Findings
) -> bool:
    """Whether anything is lacking everywhere: rights on some guests only may be what the operator wants."""
    nowhere = [row for row in missing if not all(_held_on_some(row["path"], one, held) for one in row["privileges"])]
    told = "; ".join(f"{', '.join(row['privileges'])} on {row['path']}" for row in nowhere or missing)
    if nowhere:
        found.fail(f"toolset {toolset}", f"lacks {told}", "Run the commands below on a node, as root")
    else:
        found.warn(f"toolset {toolset}", f"has only on some objects: {told}", "Leave it so if that is what you want")
    return bool(nowhere)


def _held_on_some(path: str, privilege: str, held: Mapping[str, Mapping[str, int]]) -> bool:
    below = path.rstrip("/") + "/"
    pooled = ("/pool/",) if path in ("/vms", "/storage") else ()
    return any(privilege in rights for at, rights in held.items() if at.startswith((below, *pooled)))


def _tell_commands(level: str, verdict: Mapping[str, Any], lacks: bool, found: Findings) -> None:
    commands = tuple(verdict.get("commands", ()))
    found.append(
        Finding(
            found.place,
            "privileges",
            State.FAIL if lacks else State.WARN,
            f"Access {level} needs more than the token has",
            f"On a node, as root ({'; '.join(verdict.get('notes', ()))}):",
            commands,
        )
    )


# -- SSH ---------------------------------------------------------------------------------------------------------------


async def _check_ssh(cluster: Cluster, inside: bool, found: Findings) -> None:
    settings = cluster.ssh.settings
    if not (inside or settings.node_hosts or settings.nodes != Login()):
        found.skip("SSH", "not configured; only the toolset inside needs it, for containers")
        return
    try:
        nodes = sorted(str(row["node"]) for row in await cluster.get("/nodes") if row.get("status") == "online")
    except Problem as problem:
        found.fail("SSH", _what(problem), problem.next_step or "")
        return
    parts = [Findings(found.place) for _ in nodes]
    await asyncio.gather(*(_check_node(cluster, node, part) for node, part in zip(nodes, parts, strict=True)))
    for part in parts:
        found += part


async def _check_node(cluster: Cluster, node: str, found: Findings) -> None:
    from quorate.inside.pct import try_pct

    check = f"SSH to {node}"
    try:
        target = await try_pct(cluster, node)
    except Problem as problem:
        found.fail(check, _what(problem), problem.next_step or "")
        return
    found.ok(check, f"{target} lets us in and runs pct")


def _what(problem: Problem) -> str:
    return f"{problem.what} {problem.why or ''}".strip()
