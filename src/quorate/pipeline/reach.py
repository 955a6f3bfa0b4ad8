"""What the steps of a plan reach: what their calls name, and what the stored objects that they change are about."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from pve_schema.formats import split_list
from pve_schema.schema import Facts
from quorate.operations.plan import Action, Call
from quorate.problems import NotFound, ParameterRejected
from quorate.pve.cluster import Cluster
from quorate.pve.placement import affects_placement, find_relocations, relocation_targets
from quorate.pve.targets import GUEST, GUESTS, HOST, NODE, TargetRef, find_targets
from quorate.pve.wire import encode, read

_STORED: Final = re.compile(r"/cluster/(?:backup|ha/rules|ha/groups|mapping/(?:pci|usb|dir))/[^/]+")
_GROUP: Final = re.compile(r"/cluster/ha/groups/(?P<name>[^/]+)")
_STORAGE: Final = re.compile(r"/storage/[^/]+")
_KEEPS_BACKUPS: Final = frozenset({"prune-backups", "maxfiles", "encryption-key", "master-pubkey"})
"""Parameters of a storage that decide which backups are kept and who can read them."""
_TARGET_KEYS: Final = ("vmid", "all", "exclude", "pool", "resources", "nodes", "map")


def reach_of_step(step: Call | Action, facts: Facts | None) -> list[list[TargetRef]]:
    if isinstance(step, Call):
        return [reach_of_call(step, facts)]
    return [_target_refs(step), *(reach_of_call(call, facts) for call in step.needs)]


def reach_of_call(call: Call, facts: Facts | None) -> list[TargetRef]:
    request = read(facts, call.method, call.path, call.params)
    return find_targets(request) if request else []


def _target_refs(action: Action) -> list[TargetRef]:
    target = action.target
    if target is None:
        return []
    if target.kind == HOST:
        return [TargetRef(HOST, target.id, becomes=msgspec.structs.asdict(action.becomes) if action.becomes else {})]
    if target.kind in ("vm", "ct"):
        return [TargetRef(GUEST, target.id, target.node)]
    return [TargetRef(NODE, target.node, target.node)] if target.node else []


async def stored_reach(cluster: Cluster, facts: Facts, call: Call) -> list[TargetRef]:
    """What a stored object is about now, such as the guests of a backup job: changing it concerns them as well."""
    named = {*call.params, *split_list(str(call.params.get("delete", "")))}
    if call.method == "PUT" and _STORAGE.fullmatch(call.path) and _KEEPS_BACKUPS & named:
        return [TargetRef(GUESTS)]  # any of them may have backups there
    if call.method not in ("PUT", "DELETE") or not _STORED.fullmatch(call.path):
        return []
    try:
        stored = await cluster.get(call.path)
        group = _GROUP.fullmatch(call.path)
        members = await _group_members(cluster, group["name"]) if group else []
    except (NotFound, ParameterRejected):  # PVE will report it
        return []
    return [
        *stored_targets(facts, call.path, stored),
        *(one for sid in members for one in _targets_of(facts, f"/cluster/ha/resources/{sid}", {})),
    ]


async def placement_reach(cluster: Cluster, facts: Facts, calls: Iterable[Call]) -> list[list[TargetRef]]:
    """The guests that calls move or let run on other nodes, with everything else that those calls name."""
    requests = [request for call in calls if (request := read(facts, call.method, call.path, call.params))]
    if not any(affects_placement(request) for request in requests):
        return []
    relocations = await find_relocations(cluster, facts, requests)
    return [
        [*find_targets(request), *relocation_targets(found)]
        for request, found in zip(requests, relocations, strict=True)
        if found
    ]


async def _group_members(cluster: Cluster, name: str) -> list[str]:
    return [str(row["sid"]) for row in await cluster.get("/cluster/ha/resources") if row.get("group") == name]


def stored_targets(facts: Facts, path: str, stored: Mapping[str, Any]) -> list[TargetRef]:
    """What an object with this content is about, such as the guests that a backup job selects."""
    return _targets_of(facts, path, {name: stored[name] for name in _TARGET_KEYS if name in stored})


def _targets_of(facts: Facts, path: str, params: dict[str, Any]) -> list[TargetRef]:
    request = read(facts, "PUT", path, encode(params))
    return find_targets(request) if request else []
