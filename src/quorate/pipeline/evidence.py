"""The traces of a write in PVE: a task, or a state that can be read back."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from enum import Enum
from typing import Any

from pve_schema.schema import Facts, Match
from quorate.command_secrets import HIDDEN
from quorate.operations.wait_until import same
from quorate.problems import (
    AuthenticationFailed,
    NodeOffline,
    NotFound,
    Problem,
    TimedOut,
    Unreachable,
    UntrustedCertificate,
)
from quorate.pve.cluster import Cluster
from quorate.pve.tasks import Upid, started_since

PATIENCE = (0.0, 1.0, 2.0)  # PVE lists a task a moment after it starts
YOUNG = 10.0  # seconds after which every task is listed
OLD = 86_400.0  # seconds after which PVE may have dropped a task from its lists
_NOT_READ_BACK = frozenset({"digest", "delete", "background_delay", "force", "skiplock", "revert", "pos", "append"})


class Trace(Enum):
    PRESENT = "present"
    NONE = "none"
    SEVERAL = "several"
    UNCLEAR = "unclear"
    """Before and after look the same, or it cannot be read."""


def expected_tasks(match: Match, vmid: object, task_id: str | None) -> tuple[set[str], set[str]]:
    """The types and ids of the task that a call starts; no types if it starts none."""
    if not match.endpoint.worker_types or "node" not in match.values:
        return set(), set()
    types = {*match.endpoint.worker_types, *(f"ha{word}" for word in ("start", "stop", "migrate"))}
    named = (value for name, value in match.values.items() if name != "node")
    return types, {task_id} if task_id is not None else {*named, str("" if vmid is None else vmid), ""}


async def trace_of(
    cluster: Cluster, wire: Mapping[str, Any], since: float, claimed: Callable[[], Awaitable[set[str]]]
) -> Upid | Trace:
    """The trace of a call that may have been sent after `since`. Raises Problem if PVE cannot be asked."""
    method, path = str(wire.get("method")), str(wire.get("path"))
    params = wire.get("params")
    params = params if isinstance(params, Mapping) else {}
    facts = await cluster.facts()
    match = facts.find(method, path)
    if match is None:
        raise NotFound(f"PVE has no {method} {path} anymore")
    types, known = expected_tasks(match, params.get("vmid"), wire.get("task_id"))
    ids = known if "vmid" in {*match.values, *params} or "task_id" in wire else None  # otherwise any id fits
    if types:
        found = await _tasks(cluster, match, types, ids, since, claimed, everywhere="upload" in wire)
        if len(found) > 1:
            return Trace.SEVERAL
        if found:
            return found[0]
        if method == "POST":  # its object may have existed before, so only the task proves it
            return Trace.NONE if cluster.clock.time() - since < OLD else Trace.UNCLEAR
    effect = await _effect(cluster, facts, match, path, params)
    return Trace.NONE if types and effect is Trace.UNCLEAR else effect


async def _tasks(
    cluster: Cluster,
    match: Match,
    types: set[str],
    ids: set[str] | None,
    since: float,
    claimed: Callable[[], Awaitable[set[str]]],
    *,
    everywhere: bool,
) -> list[Upid]:
    nodes = [match.values["node"]]
    if everywhere:  # an upload is processed by the node that received it
        nodes = [row.node for row in await cluster.inventory.of_type("node") if row.status == "online"]
    young = cluster.clock.time() - since < YOUNG
    for pause in PATIENCE if young else PATIENCE[:1]:
        await cluster.clock.sleep(pause)
        found = [one for node in nodes for one in await started_since(cluster.client, node, types, ids, since)]
        taken = await claimed() if found else set()
        if left := [one for one in found if one.text not in taken]:
            return left
    return []


async def _effect(cluster: Cluster, facts: Facts, match: Match, path: str, params: Mapping[str, Any]) -> Trace:
    method = match.endpoint.method
    try:
        if reader := _READERS.get((method, match.endpoint.template)):
            return await reader(cluster, params)
        if method == "POST":
            return await _trace_creation(cluster, facts, match, path, params)
        if facts.find("GET", path) is None or "pos" in match.values:  # positions move
            return Trace.UNCLEAR
        now = await cluster.get(path)
    except NotFound:
        return Trace.PRESENT if method == "DELETE" else Trace.NONE
    except (NodeOffline, Unreachable, TimedOut, AuthenticationFailed, UntrustedCertificate):
        raise
    except Problem:
        return Trace.UNCLEAR
    if method == "DELETE":
        return Trace.NONE if now else Trace.UNCLEAR
    return _reads_back(now, params)


async def _trace_creation(cluster: Cluster, facts: Facts, match: Match, path: str, params: Mapping[str, Any]) -> Trace:
    """Whether the object that a POST creates is in its list, by the parameter that names it."""
    if match.endpoint.template.endswith("/rules"):  # a rule has no name, so its content identifies it
        rows = await cluster.get(path)
        wanted = {name: value for name, value in params.items() if name not in _NOT_READ_BACK}
        same_rule = (all(_same(row.get(name), value) for name, value in wanted.items()) for row in rows)
        return Trace.PRESENT if any(same_rule) else Trace.NONE
    for name, value in params.items():
        named = facts.find("GET", f"{path}/{value}") if isinstance(value, (str, int)) else None
        if named is None or named.endpoint.template.rpartition("/")[2] != f"{{{name}}}":
            continue
        rows = await cluster.get(path)
        if not isinstance(rows, list):
            return Trace.UNCLEAR
        if any(isinstance(row, Mapping) and str(row.get(name)) == str(value) for row in rows):
            return Trace.PRESENT
        return Trace.NONE if all(isinstance(row, Mapping) and name in row for row in rows) else Trace.UNCLEAR
    return Trace.UNCLEAR


async def _members(cluster: Cluster, params: Mapping[str, Any]) -> Trace:
    """PUT /pools: guests and storages join or leave a pool."""
    pool = await cluster.get(f"/pools/{params.get('poolid')}")
    members = {str(one.get("vmid") or one.get("storage")) for one in pool.get("members", ())}
    wanted = _items(params.get("vms")) | _items(params.get("storage"))
    if "comment" in params and not _same(pool.get("comment"), params["comment"]):
        return Trace.NONE
    return _all_there(wanted, members, removed=_is_true(params.get("delete")))


async def _acl_entries(cluster: Cluster, params: Mapping[str, Any]) -> Trace:
    """PUT /access/acl: roles are granted or revoked on a path."""
    rows = await cluster.get("/access/acl")
    given = {(str(row.get("roleid")), str(row.get("ugid"))) for row in rows if row.get("path") == params.get("path")}
    holders = {one for kind in ("users", "groups", "tokens") for one in _items(params.get(kind))}
    wanted = {(role, holder) for role in _items(params.get("roles")) for holder in holders}
    return _all_there(wanted, given, removed=_is_true(params.get("delete")))


_READERS: dict[tuple[str, str], Callable[[Cluster, Mapping[str, Any]], Awaitable[Trace]]] = {
    ("PUT", "/pools"): _members,
    ("PUT", "/access/acl"): _acl_entries,
}


def _all_there(wanted: set[Any], there: set[Any], *, removed: bool) -> Trace:
    done = not wanted & there if removed else wanted <= there
    return Trace.PRESENT if done else Trace.NONE


def _items(value: Any) -> set[str]:
    items = value if isinstance(value, (list, tuple)) else re.split(r"[,;\s\0]+", str("" if value is None else value))
    return {str(one).strip() for one in items} - {""}


def _is_true(value: Any) -> bool:
    return str(value).lower() in ("1", "true", "yes", "on")


def _reads_back(now: Any, params: Mapping[str, Any]) -> Trace:
    """Whether the values are as requested. An unchanged digest proves that nothing was set."""
    if not isinstance(now, Mapping):
        return Trace.UNCLEAR
    digest = params.get("digest")
    if digest and now.get("digest") == digest:
        return Trace.NONE
    wanted = {name: value for name, value in params.items() if name not in _NOT_READ_BACK}
    gone = [name.strip() for name in str(params.get("delete") or "").replace(";", ",").split(",") if name.strip()]
    if (not wanted and not gone) or HIDDEN in wanted.values():
        return Trace.UNCLEAR
    left = [name for name in gone if name in now]
    other = [name for name, value in wanted.items() if name not in now or not _same(now[name], value)]
    if not left and not other:
        return Trace.PRESENT
    sure = left or any(name in now and _is_plain(wanted[name]) for name in other)
    return Trace.NONE if sure and not digest else Trace.UNCLEAR


def _same(theirs: Any, ours: Any) -> bool:
    """PVE may extend and reorder a property string, and it names a new volume itself."""
    if isinstance(theirs, (list, dict)):
        return _items(ours) <= {str(one) for one in theirs}
    try:
        if same(theirs, ours):
            return True
    except (TypeError, ValueError):
        return False
    return not _is_plain(ours) and {one for one in str(ours).split(",") if "=" in one} <= set(str(theirs).split(","))


def _is_plain(value: Any) -> bool:
    """Whether it is a plain value, not a property string or list, which PVE may rewrite."""
    return not set("=,;:") & set(str(value))
