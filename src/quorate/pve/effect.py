"""The effect of a write, derived from its wire form: which object shows it, what was there before, what is there now.

`expected_effect` says where to look, `remember` keeps what was seen before the first send, and `judge` compares. Only
marks (short hashes) of the fields that the request decides are kept, so the journal can hold them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

import msgspec

from pve_schema.formats import split_list
from pve_schema.schema import Facts
from pve_schema.validation import text_of
from quorate.pve import values
from quorate.pve.stored_objects import Location, StoredObject, locate, sets
from quorate.pve.wire import Request, Text
from quorate.secret import HIDDEN, secret_parameters

_GUEST: Final = "/nodes/{node}/(?:qemu|lxc)"
_NEW_GUEST: Final = re.compile(_GUEST)
_CLONE: Final = re.compile(rf"{_GUEST}/{{vmid}}/clone")
_MIGRATE: Final = re.compile(rf"{_GUEST}/{{vmid}}/migrate")
_RULES: Final = re.compile(r"(?P<list>.*/firewall/rules|/cluster/firewall/groups/{group})(?:/{pos})?")
_ACL, _POOLS, _ROLE, _USER = "/access/acl", re.compile(r"/pools(?:/{poolid})?"), "/access/roles/", "/access/users/"
_CLUSTER_FIREWALL: Final = "/cluster/firewall/options"
_ZERO_IS_UNSET: Final = ("boolean", "integer")
_RENAMED: Final = re.compile(r".*/firewall/(?:aliases/{name}|ipset|groups)")
_COPY_FROM: Final = "/content/{volume}"
_UNLINK: Final = "/nodes/{node}/qemu/{vmid}/unlink"

_LEADS_TO: Final[Mapping[tuple[str, str], Mapping[str, str]]] = {
    ("POST", "/nodes/{node}/qemu/{vmid}/template"): {"template": "1"},
    ("POST", "/nodes/{node}/lxc/{vmid}/template"): {"template": "1"},
    ("POST", "/nodes/{node}/services/{service}/start"): {"state": "running"},
    ("POST", "/nodes/{node}/services/{service}/stop"): {"state": "dead"},
    ("DELETE", "/nodes/{node}/tasks/{upid}"): {"status": "stopped"},
}
"""Actions that lead to a state. A restart or a rollback leads to none: before and after look alike."""

_NOT_GONE: Final = re.compile(r"/nodes/{node}/(?:network|subscription|certificates/.*|storage/{storage}/prunebackups)")
"""DELETE on a path that still shows something afterwards."""
_REMOVAL_MARK: Final = "remove_job"
"""A replication is only marked at first: PVE removes it when it has cleaned up."""
_NOT_SHOWN: Final = frozenset(
    {
        "regenerate",
        "regenerate-frr",
        "rename",
        "handle",
        "dow",
        "starttime",
        "release-lock",
        "contact",
        "create-base-path",
    }
)
"""Parameters that PVE shows nowhere afterwards, in addition to the secret ones."""
_ROW_COUNTERS: Final = frozenset({"pos", "digest"})


class Trace(Enum):
    """What PVE shows of a call."""

    PRESENT = "present"
    """It reads as predicted."""
    NONE = "none"
    """It reads as before, or there is nothing of it."""
    SEVERAL = "several"
    """More than one task fits."""
    UNCLEAR = "unclear"
    """Before and after look the same, it cannot be read, or something else has changed it."""


class Kind(Enum):
    CREATED = "created"
    GONE = "gone"
    FIELDS = "fields"
    ROWS = "rows"
    """A list whose rows have positions instead of names."""


@dataclass(frozen=True, slots=True)
class Effect:
    """Where a request shows its effect, and what it decides there."""

    kind: Kind
    location: Location
    request: Request
    sets: Mapping[str, Text] = field(default_factory=dict)
    deletes: tuple[str, ...] = ()
    needs_before: bool = True
    """Whether seeing the result proves nothing unless it is known that it was not there before."""


@dataclass(frozen=True, slots=True)
class Before:
    """What PVE showed before the call was sent, as marks."""

    exists: bool
    fields: Mapping[str, str] = field(default_factory=dict)
    rows: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        return {
            "exists": self.exists,
            **({"fields": dict(self.fields)} if self.fields else {}),
            **({"rows": list(self.rows)} if self.rows else {}),
        }

    @classmethod
    def from_dict(cls, kept: object) -> Before | None:
        if not isinstance(kept, Mapping) or not isinstance(kept.get("exists"), bool):
            return None
        fields, rows = kept.get("fields") or {}, kept.get("rows") or ()
        if not isinstance(fields, Mapping) or not isinstance(rows, Sequence):
            return None
        return cls(kept["exists"], dict(fields), tuple(map(str, rows)))


# -- where the effect shows --------------------------------------------------------------------------------------------


def expected_effect(facts: Facts, request: Request) -> Effect | None:
    """None if no object shows it: then only a task can."""
    method, template = request.method, request.template
    if moved := _elsewhere(request):
        return moved
    if request.has("rename") and _RENAMED.fullmatch(template):
        return _renaming(request)
    if rules := _RULES.fullmatch(template):
        path = _fill_in(rules["list"], request)
        edits = {name: value for name, value in sets(request).items() if name not in _ROW_COUNTERS}
        return Effect(Kind.ROWS, Location(path), request, edits, _find_deletions(request)) if method != "GET" else None
    location = locate(facts, request)
    if location is None:
        return None
    if state := _LEADS_TO.get((method, template)):
        return Effect(Kind.FIELDS, location, request, state)
    own = _fill_in(template, request)
    if method == "DELETE":
        at_home = location.key or location.path in (own, f"{own}/config") or _POOLS.fullmatch(template)
        gone = at_home and not _NOT_GONE.fullmatch(template)
        return Effect(Kind.GONE, location, request, needs_before=False) if gone else None
    if method == "POST" and not template.endswith("/config"):
        overwrites = bool(_NEW_GUEST.fullmatch(template)) and request.is_on("force")
        creates = location.key or location.path == own or template == "/pools" or _NEW_GUEST.fullmatch(template)
        named = location.key or location.path != own or (template.endswith("}") and not template.endswith(_COPY_FROM))
        return Effect(Kind.CREATED, location, request, sets(request)) if creates and named and not overwrites else None
    edits, deletes = _edits(request)
    at_home = location.path == own or template in (_ACL, _UNLINK) or _POOLS.fullmatch(template)
    return Effect(Kind.FIELDS, location, request, edits, deletes) if at_home and (edits or deletes) else None


def _elsewhere(request: Request) -> Effect | None:
    """A clone is another guest, and a migrated guest is on another node."""
    template, kind = request.template, "qemu" if "/qemu/" in request.template else "lxc"
    if _CLONE.fullmatch(template):
        node, vmid = request.text("target") or request.text("node"), request.text("newid")
    elif _MIGRATE.fullmatch(template):
        node, vmid = request.text("target"), request.text("vmid")
    else:
        return None
    if not node or not vmid:
        return None
    moves = template.endswith("migrate")
    return Effect(Kind.CREATED, Location(f"/nodes/{node}/{kind}/{vmid}/config"), request, needs_before=not moves)


def _renaming(request: Request) -> Effect:
    """An alias is renamed to `rename`, a set or group from it; under the same name only its fields change."""
    alias = request.template.endswith("{name}")
    key = "group" if request.template.endswith("groups") else "name"
    old, new = (request.text(key), request.text("rename")) if alias else (request.text("rename"), request.text(key))
    folder = _fill_in(request.template.removesuffix("/{name}"), request)
    fields = {name: text for name, text in sets(request).items() if name not in ("rename", key)}
    kind = Kind.FIELDS if old == new else Kind.CREATED
    return Effect(kind, Location(folder, key, new), request, fields)


def _edits(request: Request) -> tuple[dict[str, Text], tuple[str, ...]]:
    """The fields that it sets and those that it deletes, in the terms of `_view`."""
    template = request.template
    if template == _ACL:
        holders = [name for kind in ("users", "groups", "tokens") for name in request.elements(kind) if name]
        entries = [f"{role} {holder}" for role in request.elements("roles") for holder in holders]
        if request.is_on("delete"):
            return {}, tuple(entries)
        return dict.fromkeys(entries, "1" if request.is_on("propagate") else "0"), ()
    if _POOLS.fullmatch(template):
        members = [f"member {name}" for kind in ("vms", "storage") for name in request.elements(kind) if name]
        comment = {"comment": request.params["comment"]} if "comment" in request.params else {}
        if request.is_on("delete"):
            return comment, tuple(members)
        return {**comment, **dict.fromkeys(members, "1")}, ()
    if template == _UNLINK:
        return {}, tuple(split_list(request.text("idlist")))
    edits = {name: value for name, value in sets(request).items() if name != "append"}
    listed = "privs" if template.startswith(_ROLE) else "groups" if template.startswith(_USER) else ""
    if listed in edits and request.is_on("append"):
        edits = {name: value for name, value in edits.items() if name != listed}
        edits |= dict.fromkeys((f"{listed} {name}" for name in request.elements(listed)), "1")
    return edits, _find_deletions(request)


def _find_deletions(request: Request) -> tuple[str, ...]:
    return tuple(split_list(request.text("delete"))) if request.has("delete") else ()


def _view(request: Request, content: Any) -> Mapping[str, Any]:
    """The fields of an object, where PVE shows them in another form than it takes them."""
    template = request.template
    if template == _ACL:
        rows = content if isinstance(content, list) else [content] if content else []
        return {f"{row.get('roleid')} {row.get('ugid')}": row.get("propagate", 1) for row in rows}
    if not isinstance(content, Mapping):
        return {}
    if _POOLS.fullmatch(template):
        members = (row.get("vmid") or row.get("storage") for row in content.get("members") or ())
        return {"comment": content.get("comment"), **{f"member {name}": 1 for name in members}}
    if template.startswith(_ROLE):
        held = [name for name, value in content.items() if values.is_on(text_of(value))]
        return {"privs": ",".join(held), **{f"privs {name}": 1 for name in held}}
    if template.startswith(_USER) and isinstance(content.get("groups"), list):
        return {**content, **{f"groups {name}": 1 for name in content["groups"]}}
    return content


# -- before and after --------------------------------------------------------------------------------------------------


def remember(effect: Effect, stored: StoredObject) -> Before:
    if effect.kind is Kind.ROWS:
        return Before(stored.exists, rows=_row_marks(stored.content))
    view = _view(effect.request, stored.content) if effect.kind is Kind.FIELDS else {}
    return Before(
        stored.exists, {name: _mark(view.get(name)) for name in (*effect.sets, *effect.deletes)} if view else {}
    )


def judge(effect: Effect, before: Before | None, stored: StoredObject) -> Trace:
    """Whether the object shows the effect; `before` is None if nobody looked before the call was sent."""
    match effect.kind:
        case Kind.GONE:
            marked = _REMOVAL_MARK in stored.options
            return Trace.NONE if stored.exists and not marked else Trace.PRESENT
        case Kind.CREATED:
            return _judge_creation(effect, before, stored)
        case Kind.ROWS:
            return _judge_rows(effect, before, stored)
        case Kind.FIELDS:
            return _judge_fields(effect, before, stored)


def _judge_creation(effect: Effect, before: Before | None, stored: StoredObject) -> Trace:
    if not stored.exists:
        return Trace.NONE
    if before is not None and before.exists:  # PVE refuses to create it again
        return Trace.UNCLEAR
    shown = stored.options
    differs = any(
        name in shown and not _fits(effect.request, name, shown[name], text) for name, text in effect.sets.items()
    )
    return Trace.UNCLEAR if differs else Trace.PRESENT


def _judge_fields(effect: Effect, before: Before | None, stored: StoredObject) -> Trace:
    """A field that has changed as requested proves the whole request; one that has not changed at all refutes it."""
    if not stored.exists and effect.request.template != _ACL:
        return Trace.UNCLEAR
    if before is None and effect.request.has("digest") and stored.digest == effect.request.text("digest"):
        return Trace.NONE  # an unchanged digest proves that nothing was set
    view = _view(effect.request, stored.content)
    hidden = secret_parameters(_fill_in(effect.request.template, effect.request)) | _NOT_SHOWN
    proven = refuted = doubtful = unseen = False
    for name in (*effect.sets, *effect.deletes):
        changed = None if before is None else before.fields.get(name, _mark(None)) != _mark(view.get(name))
        text = effect.sets.get(name)
        if text is not None and (name in hidden or HIDDEN in _join(text)):
            proven, unseen = proven or bool(changed), True
        elif name not in view if text is None else _fits(effect.request, name, view.get(name), text):
            exact = text is None or _is_exact(view.get(name), text)
            proven, unseen = proven or bool(changed), unseen or (changed is None and not exact)
        elif changed or (changed is None and not (name in view and (text is None or _is_plain(text)))):
            doubtful = True
        else:
            refuted = True
    if doubtful or (proven and refuted):
        return Trace.UNCLEAR
    if refuted:
        return Trace.NONE
    return Trace.UNCLEAR if unseen and not proven else Trace.PRESENT


def _judge_rows(effect: Effect, before: Before | None, stored: StoredObject) -> Trace:
    if before is None or not isinstance(stored.content, list):
        return Trace.UNCLEAR
    rows, was, now = stored.content, list(before.rows), list(_row_marks(stored.content))
    request = effect.request
    if request.method == "POST":
        added = (
            place for place, row in enumerate(rows) if now[:place] + now[place + 1 :] == was and _row_fits(effect, row)
        )
        return Trace.PRESENT if any(True for _ in added) else Trace.NONE if now == was else Trace.UNCLEAR
    place = int(request.text("pos")) if request.text("pos").isdigit() else len(was)
    if place >= len(was):
        return Trace.NONE if now == was else Trace.UNCLEAR
    others = was[:place] + was[place + 1 :]
    if request.method == "DELETE":
        return Trace.PRESENT if now == others else Trace.NONE if now == was else Trace.UNCLEAR
    if request.has("moveto"):
        target = int(request.text("moveto")) if request.text("moveto").isdigit() else place
        target -= target > place  # the position is counted with the rule that moves
        moved = [*others[:target], was[place], *others[target:]]
        return Trace.PRESENT if now == moved else Trace.NONE if now == was else Trace.UNCLEAR
    if now[:place] + now[place + 1 :] != others or len(now) != len(was):
        return Trace.UNCLEAR
    fits = _row_fits(effect, rows[place])
    return Trace.PRESENT if fits else Trace.NONE if now == was else Trace.UNCLEAR


def _row_fits(effect: Effect, row: Mapping[str, Any]) -> bool:
    set_ = all(_fits(effect.request, name, row.get(name), text) for name, text in effect.sets.items())
    return set_ and not any(name in row for name in effect.deletes)


# -- one value ---------------------------------------------------------------------------------------------------------


def _fits(request: Request, name: str, theirs: Any, ours: Text) -> bool:
    """Whether a value that PVE shows is what was sent; PVE may extend and reorder it, and names new volumes itself."""
    schema = request.match.endpoint.schema_of(name) or {}
    text = _join(ours).strip()
    if theirs is None or theirs == "":
        return text in ("", text_of(schema.get("default", ""))) or (
            text == "0" and schema.get("type") in _ZERO_IS_UNSET
        )
    if name == "enable" and request.template == _CLUSTER_FIREWALL:  # PVE keeps the time at which it was switched on
        return (text == "0") == (text_of(theirs) == "0")
    if values.same(theirs, ours, schema):
        return True
    if isinstance(theirs, Mapping):
        return values.parse(text).items() <= {key: text_of(value) for key, value in theirs.items()}.items()
    layout = schema.get("format")
    if isinstance(theirs, (list, tuple)) or layout is None or str(layout).endswith("-list") or _is_plain(text):
        return False
    shown = text_of(theirs).strip()
    named = {part for part in text.lower().split(",") if "=" in part}
    return named <= set(shown.lower().split(",")) and _volume_fits(text, shown)


def _volume_fits(text: str, shown: str) -> bool:
    """A new volume is requested as STORAGE:SIZE and shown as STORAGE:NAME."""
    ours, theirs = (value.split(",")[0] for value in (text, shown))
    if "=" in ours or ours == theirs:
        return True
    storage, colon, size = ours.partition(":")
    new = bool(colon) and (values.number(size) is not None or size == "cloudinit")
    return theirs.startswith(f"{storage}:") if new else ours == theirs or "=" in theirs or theirs.startswith(f"{ours},")


def _is_exact(theirs: Any, ours: Text) -> bool:
    return _is_plain(ours) or (not isinstance(theirs, (Mapping, list)) and values.same(_join(ours), text_of(theirs)))


def _is_plain(value: Text) -> bool:
    """A plain value, not a property string or list, which PVE may rewrite."""
    return not set("=,;:") & set(_join(value))


def _join(value: Text) -> str:
    return value if isinstance(value, str) else ",".join(value)


def _mark(value: Any) -> str:
    """A short hash: enough to tell whether a value is the same, and nothing that could be read back."""
    if value is None or isinstance(value, (bool, int, float)):
        value = text_of("" if value is None else value)
    return hashlib.sha256(msgspec.json.encode(value, order="sorted")).hexdigest()[:12]


def _row_marks(rows: Any) -> tuple[str, ...]:
    listed = [row for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else []
    return tuple(_mark({name: value for name, value in row.items() if name not in _ROW_COUNTERS}) for row in listed)


def _fill_in(template: str, request: Request) -> str:
    return re.sub(r"{([^}]+)}", lambda name: str(request.match.values.get(name[1], name[0])), template)
