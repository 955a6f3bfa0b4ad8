"""Retention of backups: which ones a `prune-backups` setting keeps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

from pve_simulator.http.parameters import split_pairs
from pve_simulator.http.refusals import failure
from pve_simulator.storage import archives
from pve_simulator.storage.storages import Storage, Volume

_Keep = dict[str, int]
_Key = TypeVar("_Key", int, str)

# Each setting keeps the newest backup of its number of periods, after the settings before it.
_PERIODS: tuple[tuple[str, Callable[[datetime], str]], ...] = (
    ("keep-hourly", lambda when: when.strftime("%Y/%m/%d-%H")),
    ("keep-daily", lambda when: when.strftime("%Y/%m/%d")),
    ("keep-weekly", lambda when: when.strftime("%G/%V")),
    ("keep-monthly", lambda when: when.strftime("%Y/%m")),
    ("keep-yearly", lambda when: when.strftime("%Y")),
)


def parse(text: str) -> _Keep:
    """Parse a setting such as `keep-last=3,keep-daily=7`; an empty one keeps all."""
    keep = {key: int(value) for key, value in split_pairs(text).items() if value.isdecimal()}
    kept = {key: value for key, value in keep.items() if value}
    return kept or {"keep-all": 1}


def of_storage(storage: Storage, override: str | None) -> _Keep:
    """The prune setting of a storage."""
    if "backup" not in storage.content:
        raise failure(f"storage '{storage.id}' does not support backups")
    if override is not None:
        return parse(override)
    if "prune-backups" not in storage.config:
        raise failure(f"no prune-backups options configured for storage '{storage.id}'")
    return parse(str(storage.config["prune-backups"]))


def mark_backups(
    storage: Storage, node: str, keep: _Keep, *, vmid: int | None = None, kind: str | None = None
) -> list[tuple[Volume, str]]:
    """The selected backups with their mark: keep, remove, protected or renamed."""
    groups: dict[tuple[str, int | None], list[Volume]] = {}
    marks: dict[str, str] = {}
    chosen: list[Volume] = []
    for volume in archives.backups(storage, node):
        guest_kind = "lxc" if archives.is_container(volume) else "qemu"
        if vmid not in (None, volume.vmid) or kind not in (None, guest_kind):
            continue
        chosen.append(volume)
        if not archives.has_standard_name(volume):
            marks[volume.volid] = "renamed"
        elif volume.protected:
            marks[volume.volid] = "protected"
        else:
            groups.setdefault((guest_kind, volume.vmid), []).append(volume)
    for group in groups.values():
        kept = select_kept({volume.volid: archives.made_at(volume) for volume in group}, keep)
        marks |= {volume.volid: "keep" if volume.volid in kept else "remove" for volume in group}
    return [(volume, marks[volume.volid]) for volume in sorted(chosen, key=lambda each: each.volid)]


def select_kept(made_at: Mapping[_Key, float], keep: _Keep) -> set[_Key]:
    """What such a setting keeps of one guest's backups, given with their times."""
    if "keep-all" in keep:
        return set(made_at)
    newest_first = sorted(made_at, key=lambda key: made_at[key], reverse=True)
    kept = set(newest_first[: keep.get("keep-last", 0)])
    for setting, period in _PERIODS:
        periods = {key: period(datetime.fromtimestamp(time, UTC)) for key, time in made_at.items()}
        _keep_by_period(newest_first, kept, keep.get(setting, 0), periods)
    return kept


def _keep_by_period(newest_first: list[_Key], kept: set[_Key], count: int, periods: Mapping[_Key, str]) -> None:
    """Keep the newest backup of each uncovered period, up to the limit."""
    covered = {periods[key] for key in kept}
    added: set[str] = set()
    for key in newest_first:
        if key in kept or periods[key] in covered or periods[key] in added:
            continue
        if len(added) >= count:
            return
        added.add(periods[key])
        kept.add(key)


def row(volume: Volume, mark: str) -> dict[str, Any]:
    """One row of the prune preview."""
    shown: dict[str, Any] = {
        "volid": volume.volid,
        "ctime": archives.made_at(volume),
        "mark": mark,
        "type": "lxc" if archives.is_container(volume) else "qemu",
    }
    return shown if volume.vmid is None else {**shown, "vmid": volume.vmid}
