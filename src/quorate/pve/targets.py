"""What rules are about: guests, nodes, storages, pools and hosts, with the facts that rules can match."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from quorate.problems import Refused
from quorate.pve import values
from quorate.pve.inventory import Resource
from quorate.pve.tasks import Upid
from quorate.pve.wire import Request

GUEST, NODE, STORAGE, POOL, GUESTS = "guest", "node", "storage", "pool", "guests"
HOST, DATASTORE = "host", "datastore"
"""No API call of PVE reaches these, but rules can be about them. A datastore is called SERVER/STORE/NAMESPACE."""
BACKUP = "backup"
"""The kind of a step's target: DATASTORE:TYPE/ID, which concerns the datastore and the guest that was backed up."""


@dataclass(frozen=True, slots=True)
class TargetRef:
    """One thing that a call acts on; with GUESTS, all guests of a node, of a pool or of the cluster."""

    kind: str
    id: str = ""
    node: str = ""
    pool: str = ""
    level: str | None = None
    """What the call does to this one, if less than its overall risk."""
    becomes: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """The name, tags and pool that it sets, and the node of a new guest; for a host, all its new values."""
    born: bool = False
    """The call creates the guest."""
    may_run_on: frozenset[str] = frozenset()
    """Other nodes on which the guest may run after the call; `quorate.pve.placement` finds them."""
    without: frozenset[str] = frozenset()
    """Guests that GUESTS does not include."""


_FORMATS: Final = {
    "pve-vmid": GUEST,
    "pve-vmid-list": GUEST,
    "pve-ha-resource-id": GUEST,
    "pve-ha-resource-or-vm-id": GUEST,
    "pve-ha-resource-id-list": GUEST,
    "pve-node": NODE,
    "pve-node-list": NODE,
    "pve-ha-node-list": NODE,
    "pve-ha-group-node-list": NODE,
    "pve-storage-id": STORAGE,
    "pve-storage-id-list": STORAGE,
    "storage-pair-list": STORAGE,
    "pve-poolid": POOL,
}
_UNFORMATTED: Final = {"resource": "pve-ha-resource-id"}
"""Parameters that name targets although their format does not say so."""
_NOT_TARGETS: Final = ("exclude", "clustername", "check-node", "migratedfrom")
_FREE_TEXT: Final = ("description", "notes", "notes-template", "comment", "content", "command", "input-data")
_SOURCES: Final = frozenset({"archive", "ostemplate", "import-from"})
"""Volumes named there are copied, not changed."""
_HOLDS_A_VOLUME: Final = ("archive", "ostemplate", "volume", "hookscript", "base", "vmstate", "cicustom")
_VOLUME_KEYS: Final = ("file", "volume", "import-from", "user", "network", "meta", "vendor")
_DEFAULT_STORAGE: Final = "local"
_TEXT_SEPARATORS: Final = re.compile(r"[,;\s\0]+")

