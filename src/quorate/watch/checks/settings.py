"""Settings that should stay as they are: grown privileges, and drift from the last known good configuration.

The first settings that the watch sees are the good ones. A difference stays a finding until it is undone, or until
someone acknowledges it: then the new settings are the good ones. So are those that Quorate itself was asked to change.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from quorate.hints import (
    ACCESS_LIST,
    BACKUP_JOB_LIST,
    CLUSTER_STATUS,
    FIREWALL_GET,
    GUEST_GET,
    HA_STATUS,
    STORAGE_LIST,
    ToolHint,
)
from quorate.operations.reports.findings import Finding, count_of, names
from quorate.state.findings import Observation
from quorate.watch.checks import to_observation
from quorate.watch.facts import Snapshot
from quorate.watch.memory import Memory

PRIVILEGES = "privileges"
ACCEPTABLE = ("privileges-grown", "config-drift")
"""Kinds that a person accepts by acknowledging them."""
_SHOWN = 6
_NEXT = {
    "storages": STORAGE_LIST,
    "backup jobs": BACKUP_JOB_LIST,
    "HA": HA_STATUS,
    "firewall": FIREWALL_GET(scope="cluster"),
}


def privileges(now: Snapshot, memory: Memory, accepted: Collection[str]) -> Iterator[Observation]:
    grants = now.value(PRIVILEGES)
    if grants is None:
        return
    current = dict.fromkeys(grants, "")
    good = memory.good.get(PRIVILEGES)
    if good is None or "privileges-grown/" in accepted or memory.accepts(PRIVILEGES, now.readings[PRIVILEGES].at):
        good = memory.good[PRIVILEGES] = current
    # Removed privileges add no risk, and are no longer part of the good state.
    memory.good[PRIVILEGES] = {one: "" for one in good if one in current}
    if new := sorted(current.keys() - good.keys()):
        what = f"{count_of(len(new), 'new privilege', 'new privileges')}: {names(new)}"
        finding = Finding("warning", "access", what, ACCESS_LIST(kind="acl"), "privileges-grown", "", tuple(new))
        yield to_observation(finding, PRIVILEGES)


def drift(now: Snapshot, memory: Memory, accepted: Collection[str]) -> Iterator[Observation]:
    for source, looked in now.readings_of("settings"):
        if changed := _changes(source, looked.target, dict(looked.value), looked.at, memory, accepted):
            what = f"The {looked.target} settings changed: {'; '.join([*changed.values()][:_SHOWN])}"
            yield _drift_observation(source, looked.target, what, _NEXT.get(looked.target, CLUSTER_STATUS), changed)
    pinned = set(now.settings.pinned_tags)
    for row in now.guests if pinned else ():
        config = now.value(f"config {row.vmid}")
        if config is not None and pinned & set(row.tag_list):
            source, target = f"config {row.vmid}", f"guest {row.vmid}"
            fingerprint = {"settings": config.fingerprint}
            at = now.readings[source].at
            if changed := _changes(source, target, fingerprint, at, memory, accepted):
                what = f"The settings of {target} changed"
                yield _drift_observation(source, target, what, GUEST_GET(guest=row.vmid), changed)


def _changes(
    source: str, target: str, current: dict[str, str], at: float, memory: Memory, accepted: Collection[str]
) -> dict[str, str]:
    """What differs from the good settings, each with a description. What is accepted is good from now on."""
    good, ours = memory.good.get(source), memory.accepts(source, at)
    if good is None or ours or f"config-drift/{target}" in accepted:
        memory.good[source] = current
        return {}
    keys = sorted(key for key in good.keys() | current.keys() if good.get(key) != current.get(key))
    return {key: _change(key, good.get(key), current.get(key)) for key in keys}


def _drift_observation(
    source: str, target: str, what: str, next_call: ToolHint, changed: Collection[str]
) -> Observation:
    return to_observation(
        Finding("warning", "settings", what, next_call, "config-drift", target, tuple(changed)), source
    )


def _change(key: str, old: str | None, new: str | None) -> str:
    if old is None:
        return f"{key} is new" if new == "exists" else f"{key} is now {_short(new)}"
    return f"{key} is gone" if new is None else f"{key} was {_short(old)} and is {_short(new)}"


def _short(text: str | None) -> str:
    return repr((text or "")[:60])
