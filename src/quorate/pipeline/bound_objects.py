"""Whom the stored objects of a plan reach, in words: a person who approves sees the guests of a job, not only its name.

The lines are made from the calls, so named tools and raw API calls read the same.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import msgspec

from pve_schema.schema import Facts
from quorate.hints import Advice, tools
from quorate.operations.backend import Backend
from quorate.operations.plan import Action, Call, Plan, Target
from quorate.pipeline.authorization import reach_of_call, stored_reach, stored_targets
from quorate.problems import Conflict, NotFound, PermissionMissing, Problem
from quorate.pve import values
from quorate.pve.cluster import Cluster
from quorate.pve.inventory import Resource
from quorate.pve.stored_objects import Location, locate, predict, read_stored
from quorate.pve.targets import GUEST, GUESTS, HOST, STORAGE, Census, TargetRef, drive_volumes, owner
from quorate.pve.tasks import gather_bounded
from quorate.pve.wire import Request, read
from quorate.units import size

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
    subjects = Census(rows.values()).subjects([thing for thing in things if thing.kind in (GUEST, GUESTS)])
    reached = [(vmid, rows.get(vmid)) for vmid in dict.fromkeys(subject.id for subject in subjects)]
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


READS_AT_ONCE: Final = 16
KINDS: Final = {"vm": "qemu", "ct": "lxc"}
"""The guests among the targets."""

_GUEST: Final = re.compile(r"/nodes/{node}/(?:qemu|lxc)(?:/{vmid}(?P<sub>/.*)?)?")
_POWERLESS: Final = re.compile(r"/(?:firewall|agent)(?:/.*)?")
"""What does the same to a guest whether it runs or not."""
_POWERS_MANY: Final = re.compile(
    r"/nodes/{node}/(?:(?:start|stop|suspend|migrate)all|status)|/cluster/bulk-action/guest/.*|/cluster/ha/.*"
)
_SDN_APPLY: Final = re.compile(r"/cluster/sdn(?:/rollback)?")
_SDN_FOLDERS: Final = ("zones", "vnets", "controllers", "dns", "ipams", "fabrics/fabric", "fabrics/node")
_PRUNE: Final = "/nodes/{node}/storage/{storage}/prunebackups"
_DISK_PARAMETERS: Final = ("disk", "device", "devices", "dev", "db_dev", "wal_dev")
_DISK_QUERY: Final = (("include-partitions", "1"), ("skipsmart", "1"))
_VOLUME_PARAMETERS: Final = ("archive", "ostemplate")
_NEW_VOLUME: Final = re.compile(r"[^:]+:[\d.]+")
"""`local-lvm:32`: 32 GiB that do not exist yet."""
_MAPPINGS: Final = {"hostpci": ("pci", "mapping"), "usb": ("usb", "mapping"), "virtiofs": ("dir", "dirid")}
_GRANTED: Final = {"roles": "/access/roles", "groups": "/access/groups", "users": "/access/users"}


@dataclass(frozen=True, slots=True)
class BoundObject:
    name: str
    state: str
    """Differs whenever the object does."""

    def __str__(self) -> str:
        return f"{self.name}: {self.state}"


async def read_bound_objects(backend: Backend, plan: Plan) -> list[BoundObject]:
    """Raises a Problem if something cannot be read: nobody can approve what nobody can see."""
    objects: dict[str, BoundObject] = {}
    for where, part in plan.parts():
        prefix = f"{where.name} " if where else ""
        for bound in await _bound_in_part(where or backend, part):
            objects[prefix + bound.name] = BoundObject(prefix + bound.name, bound.state)
    return list(objects.values())


def describe_changes(before: str, now: str) -> str:
    """The names of the objects that differ between two identities."""
    then = before.split("; ")
    changed = [line.rpartition(": ")[0] for line in now.split("; ") if line not in then]
    gone = [line.rpartition(": ")[0] for line in then if line not in now.split("; ")]
    return ", ".join(dict.fromkeys(name for name in (*changed, *gone) if name))


async def _bound_in_part(backend: Backend, plan: Plan) -> list[BoundObject]:
    targets = list(dict.fromkeys(step.target for step in plan.calls if step.target is not None))
    hosts = [target for target in targets if target.kind == HOST]
    calls = [call for step in plan.calls for call in _binding_calls(step)]
    guests = [target for target in targets if target.kind in KINDS]
    objects = [await _bind_host(backend, target) for target in hosts]
    if calls or guests:
        reading = _Reading(backend.api, await backend.api.facts(), plan)
        objects += await reading.bind(calls, guests)
    return objects


def _binding_calls(step: Call | Action) -> Sequence[Call]:
    """Not the examples of a run: each of its steps is a change that is bound when it is made. Nor reads."""
    if isinstance(step, Call):
        return (step,)
    return () if step.later else [call for call in step.needs if call.method != "GET"]


async def _bind_host(backend: Backend, target: Target) -> BoundObject:
    from quorate.homelab.homelab import Homelab  # plans of clusters have no hosts

    assert isinstance(backend, Homelab)
    return BoundObject(str(target), await backend.identity(target.id))


@dataclass(slots=True)
class _Reading:
    """One look at everything that the calls of a plan touch in one cluster."""

    cluster: Cluster
    facts: Facts
    plan: Plan

    async def bind(self, calls: Sequence[Call], targets: Sequence[Target]) -> list[BoundObject]:
        self.cluster.forget()  # what counts is how things are now
        known = ((call, read(self.facts, call.method, call.path, call.params)) for call in calls)
        requests = [(call, request) for call, request in known if request is not None]
        things = await self._reach(requests)
        locations = [Location(f"/nodes/{target.node}/{KINDS[target.kind]}/{target.id}/config") for target in targets]
        for _, request in requests:
            locations += await self._locations(request)
        locations += [Location("/storage", "storage", thing.id) for _, thing in things if thing.kind == STORAGE]
        named = {target.id for target in targets}
        powered = {request.text("vmid"): request for _, request in requests if _has_power(request)}
        jobs: list[Callable[[], Awaitable[BoundObject]]] = [
            *(partial(self._bind_guest, target, power=target.id in powered) for target in targets),
            *(partial(self._bind_power, request) for vmid, request in powered.items() if vmid not in named),
            *(partial(self._bind_location, location) for location in dict.fromkeys(locations)),
        ]
        return [*await gather_bounded(READS_AT_ONCE, jobs), *await self._bind_many(things)]

    async def _reach(self, requests: Sequence[tuple[Call, Request]]) -> list[tuple[Request, TargetRef]]:
        """What each call reaches, as written and by the object that it changes."""
        things = []
        for call, request in requests:
            refs = [
                *reach_of_call(call, self.facts),
                *await _require_verified(stored_reach(self.cluster, self.facts, call)),
            ]
            things += [(request, ref) for ref in refs if ref.level != "read"]
        return things

    async def _locations(self, request: Request) -> list[Location]:
        template = request.template
        if _SDN_APPLY.fullmatch(template):
            return await self._pending_networks()
        if template == _PRUNE:  # the same path previews what would be deleted
            path = f"/nodes/{request.text('node')}/storage/{request.text('storage')}/prunebackups"
            return [Location(path, query=tuple((name, request.text(name)) for name in request.params))]
        own = locate(self.facts, request)
        related = [*([own] if own else []), *_related_locations(request)]
        if own is not None and own.path.startswith("/cluster/backup/"):  # the storage may decide what a job prunes
            job = await _require_verified(read_stored(self.cluster, own))
            related += [Location("/storage", "storage", str(name)) for name in [job.options.get("storage")] if name]
        return related

    async def _pending_networks(self) -> list[Location]:
        """Everything that is applied with the networks: whatever waits there when the call is made."""
        locations = []
        for folder in _SDN_FOLDERS:
            match = self.facts.find("GET", f"/cluster/sdn/{folder}")
            if match is not None:
                query = (("pending", "1"),) if "pending" in match.endpoint.parameters else ()
                locations.append(Location(f"/cluster/sdn/{folder}", query=query))
        vnets = await _require_verified(self.cluster.get("/cluster/sdn/vnets"))
        subnets = (f"/cluster/sdn/vnets/{row['vnet']}/subnets" for row in vnets or ())
        return [*locations, *(Location(path, query=(("pending", "1"),)) for path in subnets)]

    async def _bind_location(self, location: Location) -> BoundObject:
        try:
            stored = await _require_verified(read_stored(self.cluster, location))
        except PermissionMissing:
            if location.path not in self._unborn_in_pools():
                raise
            return BoundObject(str(location), "new")
        return BoundObject(str(location), stored.fingerprint)

    def _unborn_in_pools(self) -> set[str]:
        """The configurations of guests that the plan creates in a pool: privileges on the pool show none before.

        PVE refuses to create a guest that exists, so there is nothing else to verify.
        """
        calls = [call for call in self.plan.api_calls if call.params.get("pool") and not call.params.get("force")]
        targets = {call.target for call in calls if call.target is not None and call.target.kind in KINDS}
        return {f"/nodes/{target.node}/{KINDS[target.kind]}/{target.id}/config" for target in targets}

    async def _bind_guest(self, target: Target, *, power: bool) -> BoundObject:
        """A guest by the facts that the plan names it by, as its node reports them."""
        try:
            row = await _require_verified(self.cluster.inventory.fresh_guest(int(target.id)))
        except NotFound:
            if int(target.id) in self.plan.claimed_vmids:  # it does not exist yet
                return BoundObject(str(target), "new")
            raise Conflict(
                f"{target} no longer exists", next_step=Advice("Nothing was done. See what exists", tools.guest_list)
            ) from None
        _refuse_other_guest(target, row)
        return BoundObject(str(target), f"on {row.node}" + (f" {row.status}" if power else ""))

    async def _bind_power(self, request: Request) -> BoundObject:
        """The state of a guest that the plan only addresses by its path."""
        node, kind = request.text("node"), "qemu" if "/qemu" in request.template else "lxc"
        location = Location(f"/nodes/{node}/{kind}/{request.text('vmid')}/status/current")
        stored = await _require_verified(read_stored(self.cluster, location))
        return BoundObject(str(location), str(stored.options.get("status", "absent")))

    async def _bind_many(self, things: Sequence[tuple[Request, TargetRef]]) -> list[BoundObject]:
        """The guests that are reached as all of a node, a pool or a job, or through an object that lists them."""
        many = [
            (request, thing)
            for request, thing in things
            if thing.kind in (GUEST, GUESTS) and not _is_own(request, thing)
        ]
        if not many:
            return []
        everyone = any(thing.kind == GUESTS for _, thing in many)
        vmids = None if everyone else {int(thing.id) for _, thing in many if thing.id.isdecimal()}
        listed = await _require_verified(self.cluster.inventory.guests_with_fresh_names(vmids))
        rows = {str(row.vmid): row for row in listed}
        census = Census(rows.values())
        states: dict[str, dict[str, str]] = {}
        for request, thing in many:
            power = _POWERS_MANY.fullmatch(request.template) is not None
            reached = states.setdefault(f"guests reached by {request.method} {_path_of(request)}", {})
            for subject in census.subjects([thing]):
                row = rows.get(subject.id)
                reached[subject.id] = f"{row.name} {row.status if power else ''}" if row else "absent"
        return [BoundObject(name, _fingerprint(reached)) for name, reached in states.items()]


def _refuse_other_guest(target: Target, row: Resource) -> None:
    renamed = row.name and target.name and row.name != target.name
    if (row.kind, row.node) != (target.kind, target.node) or renamed:
        raise Conflict(f"{target} has become {row}", next_step="Nothing was done. Look again, then decide")


async def _require_verified(reading: Awaitable[Any]) -> Any:
    """What was read; a failure says what it means for the call."""
    try:
        return await reading
    except NotFound:
        raise
    except Problem as problem:
        problem.what = f"What this acts on cannot be verified, so nothing was done: {problem.what}"
        raise


def _has_power(request: Request) -> bool:
    """Whether the call does something else to a guest that runs than to one that is stopped."""
    guest = _GUEST.fullmatch(request.template)
    return guest is not None and bool(request.text("vmid")) and not _POWERLESS.fullmatch(guest["sub"] or "")


def _is_own(request: Request, thing: TargetRef) -> bool:
    """A guest that the path names, whose configuration is bound anyway, or one that the call creates."""
    in_path = _GUEST.fullmatch(request.template) is not None and thing.id == request.text("vmid")
    return thing.born or (thing.kind == GUEST and in_path)


def _path_of(request: Request) -> str:
    return request.template.format_map(_PathValues(request.match.values))


class _PathValues(dict[str, str]):
    def __missing__(self, name: str) -> str:
        return name


def _related_locations(request: Request) -> Iterator[Location]:
    """What decides the effect of a call in addition to its own object."""
    template, node = request.template, request.text("node")
    if template.startswith("/access/"):
        yield from _access_locations(request)
    if template.endswith("/{pos}"):  # what one rule does depends on those around it
        yield Location(_path_of(request).rpartition("/")[0])
    if template.startswith("/cluster/ha/groups/"):
        yield Location("/cluster/ha/resources", "group", request.text("group"))
    if request.has("storage") and request.text("storage"):
        yield Location("/storage", "storage", request.text("storage"))
    for volume in _volumes(request):
        storage = volume.partition(":")[0]
        yield Location(f"/nodes/{node}/storage/{storage}/content", "volid", volume)
    if template.startswith(("/nodes/{node}/disks/", "/nodes/{node}/ceph/")):
        devices = [device for name in _DISK_PARAMETERS if request.has(name) for device in request.elements(name)]
        yield from (Location(f"/nodes/{node}/disks/list", "devpath", device, _DISK_QUERY) for device in devices)
    for name in request.params:
        kind, key = _MAPPINGS.get(values.bus_of(name) or "", ("", ""))
        if kind and (mapping := (request.parts(name) or {}).get(key)):
            yield Location(f"/cluster/mapping/{kind}/{mapping}")


def _access_locations(request: Request) -> Iterator[Location]:
    """Roles, groups and users that are granted or that are granted something, and the roles they already have."""
    acl = "/access/acl"
    for name, folder in _GRANTED.items():
        if request.has(name):
            yield from (Location(f"{folder}/{element}") for element in request.elements(name) if element)
    if request.has("tokens"):
        for token in request.elements("tokens"):
            user, _, name = token.partition("!")
            yield Location(f"/access/users/{user}/token/{name}")
    if role := request.match.values.get("roleid"):
        yield Location(acl, "roleid", role)
    if group := request.match.values.get("groupid"):
        yield Location(acl, "ugid", group)
    if request.has("userid") and (user := request.text("userid")):
        yield Location(f"/access/users/{user}")
        yield Location(acl, "ugid", user)
        if token_name := request.match.values.get("tokenid"):
            yield Location(acl, "ugid", f"{user}!{token_name}")


def _volumes(request: Request) -> Iterator[str]:
    """The existing volumes that a call deletes, attaches, copies or restores."""
    if "{volume}" in request.template:
        volume = request.text("volume")
        yield volume if ":" in volume else f"{request.text('storage')}:{volume}"
    named = [request.text(name) for name in _VOLUME_PARAMETERS if request.has(name)]
    named += [drive.volume for drive in drive_volumes(request) or ()] if request.has("node") else []
    yield from (
        volid for volid in named if ":" in volid and not volid.startswith("/") and not _NEW_VOLUME.fullmatch(volid)
    )


def _fingerprint(reached: Mapping[str, str]) -> str:
    return hashlib.sha256(msgspec.json.encode(reached, order="sorted")).hexdigest()[:16]