_GUEST_PATH: Final = re.compile(r"/nodes/{node}/(?:qemu|lxc)/{vmid}(?P<sub>/.*)?")
_CREATION: Final = re.compile(r"/nodes/{node}/(?P<type>qemu|lxc)")
_WHOLE_NODE: Final = re.compile(r"/nodes/{node}/(?:start|stop|suspend|migrate)all")
_WHOLE_CLUSTER: Final = re.compile(r"/cluster/bulk-action/guest/\w+|/nodes/{node}/storage/{storage}/prunebackups")
_WITHOUT_HARM: Final = re.compile(r"/nodes/{node}/status|/cluster/ha/status/(?:arm|disarm)-ha")
"""Calls that shut guests down cleanly or end their HA protection; they destroy nothing of a guest."""
_RECEIVERS: Final = re.compile(r"/cluster/(?:metrics/server/{id}|notifications/endpoints/\w+(?:/{name})?)")
"""Endpoints whose receivers get names, load and events of every guest."""
_HOLDS_DISKS: Final = re.compile(r"/nodes/{node}/(?:disks|ceph/(?:pool|fs|osd))/.+")
"""Where the disks of any guest may be: on the node, or with Ceph on all nodes."""
_LEASES: Final = re.compile(r"/cluster/sdn/vnets/{vnet}/ips")
"""Addresses of guests, by the hardware address of any of them."""
_BACKUP: Final = re.compile(r"/nodes/{node}/vzdump|/cluster/backup(?:/{id})?")
_REPLICATION: Final = re.compile(r"(?:/cluster|/nodes/{node})/replication(?:/{id}.*)?")
_FOR_MANY: Final = re.compile(r"vzdump|(?:start|stop|suspend|migrate)all|bulk-\w+")
"""Types of tasks that may work on several guests."""
# A volume belongs to the guest in its name; for a linked clone the last one counts, the others are its base.
_OWNERS: Final = re.compile(
    r"(?<![\w-])(?:(?:vm|base|subvol|basevol)-(?P<a>\d+)-|vzdump-(?:qemu|lxc|openvz)-(?P<b>\d+)-|backup/(?:vm|ct)/(?P<c>\d+)/)"
    r"|^(?:[A-Za-z][\w.-]*:)?(?P<d>\d{3,9})/"
)

_FOLDER: Final = re.compile(r"^(?:[A-Za-z][\w.-]*:)?(?:\d+/[^/]+/)?([1-9]\d{2,8})/[^/]+$")
"""In a file-based storage the folder determines the owner, not the file name."""


def find_targets(request: Request) -> list[TargetRef]:
    """Everything that the request names, without duplicates."""
    return list(
        dict.fromkeys(
            [
                *_from_parameters(request),
                *_from_properties(request),
                *_from_volumes(request),
                *_implied_targets(request),
            ]
        )
    )


def owner(volume: str) -> int | None:
    """The guest that a volume or a backup belongs to."""
    if folder := _FOLDER.search(volume):
        return int(folder[1])
    owners = list(_OWNERS.finditer(volume))
    return int(next(text for text in owners[-1].groups() if text)) if owners else None


@dataclass(frozen=True, slots=True)
class NamedVolume:
    """A volume or path that a parameter names."""

    parameter: str
    volume: str
    copied: bool
    """It is only read."""


def drive_volumes(request: Request) -> list[NamedVolume] | None:
    """The volumes of a request's drives and mount points; None if one of them cannot be parsed."""
    volumes = []
    for name in request.params:
        if values.bus_of(name) not in {*values.DISKS, "unused"} or request.match.endpoint.schema_of(name) is None:
            continue
        parts = request.parts(name)
        volume = (parts or {}).get("file") or (parts or {}).get("volume")
        if parts is None or not volume:
            return None
        volumes.append(NamedVolume(name, volume, copied=False))
        if source := parts.get("import-from"):
            volumes.append(NamedVolume(name, source, copied=True))
    return volumes


def _from_parameters(request: Request) -> Iterator[TargetRef]:
    path = request.match.values
    for name in request.values:
        kind = _kind(request, name)
        if kind is None:
            continue
        if kind == NODE and name in path and ("vmid" in path or "storage" in path):
            continue  # the target is the guest or storage, which includes its node
        for target_id in _each(request.elements(name), kind):
            yield _target(request, kind, name, target_id)


def _from_properties(request: Request) -> Iterator[TargetRef]:
    """What the keys of a property string name, such as the `node` of a device mapping."""
    for name in request.params:
        keys = request.match.endpoint.keys_of(name) or {}
        layouts = {key: str(schema.get("format")) for key, schema in keys.items()}
        kinds = {key: _FORMATS[layout] for key, layout in layouts.items() if layout in _FORMATS}
        usual = next((key for key, schema in keys.items() if schema.get("default_key")), "")
        for element in request.elements(name) if kinds else ():
            for part in element.split(","):
                key, equals, value = part.partition("=") if "=" in part else (usual, "=", part)
                if equals and (kind := kinds.get(key.strip())):
                    yield from (_target(request, kind, name, target_id) for target_id in _each((value,), kind))


