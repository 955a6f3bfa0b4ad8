"""The object behind a write: where PVE shows it, its content now, and its content afterwards.

What judges, binds or proves a write looks at this object instead of the parameters of the request: the risk is that of
the result, an approval is void when the object has changed, and "done" means that the object reads as predicted.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from pve_schema.formats import split_list
from pve_schema.schema import Facts
from pve_schema.validation import text_of
from quorate.problems import NotFound, ParameterRejected, ServerFailed
from quorate.pve.values import RAW_VARIABLES, VARIABLES
from quorate.pve.wire import Request, Text
from quorate.secret import HIDDEN

if TYPE_CHECKING:
    from quorate.pve.cluster import Cluster

CONTROL: Final = frozenset(
    {"digest", "delete", "revert", "force", "skiplock", "background_delay", "lock-token", "allow-pending", "moveto"}
)
"""Parameters that say how to write, not what."""

_GUEST: Final = re.compile(r"(?P<guest>/nodes/{node}/(?:qemu|lxc)/{vmid})(?P<sub>/.*)?")
_SNAPSHOT: Final = re.compile(r"/snapshot/{snapname}(?:/rollback|/config)?")
_GUEST_COLLECTIONS: Final = ("/firewall/", "/agent")
"""Below a guest, but not its configuration."""

_POOL: Final = re.compile(r"/pools(?:/{poolid})?")
_INSTEAD: Final = {
    "/nodes/{node}/services/{service}": "/nodes/{node}/services/{service}/state",
    "/nodes/{node}/replication/{id}": "/nodes/{node}/replication/{id}/status",
    "/nodes/{node}/tasks/{upid}": "/nodes/{node}/tasks/{upid}/status",
    "/nodes/{node}/qemu": "/nodes/{node}/qemu/{vmid}/config",
    "/nodes/{node}/lxc": "/nodes/{node}/lxc/{vmid}/config",
    "/nodes/{node}/ceph/pool/{name}": "/nodes/{node}/ceph/pool/{name}/status",
    "/nodes/{node}/ceph/osd/{osdid}": "/nodes/{node}/ceph/osd/{osdid}/metadata",
    "/nodes/{node}/certificates/custom": "/nodes/{node}/certificates/info",
    "/nodes/{node}/certificates/acme/certificate": "/nodes/{node}/certificates/info",
}
"""Objects that PVE shows under another path than the one they are written to, and folders that show only links."""

_UNREADABLE: Final = re.compile(
    r"/access/(?:password|ticket|vncticket|openid/.*|tfa/.*)|/nodes/{node}/(?:execute|wakeonlan|status)"
    r"|/cluster/config|/nodes/{node}/ceph/(?:init|start|stop|restart|osd)"
    r"|/cluster/(?:sdn(?:/lock|/rollback|/vnets/{vnet}/ips)?|bulk-action/.*|ha/status/.*|notifications/targets/.*)"
    r"|/nodes/{node}/(?:(?:start|stop|suspend|migrate)all|vzdump|aplinfo|apt/update|disks/(?:initgpt|wipedisk))"
    r"|/nodes/{node}/storage/{storage}/(?:upload|download-url|oci-registry-pull|content)"
    r"|.*/(?:vncproxy|termproxy|spiceproxy|vncshell|spiceshell|mtunnel|dbus-vmstate)"
)
"""Writes whose effect no object shows, because they act on many or on nothing that is stored."""

_BACKUP_JOB: Final = "/cluster/backup/{id}"
_SELECTIONS: Final = ("vmid", "pool", "all")

_VOLATILE: Final = frozenset(
    {"next-run", "last-run-endtime", "last-run-state", "last-run-upid", "used", "active", "exists", "uptime", "pending"}
    | {"time", "localtime", "last_sync", "next_sync", "last_try", "duration", "fail_count"}
    | {"wearout", "mem_usage", "pid"}
)
"""What PVE computes when it is asked, so it changes while nobody changes anything."""
_ABSENCE: Final = re.compile(
    r"no such |does not exist|not found|not defined|no rule at position|have been migrated to rules"
    r"|binary not installed",
    re.I,
)
"""How PVE says that something is not there, where it does so as a failure (500) or a bad parameter (400)."""
_CONFIGURATION: Final = re.compile(r"/nodes/[^/]+/(?:qemu|lxc)/\d+/config")
"""The digest of a guest covers its snapshots and pending changes, too; elsewhere it is that of a file with others."""
_STORAGE = re.compile(r"/storage(?:/|$)")
_DISKS: Final = re.compile(r"/nodes/[^/]+/disks/list")
"""In this list, `used` names what is on the disk."""
_MEMBER: Final = ("id", "type", "name")
"""The fields of a pool's member that are not measurements."""


