"""Whom the stored objects of a plan reach, in words: a person who approves sees the guests of a job, not only its name.

The lines are made from the calls, so named tools and raw API calls read the same.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from pve_schema.schema import Facts
from quorate.operations.backend import Backend
from quorate.operations.plan import Call, Plan
from quorate.operations.units import size
from quorate.pipeline.reach import stored_targets
from quorate.problems import Problem
from quorate.pve.cluster import Cluster
from quorate.pve.stored_objects import Location, locate, predict, read_stored
from quorate.pve.subjects import Census
from quorate.pve.targets import GUEST, GUESTS, TargetRef, owner
from quorate.pve.wire import Request, read

_ACL: Final = "/access/acl"
_BUILT_IN_ROLE: Final = re.compile(r"PVE\w+|Administrator|NoAccess")
Describe = Callable[[Cluster, Facts, Request], Awaitable[list[str]]]


async def describe_dependents(backend: Backend, plan: Plan) -> list[str]:
    """One line for each stored object that others depend on."""
    lines: list[str] = []
    for where, part in plan.parts():
        for call in part.api_calls:
            lines += await _dependents_of((where or backend).api, call)
    return list(dict.fromkeys(lines))


async def _dependents_of(cluster: Cluster, call: Call) -> list[str]:
    facts = await cluster.facts()
    request = read(facts, call.method, call.path, call.params)
    describe = None if request is None else _DESCRIPTIONS.get((request.method, request.template))
    if request is None or describe is None:
        return []
    try:
        return await describe(cluster, facts, request)
    except Problem as problem:
        return [f"what {call.path} reaches could not be read: {problem.what}"]


# -- guests and volumes ------------------------------------------------------------------------------------------------


async def _job(cluster: Cluster, facts: Facts, request: Request) -> list[str]:
    stored = await read_stored(cluster, Location(f"/cluster/backup/{request.text('id')}"))
    if not stored.exists:
        return []
    name = f"backup job {request.text('id')}"
    now = await _guests(cluster, stored_targets(facts, stored.location.path, stored.options))
    result = predict(request, stored)
    after = now if result is None else await _guests(cluster, stored_targets(facts, stored.location.path, result))
    lines = [f"{name}: {_join_names(now, 'no guest')}"]
    return lines if after == now else [*lines, f"{name}, after the change: {_join_names(after, 'no guest')}"]


async def _guests(cluster: Cluster, things: Sequence[TargetRef]) -> list[str]:
    rows = {str(row.vmid): row for row in await cluster.inventory.named_guests()}
    subjects = Census(rows.values()).subjects([one for one in things if one.kind in (GUEST, GUESTS)])
    reached = [(vmid, rows.get(vmid)) for vmid in dict.fromkeys(one.id for one in subjects)]
    return [f"{row.kind} {vmid} {row.name}".rstrip() if row else f"guest {vmid}, absent" for vmid, row in reached]


async def _pool(cluster: Cluster, facts: Facts, request: Request) -> list[str]:
    location = locate(facts, request)
    stored = await read_stored(cluster, location) if location else None
    if stored is None or not stored.exists:
        return []
    members = [
        f"{_KINDS.get(row.get('type', ''), '')} {row.get('vmid') or row.get('storage')} {row.get('name', '')}".strip()
        for row in stored.options.get("members", ())
    ]
    return [f"pool {stored.location.value}: {_join_names(members, 'no member')}"]


_KINDS: Final = {"qemu": "vm", "lxc": "ct", "openvz": "ct", "storage": "storage"}


async def _storage(cluster: Cluster, _: Facts, request: Request) -> list[str]:
    """Its volumes on every node that can see them."""
    name = request.text("storage")
    places = [row for row in await cluster.inventory.of_type("storage") if row.storage == name]
    places = [row for row in places if row.status == "available"] or places
    shared = bool(places) and bool(places[0].shared)
    volumes: dict[tuple[str, str], Mapping[str, Any]] = {}
    for node in sorted(row.node for row in places)[: 1 if shared else None]:
        for row in await cluster.get(f"/nodes/{node}/storage/{name}/content") or ():
            volumes["" if shared else node, str(row.get("volid"))] = row
    owners = {str(row.get("vmid") or owner(volid) or "") for (_, volid), row in volumes.items()}
    whole = size(sum(int(row.get("size") or 0) for row in volumes.values()))
    guests = await _guests(cluster, [TargetRef(GUEST, vmid) for vmid in sorted(owners - {""}, key=int)])
    of_none = sum(not (row.get("vmid") or owner(volid)) for (_, volid), row in volumes.items())
    about = f"{len(volumes)} volume{'s' * (len(volumes) != 1)}, {whole}" if volumes else "no volumes"
    belonging = [*guests, *([f"no guest: {of_none}"] if of_none else [])]
    return [f"storage {name}: {about}" + (f", of {', '.join(belonging)}" if belonging else "")]


# -- access ------------------------------------------------------------------------------------------------------------


async def _grant(cluster: Cluster, _: Facts, request: Request) -> list[str]:
    lines = []
    for role in request.elements("roles"):
        if not _BUILT_IN_ROLE.fullmatch(role):
            stored = await read_stored(cluster, Location(f"/access/roles/{role}"))
            lines.append(f"role {role} with {_join_names(sorted(stored.options), 'no privileges')}")
    for group in request.elements("groups") if request.has("groups") else ():
        lines += await _members(cluster, group)
    return lines


async def _role(cluster: Cluster, _: Facts, request: Request) -> list[str]:
    role = request.text("roleid")
    holders = [f"{row['ugid']} on {row['path']}" for row in await _entries(cluster, "roleid", role)]
    return [f"role {role}: {_join_names(holders, 'nobody')}"]


async def _group(cluster: Cluster, _: Facts, request: Request) -> list[str]:
    group = request.text("groupid")
    return [*await _members(cluster, group), *await _roles_of(cluster, f"group {group}", group)]


async def _user(cluster: Cluster, _: Facts, request: Request) -> list[str]:
    user, token = request.text("userid"), request.match.values.get("tokenid")
    if token:
        return await _roles_of(cluster, f"token {user}!{token}", f"{user}!{token}")
    stored = await read_stored(cluster, Location(f"/access/users/{user}"))
    tokens = sorted(stored.options.get("tokens") or ())
    lines = [f"tokens of {user}: {', '.join(tokens)}"] if tokens else []
    return [*lines, *await _roles_of(cluster, f"user {user}", user)]


async def _members(cluster: Cluster, group: str) -> list[str]:
    stored = await read_stored(cluster, Location(f"/access/groups/{group}"))
    return [f"group {group}: {_join_names(stored.options.get('members') or (), 'no member')}"]


async def _roles_of(cluster: Cluster, name: str, id: str) -> list[str]:
    roles = [f"{row['roleid']} on {row['path']}" for row in await _entries(cluster, "ugid", id)]
    return [f"{name} with {', '.join(roles)}"] if roles else []


async def _entries(cluster: Cluster, key: str, value: str) -> list[Mapping[str, Any]]:
    stored = await read_stored(cluster, Location(_ACL, key, value))
    return sorted(stored.content or (), key=lambda row: (str(row["path"]), str(row["ugid"])))


async def _ha_group(cluster: Cluster, _: Facts, request: Request) -> list[str]:
    group = request.text("group")
    rows = await cluster.get("/cluster/ha/resources")
    members = sorted(str(row["sid"]) for row in rows or () if row.get("group") == group)
    return [f"HA group {group}: {_join_names(members, 'no resource')}"]


def _join_names(names: Iterable[str], none: str) -> str:
    return ", ".join(names) or none


_DESCRIPTIONS: Final[Mapping[tuple[str, str], Describe]] = {
    **{(method, "/cluster/backup/{id}"): _job for method in ("PUT", "DELETE")},
    **{(method, path): _pool for method in ("PUT", "DELETE") for path in ("/pools", "/pools/{poolid}")},
    **{(method, "/storage/{storage}"): _storage for method in ("PUT", "DELETE")},
    ("PUT", _ACL): _grant,
    **{(method, "/access/roles/{roleid}"): _role for method in ("PUT", "DELETE")},
    **{(method, "/access/groups/{groupid}"): _group for method in ("PUT", "DELETE")},
    **{(method, "/access/users/{userid}"): _user for method in ("PUT", "DELETE")},
    **{(method, "/access/users/{userid}/token/{tokenid}"): _user for method in ("PUT", "DELETE")},
    **{(method, "/cluster/ha/groups/{group}"): _ha_group for method in ("PUT", "DELETE")},
}
