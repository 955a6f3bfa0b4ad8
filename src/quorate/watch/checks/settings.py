"""Settings that should stay as they are: grown privileges, and drift from the last known good configuration.

The first settings that the watch sees are the good ones. A difference stays a finding until it is undone, or until
someone acknowledges it: then the new settings are the good ones. So are those that Quorate itself was asked to change.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from quorate.hints import tools
from quorate.tools.health_findings import names
from quorate.units import count_of
from quorate.watch.checks import observe
from quorate.watch.facts import Snapshot
from quorate.watch.finding_store import Observation
from quorate.watch.memory import Memory

PRIVILEGES = "privileges"
ACCEPTABLE = ("privileges-grown", "config-drift")
"""Kinds that a person accepts by acknowledging them."""
_SHOWN = 6
_NEXT = {
    "storages": tools.storage_list,
    "backup jobs": tools.backup_job_list,
    "HA": tools.ha_status,
    "firewall": tools.firewall_get(scope="cluster"),
}


def may_drift(source: str) -> bool:
    """Whether these facts are compared with the last known good ones."""
    return source == PRIVILEGES or source.startswith(("settings ", "config "))


def privileges(snapshot: Snapshot, memory: Memory, accepted: Collection[str]) -> Iterator[Observation]:
    grants = snapshot.value(PRIVILEGES)
    if grants is None:
        return
    current = dict.fromkeys(grants, "")
    good = memory.good.get(PRIVILEGES)
    if good is None or "privileges-grown/" in accepted or memory.accepts(PRIVILEGES, snapshot.readings[PRIVILEGES].at):
        good = memory.good[PRIVILEGES] = current
    # Removed privileges add no risk, and are no longer part of the good state.
    memory.good[PRIVILEGES] = {grant: "" for grant in good if grant in current}
    if new := sorted(current.keys() - good.keys()):
        what = f"{count_of(len(new), 'new privilege', 'new privileges')}: {names(new)}"
        next_call = tools.access_list(kind="acl")
        yield observe("privileges-grown", "", "warning", what, next_call, PRIVILEGES, subjects=tuple(new))


def drift(snapshot: Snapshot, memory: Memory, accepted: Collection[str]) -> Iterator[Observation]:
    for source, reading in snapshot.readings_of("settings"):
        if changed := _changes(source, reading.target, dict(reading.value), reading.at, memory, accepted):
            what = f"The {reading.target} settings changed: {'; '.join([*changed.values()][:_SHOWN])}"
            next_call = _NEXT.get(reading.target, tools.cluster_status)
            yield observe("config-drift", reading.target, "warning", what, next_call, source, subjects=tuple(changed))
    pinned = set(snapshot.settings.pinned_tags)
    for row in snapshot.guests if pinned else ():
        config = snapshot.value(f"config {row.vmid}")
        if config is not None and pinned & set(row.tag_list):
            source, target = f"config {row.vmid}", f"guest {row.vmid}"
            fingerprint = {"settings": config.fingerprint}
            at = snapshot.readings[source].at
            if changed := _changes(source, target, fingerprint, at, memory, accepted):
                what = f"The settings of {target} changed"
                next_call = tools.guest_get(guest=row.vmid)
                yield observe("config-drift", target, "warning", what, next_call, source, subjects=tuple(changed))


def _changes(
    source: str, target: str, current: dict[str, str], at: float, memory: Memory, accepted: Collection[str]
) -> dict[str, str]:
    """What differs from the good settings, each with a description. What is accepted is good from now on."""
    good, ours = memory.good.get(source), memory.accepts(source, at)
    if source in memory.ours:
        return {}  # Quorate has changed them since they were read
    if good is None or ours or f"config-drift/{target}" in accepted:
        memory.good[source] = current
        return {}
    keys = sorted(key for key in good.keys() | current.keys() if not _is_same(good.get(key), current.get(key)))
    return {key: _change(key, good.get(key), current.get(key)) for key in keys}


def _is_same(old: str | None, new: str | None) -> bool:
    """PVE's worker processes list such as content types each in its own order, so the order means nothing."""
    return old == new or (old is not None and new is not None and _list_in_order(old) == _list_in_order(new))


def _list_in_order(text: str) -> str:
    """A list such as `iso,images` in alphabetical order; a text with blanks as it is."""
    return text if re.search(r"\s", text) else ",".join(sorted(re.split(r"[,;]", text.strip("[]{}"))))


def _change(key: str, old: str | None, new: str | None) -> str:
    if old is None:
        return f"{key} is new" if new == "exists" else f"{key} is now {_short(new)}"
    return f"{key} is gone" if new is None else f"{key} was {_short(old)} and is {_short(new)}"


def _short(text: str | None) -> str:
    return repr(_list_in_order(text or "")[:60])
