"""Findings of the health check: their kinds, their order, and checks that could not be done."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from quorate.hints import ToolHint
from quorate.problems import PermissionMissing, Problem, TimedOut
from quorate.pve.cluster import Cluster
from quorate.pve.inventory import Resource
from quorate.units import shortlist

CHECK_SECONDS = 30.0
READ_SECONDS = 10.0
NAMES_SHOWN = 8

Severity = Literal["critical", "warning", "info", "unchecked"]
SEVERITIES: tuple[Severity, ...] = ("critical", "warning", "unchecked", "info")


@dataclass(frozen=True, slots=True)
class Finding:
    severity: Severity
    area: str
    what: str
    next_call: ToolHint
    kind: str = ""
    """The kind of finding, such as `node-down`."""
    target: str = ""
    """What it is about, such as `node pve1`; empty if it is the cluster or the `subjects`."""
    subjects: tuple[str, ...] = ()
    """The guests or nodes that share it."""


async def run_check(pve: Cluster, area: str, next_call: ToolHint, check: Awaitable[list[Finding]]) -> list[Finding]:
    """Run a check and return its findings; one that cannot be done is itself a finding and never hides the others."""
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            return await check
    except TimeoutError:
        return [Finding("unchecked", area, f"The check took longer than {CHECK_SECONDS:g} s", next_call)]
    except Problem as problem:
        return [await explained_finding(pve, area, problem, next_call)]


async def read_in_time(read: Awaitable[Any]) -> Any:
    """Read with a short timeout, so that a node that hangs does not use up the time of the others."""
    try:
        async with asyncio.timeout(READ_SECONDS):
            return await read
    except TimeoutError:
        raise TimedOut(f"No answer came within {READ_SECONDS:g} s") from None


def unchecked_finding(area: str, problem: Problem, next_call: ToolHint, where: str = "") -> Finding:
    """Say why something could not be checked; a missing privilege comes with the command that grants it."""
    why = f" {problem.why}" if problem.why else ""
    grant = f" {problem.next_step}" if isinstance(problem, PermissionMissing) and problem.next_step else ""
    return Finding("unchecked", area, f"Could not look{where}: {problem.what}{why}{grant}", next_call)


async def explained_finding(pve: Cluster, area: str, problem: Problem, next_call: ToolHint, where: str = "") -> Finding:
    """Ask PVE which privileges are held first, so that the command that grants the missing one revokes none of them."""
    return unchecked_finding(area, await pve.explain(problem), next_call, where)


def names(subjects: Iterable[str]) -> str:
    return shortlist(list(subjects), NAMES_SHOWN)


def guest_label(row: Resource) -> str:
    return f"{row.vmid} {row.name}".strip()


def pve_time(pve: Cluster) -> float:
    """The time by PVE's clock, as of its latest answer."""
    return pve.clock.time() + pve.client.clock_skew


KINDS: Mapping[str, str] = {
    "cluster-unreachable": "No endpoint of the cluster answers, so nothing is known about it now.",
    "unchecked": "This could not be read, so it is not known whether it is fine.",
    "node-down": "The node left the cluster. Guests on it are down unless HA moves them.",
    "node-flapping": "The node leaves and rejoins. A cable, a switch, memory or power is a likely cause.",
    "quorum-lost": "Without a majority of nodes the cluster refuses every change and HA stops.",
    "quorum-at-risk": "If one more node fails, the cluster loses its majority and refuses changes.",
    "clock-skew": "Clocks that differ break Ceph, logins and the order of logs.",
    "guest-down": "The guest is stopped although it should run.",
    "guest-crashing": "The guest starts again and again, so it probably crashes.",
    "agent-silent": "The guest agent is enabled but does not answer: clean shutdowns and consistent backups may fail.",
    "ha-trouble": "High availability cannot do its job for this.",
    "storage-full": "A full storage stops guests and backups.",
    "storage-filling": "If it keeps growing like this, the storage will soon be full.",
    "storage-away": "Guests and backups on this storage cannot be used there.",
    "thin-metadata": "A thin pool without free metadata turns read-only, even if it has free space.",
    "zfs-degraded": "The pool has lost redundancy or has errors. One more failed disk can lose data.",
    "ceph-unhealthy": "Ceph reports that data or daemons need attention.",
    "disk-failing": "The disk reports through SMART that it is failing.",
    "disk-worn": "The flash of the disk is nearly used up.",
    "backup-uncovered": "No backup job includes these guests.",
    "backup-missing": "These guests cannot be restored at all.",
    "backup-incomplete": "A restore does not bring this data back. Include it, or accept that it is kept elsewhere.",
    "backup-old": "A restore would lose everything since the last backup.",
    "backup-failed": "The last backup did not finish.",
    "backup-unproven": "Nobody knows whether these backups work until one is verified, or restored by a drill.",
    "backup-odd": "The newest backup differs a lot in size from the ones before: something is missing or growing fast.",
    "replication-late": "If its node fails now, the guest restarts elsewhere with old data, or not at all.",
    "task-failing": "The same task keeps failing.",
    "snapshot-old": "Old snapshots grow, slow disks down and block some changes.",
    "certificate-ending": "When it expires, browsers, API clients and cluster nodes stop trusting the node.",
    "subscription-ending": "Without it the node no longer gets updates from the enterprise repository.",
    "updates-security": "Known security holes stay open until these are installed.",
    "firewall-missing": "Your settings ask for a firewall on these guests, and theirs is off.",
    "privileges-grown": "Someone may do more than before. Acknowledge it if that is intended.",
    "config-drift": "The settings differ from the last known good ones. Acknowledge it to accept the new ones.",
    "host-unreachable": "The host does not answer on its SSH port.",
    "host-disk-full": "A full disk stops services on this host.",
    "service-down": "A service of this host has failed, or an installed one is not running or not healthy.",
    "pbs-unreachable": "Nothing can be backed up there or restored from there until it answers.",
    "pbs-gc-late": "Without garbage collection, pruned backups keep their space and the datastore fills up.",
    "pbs-job-failing": "A job that fails, is late or points at nothing protects nothing.",
    "backup-locked": "These backups cannot be restored until the storage has their key again.",
    "backup-unpruned": "Old backups pile up until the datastore is full.",
    "backup-damaged": "Verification found damaged data: these backups cannot be restored completely.",
    "approval-waiting": "A change waits until a person decides. It expires unanswered.",
    "run-paused": "A run stopped and needs a person to continue or cancel it.",
    "changes-frozen": "Nobody can change anything through Quorate until the operator lifts the freeze.",
    "channel-failing": "Messages on this channel do not arrive.",
    "watch-test": "This is a test message.",
}