def _kind(request: Request, name: str) -> str | None:
    if name in _NOT_TARGETS:
        return None
    spec = request.match.endpoint.parameters.get(name, {})
    layout = _UNFORMATTED.get(name) or spec.get("format") or (spec.get("items") or {}).get("format")
    return _FORMATS.get(layout) if isinstance(layout, str) else None


def _each(elements: Iterable[str], kind: str) -> Iterator[str]:
    """The listed ids as PVE spells them; "" is a guest that cannot be identified."""
    for text in (element.strip() for element in elements):
        if kind == GUEST:  # also vm:100 of the HA manager
            number = text.rpartition(":")[2]
            yield str(int(number)) if number.isascii() and number.isdigit() else ""
        elif kind == STORAGE:  # also from:to
            yield from (storage for storage in text.split(":") if storage and storage != "1")
        elif text:
            yield text.partition(":")[0] if kind == NODE else text  # also pve1:2, with a priority


def _target(request: Request, kind: str, name: str, id: str) -> TargetRef:
    here = request.match.values.get("node", "")
    if kind == GUEST:
        return _guest(request, name, id, here) if id else TargetRef(GUESTS)
    there = request.text("target") or here if name in ("targetstorage", "target-storage") else here
    return TargetRef(kind, id, node={NODE: id, STORAGE: there}.get(kind, ""))


def _guest(request: Request, name: str, id: str, here: str) -> TargetRef:
    template, method = request.template, request.method
    path = _GUEST_PATH.fullmatch(template)
    if path and path["sub"] == "/clone":
        if name == "vmid":
            return TargetRef(GUEST, id, here, level="look_inside")  # it is only copied
        usual = f"Copy-of-{request.match.values['vmid']}"
        there = request.text("target") or here
        return TargetRef(GUEST, id, here, becomes={"name": usual, **_identity(request, there)}, born=True)
    if method == "POST" and (creation := _CREATION.fullmatch(template)):
        usual = f"VM {id}" if creation["type"] == "qemu" else f"CT{id}"
        return TargetRef(GUEST, id, here, becomes={"name": usual, **_identity(request, here)}, born=True)
    if path and path["sub"] == "/config" and method != "GET":
        return TargetRef(GUEST, id, here, becomes=_identity(request))
    if template.startswith("/pools") and method == "PUT":
        return TargetRef(GUEST, id, becomes={"pool": "" if request.is_on("delete") else request.text("poolid")})
    return TargetRef(GUEST, id, here)


def _identity(request: Request, node: str = "") -> dict[str, Any]:
    """The facts that rules match, as the request sets them."""
    deleted = set(request.elements("delete"))
    facts: dict[str, Any] = {}
    for name, known_as in (("name", "name"), ("hostname", "name"), ("pool", "pool")):
        if request.has(name):
            facts[known_as] = request.text(name)
    if request.has("tags") or "tags" in deleted:
        facts["tags"] = request.elements("tags")
    if deleted & {"name", "hostname"}:
        facts["name"] = ""
    return facts | ({"node": node} if node else {})


