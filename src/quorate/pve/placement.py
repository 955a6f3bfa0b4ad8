"""Where guests may run after a call: the nodes that a move, an HA setting or a rule of HA opens to them.

Both states are computed, the stored one and the one that the request leads to; what differs is what the request does.
Where PVE leaves something open, or these credentials cannot read it, every node that is possible counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pve_schema.formats import split_list
from pve_schema.schema import Facts
from quorate.problems import PermissionMissing
from quorate.pve import values
from quorate.pve.cluster import Cluster
from quorate.pve.inventory import Resource
from quorate.pve.targets import GUEST, NODE, TargetRef
from quorate.pve.wire import Request

Section = Mapping[str, Any]

UNMANAGED: Final = ("", "ignored")
"""States of a guest that the HA manager does not look after."""
_RULES, _GROUPS, _RESOURCES = "/cluster/ha/rules", "/cluster/ha/groups", "/cluster/ha/resources"
_STATUS: Final = "/cluster/ha/status/current"
_OPTIONS: Final = "/cluster/options"
_SETTINGS: Final = re.compile(r"/cluster/ha/(?P<kind>rules|groups|resources)(?:/{(?:rule|group|sid)})?")
_NAME: Final = {"rules": "rule", "groups": "group", "resources": "sid"}
_GUEST_MOVE: Final = re.compile(r"/nodes/{node}/(?P<type>qemu|lxc)/{vmid}/migrate")
_HA_MOVE: Final = re.compile(r"/cluster/ha/resources/{sid}/(?:migrate|relocate)")
_NODE_MOVE: Final = "/nodes/{node}/migrateall"
_BULK_MOVE: Final = "/cluster/bulk-action/guest/migrate"
_CREATION: Final = re.compile(r"/nodes/{node}/(?P<type>qemu|lxc)")
_CREATES_MANAGED: Final = "ha-managed"
_BALANCES, _BALANCES_STARTS = "ha-auto-rebalance", "ha-rebalance-on-start"
"""Parts of the cluster's `crs` by which the HA manager moves guests without a failure."""
_KINDS: Final = {"qemu": "vm", "lxc": "ct"}


@dataclass(frozen=True, slots=True)
class Placement:
    """Where one guest runs."""

    next: frozenset[str]
    """Where it is as soon as the HA manager has acted; several nodes if PVE decides."""
    possible: frozenset[str]
    """Nodes where it may run later, also after others have failed."""
    preferred: frozenset[str] = frozenset()
    """Nodes that the rules prefer for it."""
    at_start: frozenset[str] = frozenset()
    """Where the HA manager may start it next time, if it chooses a node for each start."""


@dataclass(frozen=True, slots=True)
class Relocation:
    """What a request changes about where a guest runs."""

    vmid: int
    home: str
    next: frozenset[str]
    """Other nodes to which it is moved."""
    opened: frozenset[str]
    """Other nodes on which it may run because of the request, now or later."""
    managed: bool
    """Whether the HA manager moves it."""


@dataclass(frozen=True, slots=True)
class Objection:
    """Why the HA manager would not leave a guest on a node."""

    sid: str
    """The guest, or one that moves along with it."""
    rule: str = ""
    """The rule or group; empty if the node is in maintenance."""
    nodes: tuple[str, ...] = ()
    """Where the HA manager would move it."""
    apart_from: tuple[str, ...] = ()
    """Guests on that node that the rule keeps it apart from."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that decides where guests run; guests are named as in HA, such as vm:100."""

    nodes: frozenset[str]
    online: frozenset[str]
    homes: Mapping[str, str]
    resources: Mapping[str, Section] = field(default_factory=dict)
    rules: Mapping[str, Section] = field(default_factory=dict)
    groups: Mapping[str, Section] = field(default_factory=dict)
    balances: bool = False
    balances_starts: bool = False
    moves: Mapping[str, str] = field(default_factory=dict)
    """Guests that a call moves, with their targets."""

    def is_managed(self, sid: str) -> bool:
        return sid in self.resources and self.resources[sid].get("state") not in UNMANAGED


