"""Settings that should stay as they are: grown privileges, and drift from the last known good configuration.

The first settings that the watch sees are the good ones. A difference stays a finding until it is undone, or until
someone acknowledges it: then the new settings are the good ones. So are those that Quorate itself was asked to change.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from quorate.hints import ACCESS_LIST, CLUSTER_STATUS, GUEST_GET, ToolHint
from quorate.operations.reports.findings import Finding, counted, names
from quorate.state.findings import Observation
from quorate.watch.checks import observed
from quorate.watch.facts import Snapshot
from quorate.watch.memory import Memory

PRIVILEGES = "privileges"
ACCEPTABLE = ("privileges-grown", "config-drift")
"""Kinds that a person accepts by acknowledging them."""
_SHOWN = 6
_NEXT = {
    "settings storages": ToolHint("storage_list"),
    "settings backup jobs": ToolHint("backup_job_list"),
    "settings HA": ToolHint("ha_status"),
    "settings firewall": ToolHint("firewall_get", {"scope": "cluster"}),
}


def privileges(now: Snapshot, memory: Memory, accepted: Collection[str]) -> Iterator[Observation]:
    grants = now.value(PRIVILEGES)
    if grants is None:
        return
    current = dict.fromkeys(grants, "")
    good = memory.good.get(PRIVILEGES)
    if good is None or "privileges-grown/" in accepted or memory.accepts(PRIVILEGES, now.looked[PRIVILEGES].at):
        good = memory.good[PRIVILEGES] = current
    # What was taken away adds no risk, and is not good any more.
    memory.good[PRIVILEGES] = {one: "" for one in good if one in current}
    if new := sorted(current.keys() - good.keys()):
        what = f"{counted(len(new), 'new privilege', 'new privileges')}: {names(new)}"
        finding = Finding("warning", "access", what, ACCESS_LIST(kind="acl"), "privileges-grown", "", tuple(new))
        yield observed(finding, PRIVILEGES)


def drift(now: Snapshot, memory: Memory, accepted: Collection[str]) -> Iterator[Observation]:
    for source in now.looked:
        if source.startswith("settings ") and (current := now.value(source)) is not None:
            ours = memory.accepts(source, now.looked[source].at)
            yield from _drift(source, source.removeprefix("settings "), dict(current), memory, accepted, ours=ours)
    pinned = set(now.settings.pinned_tags)
    for row in now.guests if pinned else ():
        config = now.value(f"config {row.vmid}")
        if config is not None and pinned & set(row.tag_list):
            source, current = f"config {row.vmid}", {"settings": config.fingerprint}
            ours = memory.accepts(source, now.looked[source].at)
            yield from _drift(source, f"guest {row.vmid}", current, memory, accepted, ours=ours)


def _drift(
    source: str, target: str, current: dict[str, str], memory: Memory, accepted: Collection[str], *, ours: bool
) -> Iterator[Observation]:
    good = memory.good.get(source)
    if good is None or ours or f"config-drift/{target}" in accepted:
        memory.good[source] = current
        return
    if good == current:
        return
    changed = sorted(key for key in good.keys() | current.keys() if good.get(key) != current.get(key))
    is_guest = target.startswith("guest ")
    told = [] if is_guest else [_change(key, good.get(key), current.get(key)) for key in changed[:_SHOWN]]
    subject = f"The settings of {target}" if is_guest else f"The {target} settings"
    what = f"{subject} changed" + (f": {'; '.join(told)}" if told else "")
    next_call = GUEST_GET(guest=int(target.split()[1])) if is_guest else _NEXT.get(source, CLUSTER_STATUS)
    finding = Finding("warning", "settings", what, next_call, "config-drift", target, tuple(changed))
    yield observed(finding, source)


def _change(key: str, old: str | None, new: str | None) -> str:
    if old is None:
        return f"{key} is new" if new == "exists" else f"{key} is now {_short(new)}"
    return f"{key} is gone" if new is None else f"{key} was {_short(old)} and is {_short(new)}"


def _short(text: str | None) -> str:
    return repr((text or "")[:60])