@dataclass(frozen=True, slots=True)
class Location:
    """Where PVE shows an object: a path of its own, or a row of a list."""

    path: str
    key: str = ""
    """In a list: the field that names the row; empty if the path shows the object itself."""
    value: str = ""
    query: tuple[tuple[str, str], ...] = ()
    """Parameters of the read."""

    def __str__(self) -> str:
        return f"{self.path} {self.key}={self.value}" if self.key else self.path


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object as PVE showed it; `content` is None if there is none."""

    location: Location
    content: Any

    @property
    def exists(self) -> bool:
        return self.content is not None

    @property
    def options(self) -> Mapping[str, Any]:
        """Its fields; none if it is absent or is a list."""
        return self.content if isinstance(self.content, Mapping) else {}

    @property
    def digest(self) -> str:
        """PVE's own digest, if it has one."""
        return str(self.options.get("digest", ""))

    @property
    def fingerprint(self) -> str:
        """Changes whenever anyone changes the object, and only then: PVE lists rows and fields in any order."""
        if not self.exists:
            return "absent"
        path = self.location.path
        ignored = _VOLATILE if _CONFIGURATION.fullmatch(path) else _VOLATILE | {"digest"}
        content = _canonical(_without_measurements(self.content), ignored - {"used"} if _DISKS.match(path) else ignored)
        return hashlib.sha256(msgspec.json.encode(content, order="sorted")).hexdigest()[:16]


def locate(facts: Facts, request: Request) -> Location | None:
    """Where the object of a write can be read; None if PVE shows none."""
    template, values = request.template, {**request.params, **request.match.values}
    guest = _GUEST.fullmatch(template)
    sub = (guest["sub"] or "") if guest else ""
    if guest and sub.startswith("/snapshot"):
        return _snapshot_location(request, guest["guest"], sub, values)
    if guest and not sub.startswith(_GUEST_COLLECTIONS):
        return _own_location(f"{guest['guest']}/config", values)
    if _UNREADABLE.fullmatch(template) or (guest and sub.startswith("/agent")):
        return None
    if template == "/access/acl":
        return Location(template, "path", _text(values.get("path")))
    if _POOL.fullmatch(template):  # the name of a nested one has a slash, which no path can have
        pool = _text(values.get("poolid"))
        return Location("/pools", "poolid", pool, (("poolid", pool),)) if pool else None
    if shown := _INSTEAD.get(template):
        return _own_location(shown, values)
    if template.endswith("/firewall/rules"):  # a rule has no name, only a position, and positions move
        return _own_location(template, values)
    if request.method == "POST" and (row := _row_of(facts, request, values)):
        return row
    return _nearest_object(facts, request, values)


async def read_stored(cluster: Cluster, location: Location) -> StoredObject:
    """The object as it is now. Raises a Problem if it cannot be read: then nothing is known about it."""
    try:
        shown = await cluster.get(location.path, **dict(location.query))
    except NotFound:
        return StoredObject(location, None)
    except (ParameterRejected, ServerFailed) as problem:
        if not _ABSENCE.search(str(problem)):
            raise
        return StoredObject(location, None)
    if not location.key:
        return StoredObject(location, _in_order(location, {} if shown is None else shown))
    rows = [row for row in shown if isinstance(row, Mapping)] if isinstance(shown, list) else []
    named = [row for row in rows if _text(row.get(location.key)) == location.value]
    if not named:
        return StoredObject(location, None)
    stored = named[0] if len(named) == 1 and location.path != "/access/acl" else named
    return StoredObject(location, _in_order(location, stored))


def _in_order(location: Location, stored: Any) -> Any:
    """A storage with its content types in one order: each of PVE's worker processes lists them in its own."""
    if not _STORAGE.match(location.path) or not isinstance(stored, Mapping) or "content" not in stored:
        return stored
    return {**stored, "content": ",".join(sorted(_text(stored["content"]).split(",")))}


def predict(request: Request, stored: StoredObject) -> Mapping[str, Any] | None:
    """The fields of the object after the write, as far as the request decides them; None if it will be gone."""
    if request.method == "DELETE":
        return None
    removed = {name for name in split_list(_text(request.params.get("delete", ""))) if name}
    kept = {name: value for name, value in stored.options.items() if name not in removed}
    written = sets(request)
    return _predict_job(kept, written) if request.template == _BACKUP_JOB else {**kept, **written}


def _predict_job(kept: dict[str, Any], written: dict[str, Text]) -> dict[str, Any]:
    """A backup job has one selection of guests, which replaces the old one, and one schedule, in either spelling."""
    chosen = next((name for name in _SELECTIONS if written.get(name) not in (None, "", "0")), "")
    if not chosen and written.get("exclude") and not kept.get("pool"):
        chosen = "all"
    replaced = {*(_SELECTIONS if chosen else ()), *(("exclude",) if chosen == "vmid" else ())}
    days, start = _text(written.get("dow")), _text(written.get("starttime"))
    schedule = {"schedule": f"{days.replace(';', ',')} {start}".strip()} if start else {}
    fields = {name: value for name, value in written.items() if name not in ("dow", "starttime")}
    predicted = {**{name: value for name, value in kept.items() if name not in replaced}, **fields, **schedule}
    if predicted.get("pool"):  # PVE looks at exclude only without a pool
        predicted.pop("exclude", None)
    return predicted


def sets(request: Request) -> dict[str, Text]:
    """The fields that the request writes."""
    return {
        name: value
        for name, value in request.params.items()
        if name not in CONTROL and name not in request.match.values
    }