def affects_placement(request: Request) -> bool:
    """Whether the request may change where guests run."""
    template = request.template
    if request.method == "GET":
        return False
    if template == _OPTIONS:
        return request.has("crs") or "crs" in request.elements("delete")
    if _CREATION.fullmatch(template):
        return request.has(_CREATES_MANAGED) and request.is_on(_CREATES_MANAGED)
    moves = template in (_NODE_MOVE, _BULK_MOVE) or _GUEST_MOVE.fullmatch(template) or _HA_MOVE.fullmatch(template)
    return bool(moves) or _SETTINGS.fullmatch(template) is not None


async def find_relocations(cluster: Cluster, facts: Facts, requests: Iterable[Request]) -> list[list[Relocation]]:
    """The guests that each of the requests moves, or lets run on other nodes than before; in the order of the plan."""
    stored = await _read_settings(cluster, facts)
    relocations = []
    for request in requests:
        resulting = _apply(stored, request)
        relocations.append(list(_differences(stored, resulting)))
        stored = replace(resulting, moves={}, homes={**resulting.homes, **resulting.moves})
    return relocations


def relocation_targets(relocations: Iterable[Relocation]) -> list[TargetRef]:
    """What is reached by them: the guests with the nodes where they may be afterwards, and the nodes that get one."""
    targets: dict[TargetRef, None] = {}
    for relocation in relocations:
        targets[TargetRef(GUEST, str(relocation.vmid), relocation.home, may_run_on=relocation.opened)] = None
        targets |= dict.fromkeys(TargetRef(NODE, node, node) for node in sorted(relocation.next))
    return list(targets)


async def find_objection(cluster: Cluster, facts: Facts, sid: str, node: str) -> Objection | None:
    """Why a guest that runs under HA would not stay on the node; None if it would.

    PVE accepts such a move, moves the guest, and moves it back a minute later. Its own check of a migration knows
    the rules about resources, but not those about nodes.
    """
    settings = await _read_settings(cluster, facts)
    if not settings.is_managed(sid) or settings.resources[sid].get("state") in ("stopped", "disabled"):
        return None
    if node in (resting := await _nodes_in_maintenance(cluster)):
        return Objection(sid)
    together = next(group for group in _groups(settings) if sid in group)
    moved = {**settings.homes, **dict.fromkeys(together, node)}
    settings = replace(settings, homes=moved, online=settings.online - resting)
    for member in (sid, *sorted(together - {sid})):
        choice = _choice(settings, member)
        stays = node in choice.possible and (node in choice.preferred or not choice.returns)
        if choice.rule and not stays:
            return Objection(member, choice.rule, tuple(sorted(choice.preferred)))
        if crowding := _crowding(settings, member):
            return Objection(member, *crowding)
    return None


async def _nodes_in_maintenance(cluster: Cluster) -> frozenset[str]:
    try:
        rows = await cluster.get(_STATUS)
    except PermissionMissing:
        return frozenset()
    return frozenset(
        str(row["node"]) for row in rows if row.get("type") == "lrm" and "maintenance" in str(row.get("status"))
    )


def _differences(stored: Settings, resulting: Settings) -> Iterator[Relocation]:
    before, after = _placements(stored), _placements(resulting)
    for sid, placed in after.items():
        home = resulting.homes[sid]
        previous = before.get(sid, Placement(frozenset({home}), frozenset({home})))
        elsewhere = placed.next - {home}
        opened = (elsewhere | placed.at_start | (placed.possible - previous.possible)) - {home}
        if placed != previous and opened:
            vmid = int(sid.partition(":")[2])
            yield Relocation(vmid, home, elsewhere, opened, resulting.is_managed(sid))


# -- what is stored ----------------------------------------------------------------------------------------------------


async def _read_settings(cluster: Cluster, facts: Facts) -> Settings:
    view = await cluster.inventory.view()
    guests = {_sid(row): row for row in await cluster.inventory.guests()}
    settings = Settings(
        nodes=frozenset(view.nodes), online=view.online, homes={sid: row.node for sid, row in guests.items()}
    )
    try:
        resources = {str(row["sid"]): row for row in await cluster.get(_RESOURCES)}
        rules = await cluster.get(_RULES) if facts.find("GET", _RULES) else []
        groups = await cluster.get(_GROUPS) if any(row.get("group") for row in resources.values()) else []
        options = await cluster.get(_OPTIONS)
    except PermissionMissing:
        return replace(settings, **_worst_case(guests))
    return replace(
        settings,
        resources=resources,
        rules={str(row["rule"]): row for row in rules},
        groups={str(row["group"]): row for row in groups},
        **_scheduling(options.get("crs")),
    )