def _implied_targets(request: Request) -> Iterator[TargetRef]:
    """What the request reaches although no parameter names it."""
    template, path, here = request.template, request.match.values, request.match.values.get("node", "")
    if template == "/access/acl" and request.has("path"):
        yield from _of_acl_path(request.text("path"))
    if _REPLICATION.fullmatch(template) and request.has("id"):
        yield TargetRef(GUEST, request.text("id").partition("-")[0])
    if "upid" in path and Upid.looks_like(path["upid"]):
        yield from _of_task(Upid.parse(path["upid"]), stops=request.method == "DELETE")
    if request.method == "GET":
        return
    if _uses_default_storage(request):
        yield TargetRef(STORAGE, _DEFAULT_STORAGE, here)
    if _WITHOUT_HARM.fullmatch(template):
        yield TargetRef(GUESTS, node=here, level="change")
    elif _RECEIVERS.fullmatch(template) and request.method != "DELETE":
        yield TargetRef(GUESTS, level="read")
    elif _LEASES.fullmatch(template):
        yield TargetRef(GUESTS)
    elif _HOLDS_DISKS.fullmatch(template) and request.method == "DELETE":
        yield TargetRef(GUESTS, node="" if "/ceph/" in template else here)
    elif _WHOLE_NODE.fullmatch(template) and not request.elements("vms"):
        yield TargetRef(GUESTS, node=here)
    elif _WHOLE_CLUSTER.fullmatch(template) and not (request.elements("vms") or request.elements("vmid")):
        yield TargetRef(GUESTS)
    elif _BACKUP.fullmatch(template) and _selects_many(request):
        pool = request.text("pool")  # PVE ignores exclude if there is a pool
        left_out = frozenset() if pool else frozenset(_each(request.elements("exclude"), GUEST))
        yield TargetRef(GUESTS, node=here, pool=pool, without=left_out)
        if pool:
            yield TargetRef(POOL, pool)


def _of_task(task: Upid, *, stops: bool) -> Iterator[TargetRef]:
    """The guest that a task works on. A task for many guests names none, so stopping it concerns all of them."""
    if task.vmid:
        yield TargetRef(GUEST, task.vmid)
    elif stops and _FOR_MANY.fullmatch(task.type):
        yield TargetRef(GUESTS, node="" if task.type.startswith("bulk-") else task.node)


def _uses_default_storage(request: Request) -> bool:
    """A backup, or a disk of a new container, for which no storage is given."""
    if request.method != "POST" or request.has("storage"):
        return False
    if request.template == "/nodes/{node}/vzdump":
        return not request.has("dumpdir")
    named = drive_volumes(request) or []
    bare = any(":" not in drive.volume and not drive.volume.startswith("/") for drive in named)
    return request.template == "/nodes/{node}/lxc" and (bare or not request.has("rootfs"))


def _selects_many(request: Request) -> bool:
    """Without a list of guests, a backup covers all of them or a pool; `exclude` alone means all others.

    For an existing job, the cluster has to be asked.
    """
    selects = request.is_on("all") or any(request.has(name) for name in ("pool", "exclude"))
    return selects or (request.method == "POST" and not request.elements("vmid"))


def _of_acl_path(path: str) -> Iterator[TargetRef]:
    area, _, name = "/".join(part for part in path.strip().split("/") if part).partition("/")
    kind = {"vms": GUEST, "nodes": NODE, "storage": STORAGE, "pool": POOL}.get(area)
    if kind and name:
        for target_id in _each((name,), kind):
            yield TargetRef(kind, target_id, node=target_id if kind == NODE else "") if target_id else TargetRef(GUESTS)
    if kind == POOL:
        yield TargetRef(GUESTS, pool=name)
    elif area in ("", "vms") and not name:
        yield TargetRef(GUESTS)


def _from_volumes(request: Request) -> Iterator[TargetRef]:
    """Storages and owners of the volumes that any parameter names, including those in property strings."""
    here = request.match.values.get("node", "")
    for name, value in request.values.items():
        for text in _texts(value) if name not in _FREE_TEXT else ():
            key, equals, rest = text.partition("=")
            key, volume = (key, rest) if equals else (name, text)
            if (vmid := owner(volume)) is not None:
                yield TargetRef(GUEST, str(vmid), level="look_inside" if {key, name} & _SOURCES else None)
            storage, colon, _ = volume.partition(":")
            if colon and storage and _takes_volumes(name) and (not equals or key in _VOLUME_KEYS):
                yield TargetRef(STORAGE, storage, here)


def _takes_volumes(name: str) -> bool:
    return name in _HOLDS_A_VOLUME or values.bus_of(name) in {*values.DISKS, "unused"}