def _own_location(template: str, values: Mapping[str, Text]) -> Location | None:
    path = template
    for name in re.findall(r"{([^}]+)}", template):
        value = _text(values.get(name))
        if not value:
            return None
        path = path.replace(f"{{{name}}}", value)
    return Location(path)


def _snapshot_location(request: Request, guest: str, sub: str, values: Mapping[str, Text]) -> Location | None:
    if _SNAPSHOT.fullmatch(sub):
        return _own_location(f"{guest}/snapshot/{{snapname}}/config", values)
    folder = _own_location(f"{guest}/snapshot", values)
    return folder and Location(folder.path, "name", _text(request.params.get("snapname")))


def _row_of(facts: Facts, request: Request, values: Mapping[str, Text]) -> Location | None:
    """The row of a collection that a POST adds: the parameter that would be the next part of the path names it."""
    folder = _own_location(request.template, values)
    if folder is None or facts.find("GET", folder.path) is None:
        return None
    for name, value in request.params.items():
        text = _text(value)
        member = facts.find("DELETE", f"{folder.path}/{text}") or facts.find("GET", f"{folder.path}/{text}")
        if text and member is not None and member.endpoint.template == f"{request.template}/{{{name}}}":
            return Location(folder.path, name, text)
    return None


def _nearest_object(facts: Facts, request: Request, values: Mapping[str, Text]) -> Location | None:
    """The path itself, or the object that an action such as /migrate is about."""
    template = request.template
    while template:
        location = _own_location(_INSTEAD.get(template, template), values)
        match = facts.find("GET", location.path) if location else None
        if match is not None and not match.endpoint.returns.get("links"):
            return location
        parent, _, last = template.rpartition("/")
        if last.startswith("{"):  # without a page of its own, it may be a row of the list above
            folder = _own_location(parent, values)
            listed = folder and facts.find("GET", folder.path)
            return Location(folder.path, last[1:-1], _text(values.get(last[1:-1]))) if folder and listed else None
        template = parent
    return None


def _without_measurements(content: Any) -> Any:
    """A pool shows its members with their load."""
    if not isinstance(content, Mapping) or not isinstance(content.get("members"), list):
        return content
    members = [
        {name: row[name] for name in _MEMBER if name in row} if isinstance(row, Mapping) else row
        for row in content["members"]
    ]
    return {**content, "members": members}


def _canonical(value: Any, ignored: frozenset[str]) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _canonical(part, ignored) for name, part in value.items() if name not in ignored}
    if isinstance(value, (list, tuple)):
        parts = (_canonical(part, ignored) for part in value)
        return sorted(parts, key=lambda part: msgspec.json.encode(part, order="sorted"))
    return text_of(value) if isinstance(value, (bool, int, float)) else value


def _text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else "" if value is None else text_of(value)


# -- secrets in what PVE returns ---------------------------------------------------------------------------------------

# PVE returns these in plain text; their names alone do not distinguish them from harmless ones.
_SECRETS = {
    "/cluster/acme/plugins": ("data",),
    "/cluster/metrics/server": ("token", "otel-headers"),
    "/cluster/notifications/endpoints": ("header",),
    "/cluster/sdn/dns": ("key",),
    "/cluster/sdn/ipams": ("token",),
    "/access/domains": ("client-key",),
    "/nodes/{node}/subscription": ("key",),
    "/nodes/{node}/lxc": (VARIABLES,),
    "/nodes/{node}/vzdump/extractconfig": (VARIABLES, RAW_VARIABLES),
    "/access/users": ("keys",),
    # of a backup server
    "/config/acme/plugins": ("data",),
    "/config/metrics/influxdb-http": ("token",),
    "/config/notifications/endpoints": ("header", "secret", "token"),
    "/config/access/openid": ("client-key",),
    "/config/s3": ("secret-key",),
    "/config/remote": ("password",),
}
_PASSWORD_LINE = re.compile(r"(?im)^(?P<name>\s*-?\s*(?:hashed_)?passw(?:or)?d\s*:).*$")


def hide_secrets(template: str, value: Any) -> Any:
    """The answer of an endpoint without what must not be seen."""
    names = {name for prefix, names in _SECRETS.items() if template.startswith(prefix) for name in names}
    if isinstance(value, str) and names:  # a configuration file
        named = "|".join(map(re.escape, names))
        value = re.sub(rf"(?m)^(?P<name>(?:{named})(?:\.\w+)?): .*$", rf"\g<name>: {HIDDEN}", value)
    return _hide(value, names)


def _hide(value: Any, names: set[str]) -> Any:
    if isinstance(value, Mapping):
        hidden = names | {"value", "pending"} if value.get("key") in names else names  # a row of pending changes
        return {key: HIDDEN if key in hidden and part else _hide(part, names) for key, part in value.items()}
    if isinstance(value, list):
        if len(value) == 2 and str(value[0]).startswith(RAW_VARIABLES):  # a container's raw options are pairs
            return [value[0], HIDDEN]
        return [_hide(part, names) for part in value]
    return _PASSWORD_LINE.sub(rf"\g<name> {HIDDEN}", value) if isinstance(value, str) else value
