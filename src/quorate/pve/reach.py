"""What a call of the API reaches: the guests, nodes, storages and pools that its path and its parameters name.

Rules about targets are decided on this, never on the arguments of a tool: two tools that make the same call reach the
same things. What a parameter names is read off the API's own facts, by its format.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from quorate.pve.schema import Match
from quorate.pve.tasks import Upid

GUEST, NODE, STORAGE, POOL, GUESTS = "guest", "node", "storage", "pool", "guests"
HOST = "host"
"""No call of the API reaches one; rules are about them all the same."""


@dataclass(frozen=True, slots=True)
class Reached:
    """One thing that a call acts on, or with GUESTS all guests of a node or pool, or simply all."""

    kind: str
    id: str = ""
    node: str = ""
    pool: str = ""
    level: str | None = None
    """How far the call goes with it, where that is less than what the call does as a whole."""
    becomes: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """What of a guest's name, tags, pool and node it sets."""
    born: bool = False
    """The call makes the guest."""


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
_NOT_TARGETS: Final = ("exclude", "clustername", "check-node", "migratedfrom")
_FREE_TEXT: Final = ("description", "notes", "notes-template", "comment", "content", "command", "input-data")
_SOURCES: Final = frozenset({"archive", "ostemplate", "import-from"})
"""Volumes named there are copied and stay as they are."""
_VOLUME_KEYS: Final = ("file", "volume", "import-from")
_TAKES_VOLUMES: Final = re.compile(
    r"(?:scsi|virtio|sata|ide|unused|mp|efidisk|tpmstate)\d+|rootfs|archive|ostemplate|volume|hookscript|base|vmstate"
)
_SEPARATORS: Final = re.compile(r"[,;\s\0]+")

_GUEST_PATH: Final = re.compile(r"/nodes/{node}/(?:qemu|lxc)/{vmid}(?P<sub>/.*)?")
_CREATION: Final = re.compile(r"/nodes/{node}/(?P<type>qemu|lxc)")
_WHOLE_NODE: Final = re.compile(r"/nodes/{node}/(?:start|stop|suspend|migrate)all")
_WHOLE_CLUSTER: Final = re.compile(r"/cluster/bulk-action/guest/\w+|/nodes/{node}/storage/{storage}/prunebackups")
_BACKUP: Final = re.compile(r"/nodes/{node}/vzdump|/cluster/backup(?:/{id})?")
_REPLICATION: Final = re.compile(r"(?:/cluster|/nodes/{node})/replication(?:/{id}.*)?")
_MOVES: Final = re.compile(
    r"/nodes/{node}/(?:(?:qemu|lxc)/{vmid}/migrate|migrateall)|/cluster/bulk-action/guest/migrate"
    r"|/cluster/ha/resources/{sid}/(?:migrate|relocate)"
)
# A volume belongs to the guest that its name names; of a linked clone the last name counts, the others are its base.
_OWNERS: Final = re.compile(
    r"(?<![\w-])(?:(?:vm|base|subvol|basevol)-(?P<a>\d+)-|vzdump-(?:qemu|lxc|openvz)-(?P<b>\d+)-|backup/(?:vm|ct)/(?P<c>\d+)/)"
    r"|^(?:[A-Za-z][\w.-]*:)?(?P<d>\d{3,9})/"
)


def reached(match: Match, params: Mapping[str, Any]) -> list[Reached]:
    """Everything that the call names, each once."""
    volumes = _volumes({**match.values, **params}, str(match.values.get("node", "")))
    return list(dict.fromkeys([*_named(match, params), *volumes, *_implied(match, params)]))


def owner(volume: str) -> int | None:
    """The guest that a volume or a backup belongs to."""
    found = list(_OWNERS.finditer(volume))
    return int(next(text for text in found[-1].groups() if text)) if found else None


def _named(match: Match, params: Mapping[str, Any]) -> Iterator[Reached]:
    for name, value in {**match.values, **params}.items():
        kind = _kind(match, name)
        if kind is None or value is None:
            continue
        if kind == NODE and name in match.values and ("vmid" in match.values or "storage" in match.values):
            continue  # the guest or the storage is meant; its node is told with it
        for one in _each(value, kind):
            yield _one(match, params, kind, name, one)


def _kind(match: Match, name: str) -> str | None:
    if name in _NOT_TARGETS:
        return None
    spec = match.endpoint.parameters.get(name, {})
    wanted = spec.get("format") or (spec.get("items") or {}).get("format")
    return _FORMATS.get(wanted) if isinstance(wanted, str) else None


def _each(value: Any, kind: str) -> Iterator[str]:
    """The things that a value lists, in the one spelling that PVE's own answers have."""
    parts = value if isinstance(value, (list, tuple)) else _SEPARATORS.split(str(value))
    for text in (str(part).strip() for part in parts):
        if kind == GUEST:  # also vm:100 of the HA manager
            number = text.rpartition(":")[2]
            if number.isascii() and number.isdigit():
                yield str(int(number))
        elif kind == STORAGE:  # also from:to
            yield from (one for one in text.split(":") if one and one != "1")
        elif text:
            yield text.partition(":")[0] if kind == NODE else text  # also pve1:2, with a priority


