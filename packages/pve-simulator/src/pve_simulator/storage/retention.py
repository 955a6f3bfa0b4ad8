"""Retention of backups: which ones a `prune-backups` setting keeps."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from pve_simulator.http.refusals import failure
from pve_simulator.storage import archives
from pve_simulator.storage.storages import Storage, Volume

_Keep = dict[str, int]

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
    pairs = (part.partition("=") for part in text.split(",") if part)
    keep = {key: int(value) for key, _, value in pairs if value.isdecimal()}
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
        kept = _select_kept(group, keep)
        marks |= {volume.volid: "keep" if volume.volid in kept else "remove" for volume in group}
    return [(volume, marks[volume.volid]) for volume in sorted(chosen, key=lambda each: each.volid)]


def _select_kept(group: list[Volume], keep: _Keep) -> set[str]:
    if "keep-all" in keep:
        return {volume.volid for volume in group}
    newest_first = sorted(group, key=archives.made_at, reverse=True)
    kept = {volume.volid for volume in newest_first[: keep.get("keep-last", 0)]}
    for setting, period in _PERIODS:
        _keep_by_period(newest_first, kept, keep.get(setting, 0), period)
    return kept


def _keep_by_period(volumes: list[Volume], kept: set[str], count: int, period: Callable[[datetime], str]) -> None:
    """Keep the newest backup of each uncovered period, up to the limit."""
    covered = {period(_when(volume)) for volume in volumes if volume.volid in kept}
    added: set[str] = set()
    for volume in volumes:
        name = period(_when(volume))
        if volume.volid in kept or name in covered or name in added:
            continue
        if len(added) >= count:
            return
        added.add(name)
        kept.add(volume.volid)


def _when(volume: Volume) -> datetime:
    return datetime.fromtimestamp(archives.made_at(volume), UTC)


def row(volume: Volume, mark: str) -> dict[str, Any]:
    """One row of the prune preview."""
    shown: dict[str, Any] = {
        "volid": volume.volid,
        "ctime": archives.made_at(volume),
        "mark": mark,
        "type": "lxc" if archives.is_container(volume) else "qemu",
    }
    return shown if volume.vmid is None else {**shown, "vmid": volume.vmid}