def _sid(row: Resource) -> str:
    return f"{_KINDS[row.type]}:{row.vmid}"


def _worst_case(guests: Mapping[str, Resource]) -> dict[str, Any]:
    """If HA cannot be read, any guest under HA may have to follow any other."""
    managed = {sid: {"sid": sid} for sid, row in guests.items() if row.hastate not in UNMANAGED}
    together = {"type": "resource-affinity", "affinity": "positive", "resources": ",".join(managed)}
    return {"resources": managed, "rules": {"unknown": together}}


def _scheduling(crs: Any) -> dict[str, Any]:
    parts = crs if isinstance(crs, Mapping) else values.parse(str(crs or ""), "ha")
    return {
        "balances": values.is_on(parts.get(_BALANCES, 0)),
        "balances_starts": values.is_on(parts.get(_BALANCES_STARTS, 0)),
    }


# -- what a request makes of it ----------------------------------------------------------------------------------------


def _apply(settings: Settings, request: Request) -> Settings:
    template = request.template
    if not affects_placement(request):
        return settings
    if template == _OPTIONS:
        return replace(settings, **_scheduling(request.params.get("crs")))
    if created := _CREATION.fullmatch(template):
        sid = f"{_KINDS[created['type']]}:{request.text('vmid')}"
        homes = {**settings.homes, sid: request.text("node")}
        return replace(settings, homes=homes, resources={**settings.resources, sid: {"sid": sid}})
    if section := _SETTINGS.fullmatch(template):
        return _with_section(settings, section["kind"], request)
    moved = _moved_guests(settings, request)
    target = request.text("target") or request.text("node")
    return replace(settings, moves=dict.fromkeys(moved, target))


def _with_section(settings: Settings, kind: str, request: Request) -> Settings:
    sections = dict(getattr(settings, kind))
    text = request.text(_NAME[kind])
    name = _full_sid(settings, text) if kind == "resources" else text
    if request.method == "DELETE":
        sections.pop(name, None)
        if kind == "resources" and request.is_on("purge"):
            settings = replace(settings, rules=dict(_without_resource(settings.rules, name)))
    else:
        dropped = {*request.elements("delete")} if request.has("delete") else set()
        kept = {key: value for key, value in sections.get(name, {}).items() if key not in dropped}
        sections[name] = {**kept, **request.params}
    changed: dict[str, Any] = {kind: sections}
    return replace(settings, **changed)


def _without_resource(rules: Mapping[str, Section], sid: str) -> Iterator[tuple[str, Section]]:
    for name, rule in rules.items():
        if left := [member for member in _members(rule) if member != sid]:
            yield name, {**rule, "resources": ",".join(left)}


def _moved_guests(settings: Settings, request: Request) -> list[str]:
    if guest := _GUEST_MOVE.fullmatch(request.template):
        return [f"{_KINDS[guest['type']]}:{request.text('vmid')}"]
    if _HA_MOVE.fullmatch(request.template):
        return [_full_sid(settings, request.text("sid"))]
    listed = {_full_sid(settings, text) for text in request.elements("vms")}
    here = request.text("node") if request.template == _NODE_MOVE else ""
    return [sid for sid, home in settings.homes.items() if home == (here or home) and (not listed or sid in listed)]


def _full_sid(settings: Settings, text: str) -> str:
    """PVE also takes a bare vmid."""
    if ":" in text:
        return text
    return next((sid for sid in settings.homes if sid.endswith(f":{text}")), f"vm:{text}")


# -- where that leads --------------------------------------------------------------------------------------------------


def _placements(settings: Settings) -> dict[str, Placement]:
    """Where each guest runs by these settings. Guests that belong together are placed as one."""
    placements = {}
    for sid, home in settings.homes.items():
        if not settings.is_managed(sid):
            there = frozenset({settings.moves.get(sid, home)})
            placements[sid] = Placement(there, there)
    for together in _groups(settings):
        placement = _place(settings, together)
        placements |= dict.fromkeys(together, placement)
    return placements


