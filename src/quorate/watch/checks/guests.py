"""Guests: those that should run and do not, crash, have a silent agent, old snapshots or no firewall."""

from __future__ import annotations

from collections.abc import Iterator

from quorate.hints import FIREWALL_GET, GUEST_GET, GUEST_POWER, TASK_LIST
from quorate.operations.reports.backup_health import old_snapshots_of
from quorate.operations.reports.findings import Finding, Severity, names
from quorate.operations.units import moment
from quorate.pve.inventory import Resource
from quorate.state.findings import Observation
from quorate.watch.checks import to_observation
from quorate.watch.facts import Snapshot, wants_firewall
from quorate.watch.memory import Memory
from quorate.watch.reductions import GuestConfig

RESTARTS = 3
SILENT_TIMES = 2
MOST_DOWN = 50
"""Above this many, one finding for all of them: the cause is one as well."""
_HA_RUNS = ("started", "starting", "recovery", "error", "fence")


def down(now: Snapshot) -> Iterator[Observation]:
    requested = {
        str(row.get("sid")): str(row.get("request_state") or row.get("state") or "")
        for row in now.value("ha") or []
        if row.get("type") == "service"
    }
    found = [one for row in now.guests if row.status == "stopped" and (one := _down(row, now, requested))]
    if len(found) <= MOST_DOWN:
        yield from found
        return
    listed = [one.subjects[0] for one in found]
    what = f"{len(found)} guests are stopped that should run: {names(listed)}"
    together = Finding("critical", "guests", what, TASK_LIST, "guest-down", subjects=tuple(listed))
    yield to_observation(together, "view")


def _down(row: Resource, now: Snapshot, requested: dict[str, str]) -> Observation | None:
    if row.lock:
        return None  # a backup, a migration or a rollback is at work
    config: GuestConfig | None = now.value(f"config {row.vmid}")
    tags = set(row.tag_list) & set(now.settings.running_tags)
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
    next_call = GUEST_POWER(guest=row.vmid, action="start")
    target = f"guest {row.vmid}"
    return to_observation(
        Finding(severity, "guests", what, next_call, "guest-down", target, (target,)), f"config {row.vmid}"
    )


def crashing(now: Snapshot, memory: Memory) -> Iterator[Observation]:
    for vmid, times in memory.restarts.items():
        row = now.view.by_vmid.get(int(vmid))
        if row is not None and len(times) >= RESTARTS:
            what = f"{row.kind} {vmid} {row.name} restarted {len(times)} times within an hour"
            found = Finding("warning", "guests", what, TASK_LIST(guest=row.vmid), "guest-crashing", f"guest {vmid}")
            yield to_observation(found, "view", restarted_at=[moment(one).value for one in times])


def agents(now: Snapshot) -> Iterator[Observation]:
    for row in now.guests:
        silent = now.value(f"agent {row.vmid}") if row.type == "qemu" else None
        if silent is not None and silent >= SILENT_TIMES:
            what = f"The agent of vm {row.vmid} {row.name} is enabled but does not answer"
            next_call = GUEST_GET(guest=row.vmid)
            found = Finding("info", "guests", what, next_call, "agent-silent", f"guest {row.vmid}")
            yield to_observation(found, f"agent {row.vmid}")


def snapshots(now: Snapshot) -> Iterator[Observation]:
    for row in now.guests:
        taken = now.value(f"snapshots {row.vmid}")
        for finding in old_snapshots_of(row, taken, now.pve_time, now.settings.snapshot_days) if taken else ():
            yield to_observation(finding, f"snapshots {row.vmid}")


def firewalls(now: Snapshot) -> Iterator[Observation]:
    if not now.settings.firewall_tags:
        return
    general = now.value("settings firewall")
    if general is not None and general.get("enable", "0") != "1":
        what = "The firewall of the whole cluster is off, so no guest has one"
        found = Finding("warning", "firewall", what, FIREWALL_GET(scope="cluster"), "firewall-missing", "cluster")
        yield to_observation(found, "settings firewall")
    open_ones = [row for row in now.guests if wants_firewall(row, now.settings) and _is_open(row, now)]
    for row in open_ones:
        config: GuestConfig | None = now.value(f"config {row.vmid}")
        cards = f": {names(config.open_cards)} unfiltered" if config and config.open_cards else ": it is switched off"
        what = f"{row.kind} {row.vmid} {row.name} has no firewall{cards}"
        next_call = FIREWALL_GET(scope="guest", of=row.vmid)
        found = Finding("warning", "firewall", what, next_call, "firewall-missing", f"guest {row.vmid}")
        yield to_observation(found, f"firewall {row.vmid}")


def _is_open(row: Resource, now: Snapshot) -> bool:
    options, config = now.value(f"firewall {row.vmid}"), now.value(f"config {row.vmid}")
    switched_off = options is not None and str(options.get("enable", 0)) not in ("1", "true")
    return switched_off or (config is not None and bool(config.open_cards))
