"""Which tools are served: the default ones, whole toolsets, or both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from quorate.operations.registry import EVERY, HOMELAB, TOOLSETS, Operation, operations
from quorate.suggestions import suggest

DEFAULT = "default"
"""Names the default tools where toolsets are chosen."""

DEFAULT_TOOLS: Mapping[str, str] = {
    "cluster": "cluster_status node_get node_list",
    "guests": "guest_configure guest_get guest_list guest_power guest_screenshot guest_stop",
    "provision": "container_create guest_clone guest_delete guest_migrate vm_create",
    "configure": "disk_add disk_change disk_destroy",
    "snapshots": "snapshot_create snapshot_delete snapshot_list snapshot_rollback",
    "storage": "storage_list volume_list",
    "backups": "backup_coverage backup_create backup_job_list backup_job_set backup_list backup_restore",
    "metrics": "metrics_get metrics_top",
    "reports": "cluster_health",
    "inside": "guest_exec guest_file_read guest_file_write guest_job",
    "watch": "changes_since finding_list",
    "tasks": "task_get task_list task_stop task_wait",
}
"""What a homelab needs every day, by toolset, in at most 32 kB of `tools/list`."""

_GROUPS: Mapping[str, Iterable[str]] = {
    "all": (*TOOLSETS, *(one for one in DEFAULT_TOOLS if one not in TOOLSETS)),
    "homelab": HOMELAB,
}
_DEFAULT_NAMES = frozenset(name for names in DEFAULT_TOOLS.values() for name in names.split())


def expand(names: Iterable[str]) -> frozenset[str]:
    """Toolsets by name, with the groups `all` and `homelab` spelled out. Raises KeyError for an unknown name."""
    chosen: set[str] = set()
    for name in names:
        if name not in _GROUPS and name not in EVERY and name != DEFAULT:
            raise KeyError(name)
        chosen |= {*_GROUPS.get(name, (name,))}
    return frozenset(chosen)


def valid_names() -> str:
    return f"{', '.join(EVERY)}, {DEFAULT}, {' or '.join(_GROUPS)}"


def describe_unknown(name: str) -> str:
    hint = suggest(name, (*EVERY, DEFAULT, *_GROUPS), None)
    advice = f"did{hint.removeprefix('Did')} Choose" if hint else "choose"
    return f"There is no toolset {name!r}: {advice} from {valid_names()}"


def includes(chosen: frozenset[str], operation: Operation) -> bool:
    return operation.toolset in chosen or (DEFAULT in chosen and operation.name in _DEFAULT_NAMES)


def chosen_operations(chosen: frozenset[str]) -> list[Operation]:
    """By name. Only modules of toolsets with a chosen operation are imported."""
    return [one for one in operations(in_use(chosen)).values() if includes(chosen, one)]


def in_use(chosen: frozenset[str]) -> list[str]:
    """The toolsets of which at least one tool is on."""
    return [name for name in EVERY if name in chosen or (DEFAULT in chosen and name in DEFAULT_TOOLS)]


def option_adding(chosen: frozenset[str], toolset: str) -> str:
    """The value of `--toolsets` that adds one and keeps what is enabled."""
    return ",".join(_shortest(chosen | {toolset}))


def _shortest(chosen: frozenset[str]) -> list[str]:
    if DEFAULT in chosen:
        return [f"+{name}" for name in _shortest(chosen - {DEFAULT})] or [DEFAULT]
    whole = [group for group, members in _GROUPS.items() if chosen.issuperset(members)]
    covered = {name for group in whole for name in _GROUPS[group]}
    return [*whole, *(name for name in EVERY if name in chosen and name not in covered)]


def left_out(chosen: frozenset[str]) -> tuple[list[str], list[str]]:
    """The toolsets that are off, and those of which only the default tools are on."""
    partly = [name for name in DEFAULT_TOOLS if name not in chosen] if DEFAULT in chosen else []
    off = [name for name in EVERY if name not in chosen and name not in partly]
    return off, [name for name in partly if len(operations([name])) > len(DEFAULT_TOOLS[name].split())]
