"""Guests: those that should run and do not, crash, have a silent agent, old snapshots or no firewall."""

from __future__ import annotations

from collections.abc import Iterator

from quorate.hints import tools
from quorate.pve.inventory import Resource
from quorate.tools.cluster import old_snapshots_of
from quorate.tools.health_findings import Severity, names
from quorate.units import moment
from quorate.watch.checks import observe, to_observation
from quorate.watch.facts import GuestConfig, Snapshot, wants_firewall
from quorate.watch.finding_store import Observation
from quorate.watch.memory import Memory

RESTARTS = 3
SILENT_TIMES = 2
MOST_DOWN = 50
"""Above this many, one finding for all of them: the cause is one as well."""
_HA_RUNS = ("started", "starting", "recovery", "error", "fence")


def down(snapshot: Snapshot) -> Iterator[Observation]:
    requested = {
        str(row.get("sid")): str(row.get("request_state") or row.get("state") or "")
        for row in snapshot.value("ha") or []
        if row.get("type") == "service"
    }
    observations = [
        observation
        for row in snapshot.guests
        if row.status == "stopped" and (observation := _down(row, snapshot, requested))
    ]
    if len(observations) <= MOST_DOWN:
        yield from observations
        return
    listed = [observation.subjects[0] for observation in observations]
    what = f"{len(observations)} guests are stopped that should run: {names(listed)}"
    yield observe("guest-down", "", "critical", what, tools.task_list, "view", subjects=tuple(listed))


def _down(row: Resource, snapshot: Snapshot, requested: dict[str, str]) -> Observation | None:
    if row.lock:
        return None  # a backup, a migration or a rollback is at work
    config: GuestConfig | None = snapshot.value(f"config {row.vmid}")
    tags = set(row.tag_list) & set(snapshot.settings.running_tags)
    severity: Severity = "warning"
    if requested.get(f"{row.kind}:{row.vmid}") in _HA_RUNS:
        why, severity = "HA should keep it running", "critical"
    elif tags:
        why = f"it has the tag {sorted(tags)[0]}"
    elif config is not None and config.onboot:
        why = "it starts at boot"
    else:
        return None
    what = f"{row.kind} {row.vmid} {row.name} on {row.node} is stopped, but {why}"
    next_call = tools.guest_power(guest=row.vmid, action="start")
    target = f"guest {row.vmid}"
    return observe("guest-down", target, severity, what, next_call, f"config {row.vmid}", subjects=(target,))


def crashing(snapshot: Snapshot, memory: Memory) -> Iterator[Observation]:
    for vmid, times in memory.restarts.items():
        row = snapshot.view.by_vmid.get(int(vmid))
        if row is not None and len(times) >= RESTARTS:
            what = f"{row.kind} {vmid} {row.name} restarted {len(times)} times within an hour"
            next_call, restarts = tools.task_list(guest=row.vmid), [moment(time).value for time in times]
            target = f"guest {vmid}"
            yield observe("guest-crashing", target, "warning", what, next_call, target, restarted_at=restarts)


def agents(snapshot: Snapshot) -> Iterator[Observation]:
    for row in snapshot.guests:
        silent = snapshot.value(f"agent {row.vmid}") if row.type == "qemu" else None
        if silent is not None and silent >= SILENT_TIMES:
            what = f"The agent of vm {row.vmid} {row.name} is enabled but does not answer"
            next_call = tools.guest_get(guest=row.vmid)
            yield observe("agent-silent", f"guest {row.vmid}", "info", what, next_call, f"agent {row.vmid}")


def snapshots(snapshot: Snapshot) -> Iterator[Observation]:
    for row in snapshot.guests:
        listed = snapshot.value(f"snapshots {row.vmid}")
        days = snapshot.settings.snapshot_days
        for finding in old_snapshots_of(row, listed, snapshot.pve_time, days) if listed else ():
            yield to_observation(finding, f"snapshots {row.vmid}")


def firewalls(snapshot: Snapshot) -> Iterator[Observation]:
    if not snapshot.settings.firewall_tags:
        return
    general = snapshot.value("settings firewall")
    if general is not None and general.get("enable", "0") != "1":
        what = "The firewall of the whole cluster is off, so no guest has one"
        yield observe(
            "firewall-missing", "cluster", "warning", what, tools.firewall_get(scope="cluster"), "settings firewall"
        )
    open_ones = [row for row in snapshot.guests if wants_firewall(row, snapshot.settings) and _is_open(row, snapshot)]
    for row in open_ones:
        config: GuestConfig | None = snapshot.value(f"config {row.vmid}")
        cards = f": {names(config.open_cards)} unfiltered" if config and config.open_cards else ": it is switched off"
        what = f"{row.kind} {row.vmid} {row.name} has no firewall{cards}"
        next_call = tools.firewall_get(scope="guest", of=row.vmid)
        yield observe("firewall-missing", f"guest {row.vmid}", "warning", what, next_call, f"firewall {row.vmid}")


def _is_open(row: Resource, snapshot: Snapshot) -> bool:
    options, config = snapshot.value(f"firewall {row.vmid}"), snapshot.value(f"config {row.vmid}")
    switched_off = options is not None and str(options.get("enable", 0)) not in ("1", "true")
    return switched_off or (config is not None and bool(config.open_cards))