def _one(match: Match, params: Mapping[str, Any], kind: str, name: str, id: str) -> Reached:
    here = str(match.values.get("node", ""))
    if kind == GUEST:
        return _guest(match, params, name, id, here)
    there = str(params.get("target") or here) if name in ("targetstorage", "target-storage") else here
    return Reached(kind, id, node={NODE: id, STORAGE: there}.get(kind, ""))


def _guest(match: Match, params: Mapping[str, Any], name: str, id: str, here: str) -> Reached:
    template, method = match.endpoint.template, match.endpoint.method
    path = _GUEST_PATH.fullmatch(template)
    if path and path["sub"] == "/clone":
        if name == "vmid":
            return Reached(GUEST, id, here, level="look_inside")  # it is copied, and stays as it is
        usual = f"Copy-of-{match.values['vmid']}"
        there = str(params.get("target") or here)
        return Reached(GUEST, id, here, becomes={"name": usual, **_identity(params, there)}, born=True)
    if method == "POST" and (made := _CREATION.fullmatch(template)):
        usual = f"VM {id}" if made["type"] == "qemu" else f"CT{id}"
        return Reached(GUEST, id, here, becomes={"name": usual, **_identity(params, here)}, born=True)
    if path and path["sub"] == "/config" and method != "GET":
        return Reached(GUEST, id, here, becomes=_identity(params))
    if _MOVES.fullmatch(template):
        return Reached(GUEST, id, here, becomes=_identity({}, str(params.get("target") or params.get("node") or "")))
    if template.startswith("/pools") and method == "PUT":
        pool = match.values.get("poolid", params.get("poolid", ""))
        return Reached(GUEST, id, becomes={"pool": "" if _is_on(params.get("delete")) else str(pool)})
    return Reached(GUEST, id, here)


def _identity(params: Mapping[str, Any], node: str = "") -> dict[str, Any]:
    """What these parameters make of the facts that rules rest on."""
    deleted = set(_texts(params.get("delete")))
    facts: dict[str, Any] = {}
    for name, known_as in (("name", "name"), ("hostname", "name"), ("pool", "pool")):
        if params.get(name) is not None:
            facts[known_as] = str(params[name])
    if params.get("tags") is not None or "tags" in deleted:
        facts["tags"] = tuple(_texts(params.get("tags")))
    if deleted & {"name", "hostname"}:
        facts["name"] = ""
    return facts | ({"node": node} if node else {})


def _implied(match: Match, params: Mapping[str, Any]) -> Iterator[Reached]:
    """What is reached without being named by a parameter of its own."""
    template, here = match.endpoint.template, str(match.values.get("node", ""))
    if template == "/access/acl" and params.get("path"):
        yield from _of_acl_path(str(params["path"]))
    if _REPLICATION.fullmatch(template) and (job := match.values.get("id") or params.get("id")):
        yield Reached(GUEST, str(job).partition("-")[0])
    if "upid" in match.values and Upid.looks_like(match.values["upid"]):
        task = Upid.parse(match.values["upid"])
        if task.id.isascii() and task.id.isdigit():
            yield Reached(GUEST, str(int(task.id)))
    if match.endpoint.method == "GET":
        return
    if template == "/nodes/{node}/status":
        yield Reached(GUESTS, node=here, level="change")  # they are shut down in good order
    elif _WHOLE_NODE.fullmatch(template) and not params.get("vms"):
        yield Reached(GUESTS, node=here, becomes=_identity({}, str(params.get("target") or "")))
    elif _WHOLE_CLUSTER.fullmatch(template) and not (params.get("vms") or params.get("vmid")):
        yield Reached(GUESTS, becomes=_identity({}, str(params.get("target") or "")))
    elif _BACKUP.fullmatch(template) and (_is_on(params.get("all")) or params.get("pool")):
        yield Reached(GUESTS, node=here, pool=str(params.get("pool") or ""))


def _of_acl_path(path: str) -> Iterator[Reached]:
    area, _, name = "/".join(part for part in path.strip().split("/") if part).partition("/")
    kind = {"vms": GUEST, "nodes": NODE, "storage": STORAGE, "pool": POOL}.get(area)
    if kind and name:
        yield from (Reached(kind, one, node=one if kind == NODE else "") for one in _each(name, kind))
    if kind == POOL:
        yield Reached(GUESTS, pool=name)
    elif area in ("", "vms") and not name:
        yield Reached(GUESTS)


def _volumes(values: Mapping[str, Any], here: str) -> Iterator[Reached]:
    """Storages and owners of the volumes that any parameter names, also within a property string."""
    for name, value in values.items():
        for text in _texts(value) if name not in _FREE_TEXT else ():
            key, equals, rest = text.partition("=")
            key, volume = (key, rest) if equals else (name, text)
            if (found := owner(volume)) is not None:
                yield Reached(GUEST, str(found), level="look_inside" if {key, name} & _SOURCES else None)
            storage, colon, _ = volume.partition(":")
            if colon and storage and _TAKES_VOLUMES.fullmatch(name) and (not equals or key in _VOLUME_KEYS):
                yield Reached(STORAGE, storage, here)


def _texts(value: Any) -> list[str]:
    parts: Iterable[Any] = value if isinstance(value, (list, tuple)) else (value,)
    return [text for part in parts if part is not None for text in _SEPARATORS.split(str(part)) if text]


def _is_on(value: Any) -> bool:
    return str(value).strip().lower() not in ("", "0", "false", "no", "off", "none")
