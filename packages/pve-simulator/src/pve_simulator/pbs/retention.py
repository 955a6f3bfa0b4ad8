"""Retention: which snapshots of a group a prune keeps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pve_simulator.pbs.datastores import Snapshot
from pve_simulator.storage.retention import select_kept

KEEPS = ("keep-last", "keep-hourly", "keep-daily", "keep-weekly", "keep-monthly", "keep-yearly")


def keeps_of(params: Mapping[str, Any]) -> dict[str, int]:
    return {name: int(params[name]) for name in KEEPS if name in params}


def mark_snapshots(snapshots: Iterable[Snapshot], keeps: Mapping[str, int]) -> list[tuple[Snapshot, bool]]:
    """Each snapshot, oldest first, and whether it is kept. Protected ones are, and do not count."""
    ordered = sorted(snapshots, key=lambda snapshot: snapshot.time)
    counted = {snapshot.time: float(snapshot.time) for snapshot in ordered if not snapshot.protected}
    kept = select_kept(counted, dict(keeps) or {"keep-all": 1})
    return [(snapshot, snapshot.protected or snapshot.time in kept) for snapshot in ordered]


def options_text(params: Mapping[str, Any]) -> str:
    """The options of a prune as its log shows them."""
    parts = [f"--ns {params['ns']}"] if params.get("ns") else []
    parts += [f"--max-depth {params['max-depth']}"] if "max-depth" in params else []
    return " ".join([*parts, *(f"--{name} {count}" for name, count in keeps_of(params).items())])