def _groups(settings: Settings) -> list[set[str]]:
    """The managed guests, joined with those that must share their node."""
    groups = [{sid} for sid in settings.homes if settings.is_managed(sid)]
    for rule in _active(settings, "resource-affinity"):
        if rule.get("affinity") == "positive":
            joined = [group for group in groups if group & {*_members(rule)}]
            groups = [group for group in groups if group not in joined] + [set().union(*joined)] * bool(joined)
    return groups


def _place(settings: Settings, together: set[str]) -> Placement:
    choices = [_choice(settings, sid) for sid in together]
    possible = frozenset.intersection(*(choice.possible for choice in choices)) or settings.nodes
    preferred = frozenset.intersection(*(choice.preferred for choice in choices)) & possible or possible
    homes = {settings.homes[sid] for sid in together}
    at_start = possible if settings.balances_starts else frozenset[str]()
    if targets := {settings.moves[sid] for sid in together if sid in settings.moves}:
        return Placement(frozenset(targets), possible | targets, preferred, at_start)
    balances = settings.balances and any(
        str(settings.resources[sid].get("auto-rebalance", 1)) != "0" for sid in together
    )
    if balances or len(homes) > 1 or not homes <= possible or _is_crowded(settings, together):
        return Placement(possible, possible, preferred, at_start)
    stays = homes <= preferred or not all(choice.returns for choice in choices)
    return Placement(frozenset(homes) if stays else preferred, possible, preferred, at_start)


@dataclass(frozen=True, slots=True)
class _Choice:
    """The nodes that rules about nodes leave to a guest."""

    possible: frozenset[str]
    preferred: frozenset[str]
    returns: bool = True
    """Whether the guest moves to a preferred node as soon as possible."""
    rule: str = ""
    """The rule or group that decides; empty if there is none, or several that contradict each other."""


def _choice(settings: Settings, sid: str) -> _Choice:
    resource = settings.resources[sid]
    returns = str(resource.get("failback", 1)) != "0"
    rules = [rule for rule in _active(settings, "node-affinity") if sid in _members(rule)]
    if group := settings.groups.get(str(resource.get("group", ""))):
        rules.append({**group, "strict": group.get("restricted", 0), "rule": group.get("group")})
        returns = str(group.get("nofailback", 0)) != "1"
    if not rules:
        return _Choice(settings.nodes, settings.nodes, returns)
    if len(rules) > 1:  # PVE ignores rules that contradict each other
        return _Choice(settings.nodes, settings.nodes - {settings.homes[sid]}, returns)
    (rule,) = rules
    priorities = _priorities(str(rule.get("nodes", "")))
    if rule.get("affinity") == "negative":
        priorities = dict.fromkeys(settings.nodes - priorities.keys(), 0)
    online = {node: priority for node, priority in priorities.items() if node in settings.online}
    best = frozenset(node for node, priority in online.items() if priority == max(online.values()))
    strict = str(rule.get("strict", 0)) == "1"
    possible = frozenset(priorities) if strict else settings.nodes
    return _Choice(possible, best or possible, returns, str(rule.get("rule", "")))


def _active(settings: Settings, kind: str) -> Iterator[Section]:
    for rule in settings.rules.values():
        if rule.get("type") == kind and str(rule.get("disable", 0)) != "1":
            yield rule


def _members(rule: Section) -> list[str]:
    return split_list(str(rule.get("resources", "")))


def _is_crowded(settings: Settings, together: set[str]) -> bool:
    """Whether one of these guests shares its node with a guest that it must be kept apart from."""
    return any(_crowding(settings, sid) for sid in together)


def _crowding(settings: Settings, sid: str) -> tuple[str, tuple[str, ...], tuple[str, ...]] | None:
    """The rule that keeps a guest apart from guests on its node, the other nodes, and those guests."""
    home = settings.homes[sid]
    for rule in _active(settings, "resource-affinity"):
        members = _members(rule)
        if rule.get("affinity") == "negative" and sid in members:
            near = [other for other in members if other != sid and settings.homes.get(other) == home]
            if close := tuple(other for other in near if settings.is_managed(other)):
                return str(rule.get("rule", "")), tuple(sorted(settings.online - {home})), close
    return None


def _priorities(text: str) -> dict[str, int]:
    """The nodes of `pve1:2,pve2` with their priorities."""
    listed = (part.partition(":") for part in split_list(text))
    return {node: int(number) if number.isdecimal() else 0 for node, _, number in listed}
