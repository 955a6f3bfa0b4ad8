"""What an API call reaches: the guests, nodes, storages and pools that its path and parameters name.

Rules about targets use this, never the arguments of a tool: two tools that make the same call reach the same things.
What a parameter names follows from its format in the API facts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from quorate.pve import values
from quorate.pve.tasks import Upid
from quorate.pve.wire import Request

GUEST, NODE, STORAGE, POOL, GUESTS = "guest", "node", "storage", "pool", "guests"
HOST = "host"
"""No API call reaches a host, but rules can be about hosts."""


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
    found = list(_OWNERS.finditer(volume))
    return int(next(text for text in found[-1].groups() if text)) if found else None


@dataclass(frozen=True, slots=True)
class NamedVolume:
    """A volume or path that a parameter names."""

    parameter: str
    volume: str
    copied: bool
    """It is only read."""


def drive_volumes(request: Request) -> list[NamedVolume] | None:
    """The volumes of a request's drives and mount points; None if one of them cannot be parsed."""
    found = []
    for name in request.params:
        if values.bus_of(name) not in {*values.DISKS, "unused"} or request.match.endpoint.schema_of(name) is None:
            continue
        parts = request.parts(name)
        volume = (parts or {}).get("file") or (parts or {}).get("volume")
        if parts is None or not volume:
            return None
        found.append(NamedVolume(name, volume, copied=False))
        if source := parts.get("import-from"):
            found.append(NamedVolume(name, source, copied=True))
    return found


def _from_parameters(request: Request) -> Iterator[TargetRef]:
    path = request.match.values
    for name in request.values:
        kind = _kind(request, name)
        if kind is None:
            continue
        if kind == NODE and name in path and ("vmid" in path or "storage" in path):
            continue  # the target is the guest or storage, which includes its node
        for one in _each(request.elements(name), kind):
            yield _one(request, kind, name, one)


def _from_properties(request: Request) -> Iterator[TargetRef]:
    """What the keys of a property string name, such as the `node` of a device mapping."""
    for name in request.params:
        keys = request.match.endpoint.keys_of(name) or {}
        kinds = {
            key: _FORMATS[str(one.get("format"))] for key, one in keys.items() if str(one.get("format")) in _FORMATS
        }
        usual = next((key for key, one in keys.items() if one.get("default_key")), "")
        for element in request.elements(name) if kinds else ():
            for part in element.split(","):
                key, equals, value = part.partition("=") if "=" in part else (usual, "=", part)
                if equals and (kind := kinds.get(key.strip())):
                    yield from (_one(request, kind, name, one) for one in _each((value,), kind))


def _kind(request: Request, name: str) -> str | None:
    if name in _NOT_TARGETS:
        return None
    spec = request.match.endpoint.parameters.get(name, {})
    wanted = _UNFORMATTED.get(name) or spec.get("format") or (spec.get("items") or {}).get("format")
    return _FORMATS.get(wanted) if isinstance(wanted, str) else None


def _each(elements: Iterable[str], kind: str) -> Iterator[str]:
    """The listed ids as PVE spells them; "" is a guest that cannot be identified."""
    for text in (element.strip() for element in elements):
        if kind == GUEST:  # also vm:100 of the HA manager
            number = text.rpartition(":")[2]
            yield str(int(number)) if number.isascii() and number.isdigit() else ""
        elif kind == STORAGE:  # also from:to
            yield from (one for one in text.split(":") if one and one != "1")
        elif text:
            yield text.partition(":")[0] if kind == NODE else text  # also pve1:2, with a priority


def _one(request: Request, kind: str, name: str, id: str) -> TargetRef:
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
    if method == "POST" and (made := _CREATION.fullmatch(template)):
        usual = f"VM {id}" if made["type"] == "qemu" else f"CT{id}"
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
    bare = any(":" not in one.volume and not one.volume.startswith("/") for one in named)
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
        for one in _each((name,), kind):
            yield TargetRef(kind, one, node=one if kind == NODE else "") if one else TargetRef(GUESTS)
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
            if (found := owner(volume)) is not None:
                yield TargetRef(GUEST, str(found), level="look_inside" if {key, name} & _SOURCES else None)
            storage, colon, _ = volume.partition(":")
            if colon and storage and _takes_volumes(name) and (not equals or key in _VOLUME_KEYS):
                yield TargetRef(STORAGE, storage, here)


def _takes_volumes(name: str) -> bool:
    return name in _HOLDS_A_VOLUME or values.bus_of(name) in {*values.DISKS, "unused"}


def _texts(value: str | tuple[str, ...]) -> list[str]:
    parts = (value,) if isinstance(value, str) else value
    return [text for part in parts for text in _TEXT_SEPARATORS.split(part) if text]
