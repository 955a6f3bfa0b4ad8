"""Everything that a plan touches, as it is now: the plan was judged and approved for these objects and no others.

A model can ask for a deletion and, while the person reads the question, change what the name stands for with a call
that needs no approval. So each object behind a call is read when the question is made and again before acting, with
what it depends on: the guests of a job, the privileges of a role, the members of a group, the definition of a storage.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import msgspec

from pve_schema.schema import Facts
from quorate.hints import GUEST_LIST, Advice
from quorate.operations.backend import Backend
from quorate.operations.plan import Action, Call, Plan, Target
from quorate.pipeline.reach import reach_of_call, stored_reach
from quorate.problems import Conflict, NotFound, Problem
from quorate.pve import values
from quorate.pve.cluster import Cluster
from quorate.pve.inventory import Resource
from quorate.pve.stored_objects import Location, locate, read_stored
from quorate.pve.subjects import Census
from quorate.pve.targets import GUEST, GUESTS, HOST, STORAGE, TargetRef, drive_volumes
from quorate.pve.tasks import gather_bounded
from quorate.pve.wire import Request, read

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
    found: dict[str, BoundObject] = {}
    for where, part in plan.parts():
        prefix = f"{where.name} " if where else ""
        for one in await _bound_in_part(where or backend, part):
            found[prefix + one.name] = BoundObject(prefix + one.name, one.state)
    return list(found.values())


def describe_changes(before: str, now: str) -> str:
    """The names of the objects that differ between two identities."""
    then = before.split("; ")
    changed = [one.rpartition(": ")[0] for one in now.split("; ") if one not in then]
    gone = [one.rpartition(": ")[0] for one in then if one not in now.split("; ")]
    return ", ".join(dict.fromkeys(one for one in (*changed, *gone) if one))


async def _bound_in_part(backend: Backend, plan: Plan) -> list[BoundObject]:
    targets = list(dict.fromkeys(step.target for step in plan.calls if step.target is not None))
    hosts = [target for target in targets if target.kind == HOST]
    calls = [call for step in plan.calls for call in _binding_calls(step)]
    guests = [target for target in targets if target.kind in KINDS]
    found = [await _bind_host(backend, target) for target in hosts]
    if calls or guests:
        reading = _Reading(backend.api, await backend.api.facts(), plan)
        found += await reading.bind(calls, guests)
    return found


def _binding_calls(step: Call | Action) -> Sequence[Call]:
    """Not the examples of a run: each of its steps is a change that is bound when it is made."""
    if isinstance(step, Call):
        return (step,)
    return () if step.later else step.needs


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
        locations = [Location(f"/nodes/{one.node}/{KINDS[one.kind]}/{one.id}/config") for one in targets]
        for _, request in requests:
            locations += await self._locations(request)
        locations += [Location("/storage", "storage", one.id) for _, one in things if one.kind == STORAGE]
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
        found = []
        for call, request in requests:
            refs = [
                *reach_of_call(call, self.facts),
                *await _require_verified(stored_reach(self.cluster, self.facts, call)),
            ]
            found += [(request, one) for one in refs if one.level != "read"]
        return found

    async def _locations(self, request: Request) -> list[Location]:
        template = request.template
        if _SDN_APPLY.fullmatch(template):
            return await self._pending_networks()
        if template == _PRUNE:  # the same path previews what would be deleted
            path = f"/nodes/{request.text('node')}/storage/{request.text('storage')}/prunebackups"
            return [Location(path, query=tuple((name, _plain(value)) for name, value in request.params.items()))]
        own = locate(self.facts, request)
        related = [*([own] if own else []), *_related_locations(request)]
        if own is not None and own.path.startswith("/cluster/backup/"):  # the storage may decide what a job prunes
            job = await _require_verified(read_stored(self.cluster, own))
            related += [Location("/storage", "storage", str(name)) for name in [job.options.get("storage")] if name]
        return related

    async def _pending_networks(self) -> list[Location]:
        """Everything that is applied with the networks: whatever waits there when the call is made."""
        found = []
        for folder in _SDN_FOLDERS:
            match = self.facts.find("GET", f"/cluster/sdn/{folder}")
            if match is not None:
                query = (("pending", "1"),) if "pending" in match.endpoint.parameters else ()
                found.append(Location(f"/cluster/sdn/{folder}", query=query))
        vnets = await _require_verified(self.cluster.get("/cluster/sdn/vnets"))
        subnets = (f"/cluster/sdn/vnets/{row['vnet']}/subnets" for row in vnets or ())
        return [*found, *(Location(path, query=(("pending", "1"),)) for path in subnets)]

    async def _bind_location(self, location: Location) -> BoundObject:
        stored = await _require_verified(read_stored(self.cluster, location))
        return BoundObject(str(location), stored.fingerprint)

    async def _bind_guest(self, target: Target, *, power: bool) -> BoundObject:
        """A guest by the facts that the plan names it by, as its node reports them."""
        try:
            row = await _require_verified(self.cluster.inventory.fresh_guest(int(target.id)))
        except NotFound:
            if int(target.id) in self.plan.claimed_vmids:  # it does not exist yet
                return BoundObject(str(target), "new")
            raise Conflict(
                f"{target} no longer exists", next_step=Advice("Nothing was done. See what exists", GUEST_LIST)
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
        many = [(request, one) for request, one in things if one.kind in (GUEST, GUESTS) and not _is_own(request, one)]
        if not many:
            return []
        everyone = any(one.kind == GUESTS for _, one in many)
        vmids = None if everyone else {int(one.id) for _, one in many if one.id.isdecimal()}
        listed = await _require_verified(self.cluster.inventory.guests_with_fresh_names(vmids))
        rows = {str(row.vmid): row for row in listed}
        census = Census(rows.values())
        found: dict[str, dict[str, str]] = {}
        for request, thing in many:
            power = _POWERS_MANY.fullmatch(request.template) is not None
            reached = found.setdefault(f"guests reached by {request.method} {_path_of(request)}", {})
            for subject in census.subjects([thing]):
                row = rows.get(subject.id)
                reached[subject.id] = f"{row.name} {row.status if power else ''}" if row else "absent"
        return [BoundObject(name, _fingerprint(reached)) for name, reached in found.items()]


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
    """Whether it is the guest of the path, whose configuration is bound, or one that the call creates."""
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
            yield from (Location(f"{folder}/{one}") for one in request.elements(name) if one)
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
    named += [one.volume for one in drive_volumes(request) or ()] if request.has("node") else []
    yield from (one for one in named if ":" in one and not one.startswith("/") and not _NEW_VOLUME.fullmatch(one))


def _plain(value: str | tuple[str, ...]) -> str:
    return value if isinstance(value, str) else ",".join(value)


def _fingerprint(reached: Mapping[str, str]) -> str:
    return hashlib.sha256(msgspec.json.encode(reached, order="sorted")).hexdigest()[:16]