def _texts(value: str | tuple[str, ...]) -> list[str]:
    parts = (value,) if isinstance(value, str) else value
    return [text for part in parts for text in _TEXT_SEPARATORS.split(part) if text]


@dataclass(frozen=True, slots=True)
class Subject:
    kind: str
    id: str
    name: str | None = None
    """None if unknown: a guest's name is missing while its node is offline. For a host, its address."""
    node: str = ""
    pool: str = ""
    tags: tuple[str, ...] = ()
    """The tags of a guest, or the labels of a host."""
    level: str | None = None
    """What the call does to this one, if less than its overall risk."""
    secret: bool = False
    """The call reaches it without naming it, so a refusal does not name it either: it may be hidden."""
    after: tuple[Subject, ...] = ()
    """The subject after the call, if it sets facts that rules match; several if PVE decides which of them."""

    def becoming(self, after: Subject) -> Subject:
        return replace(self, after=(after,))

    def __str__(self) -> str:
        return f"{self.kind} {self.id}" + (f" {self.name}" if self.name else "")


Hides = Callable[[Subject], Refused | None]
"""Why a caller must not see something; None if it may."""


def subject_of(row: Resource) -> Subject | None:
    """A row of the inventory; None for what rules cannot match."""
    if row.is_guest:
        return Subject(GUEST, str(row.vmid), row.name or None, row.node, row.pool, tuple(row.tag_list))
    match row.type:
        case "node":
            return Subject(NODE, row.node, node=row.node)
        case "storage":
            return Subject(STORAGE, row.storage, node=row.node)
        case "pool":
            return Subject(POOL, row.pool, pool=row.pool)
    return None


class Census:
    """The existing guests, and those that the calls so far would create."""

    def __init__(self, rows: Iterable[Resource]) -> None:
        self._guests = {str(row.vmid): guest for row in rows if row.is_guest and (guest := subject_of(row))}
        self._born: dict[str, Subject] = {}

    @property
    def guests(self) -> Collection[Subject]:
        return self._guests.values()

    def subjects(self, things: Sequence[TargetRef]) -> list[Subject]:
        """What one call reaches. Pass calls in order: a later one may act on what an earlier one creates."""
        subjects: dict[Subject, None] = {}
        for thing in things:
            subjects |= dict.fromkeys(self._subjects_of_many(thing) if thing.kind == GUESTS else [self._subject(thing)])
        return list(subjects)

    def _subject(self, thing: TargetRef) -> Subject:
        if thing.kind != GUEST:
            return Subject(thing.kind, thing.id, node=thing.node, pool=thing.id if thing.kind == POOL else "")
        guest = self._guests.get(thing.id)
        if guest is not None:
            return _with_effect(guest, thing)
        known = self._born.get(thing.id) or Subject(GUEST, thing.id, node=thing.node)
        new = replace(known, **thing.becomes)
        if thing.born or thing.id in self._born:
            self._born[thing.id] = new
        return replace(new, level=thing.level, after=_elsewhere(new, thing))

    def _subjects_of_many(self, thing: TargetRef) -> list[Subject]:
        return [
            _with_effect(guest, thing)
            for guest in self._guests.values()
            if thing.node in ("", guest.node) and _is_within(guest.pool, thing.pool) and guest.id not in thing.without
        ]


def _is_within(pool: str, outer: str) -> bool:
    """Whether a pool is this one or nested in it; an empty `outer` contains every pool."""
    return not outer or pool == outer or pool.startswith(f"{outer}/")


def _with_effect(subject: Subject, thing: TargetRef) -> Subject:
    after = replace(subject, **thing.becomes)
    return replace(subject, level=thing.level, after=((after,) if thing.becomes else ()) + _elsewhere(after, thing))


def _elsewhere(guest: Subject, thing: TargetRef) -> tuple[Subject, ...]:
    return tuple(replace(guest, node=node) for node in sorted(thing.may_run_on))
