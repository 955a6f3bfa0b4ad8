"""Changes by which a stored object protects less than now: a backup job, a storage, an alert, a firewall, HA.

Such a request looks harmless, because it says only what is different. So the object is read, its content afterwards is
predicted, and both are compared: narrower, weaker or rarer is DESTROY; wider and neutral edits stay a change.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from pve_schema.calendar_events import CalendarEvent, Unparsable, parse_calendar_event
from pve_schema.formats import split_list
from pve_schema.schema import Facts
from pve_schema.validation import text_of
from quorate.operations.grants import OPTION_LISTS
from quorate.operations.plan import Call, Plan
from quorate.operations.risk import Effect, Reason
from quorate.problems import Problem
from quorate.pve import values
from quorate.pve.cluster import Cluster
from quorate.pve.stored_objects import Location, locate, predict, read_stored
from quorate.pve.wire import Request, read


@dataclass(frozen=True, slots=True)
class Edit:
    """The fields of a stored object now and after a request."""

    before: Mapping[str, Any]
    after: Mapping[str, Any]
    now: float

    def texts(self, name: str, default: str = "") -> tuple[str, str]:
        return _text(self.before.get(name), default), _text(self.after.get(name), default)

    def switches(self, name: str, default: str) -> tuple[bool, bool]:
        before, after = self.texts(name, default)
        return values.is_on(before), values.is_on(after)

    def elements(self, name: str) -> tuple[set[str], set[str]]:
        return _elements(self.before.get(name)), _elements(self.after.get(name))


Comparison = Callable[[Edit, str], bool]


@dataclass(frozen=True, slots=True)
class Guard:
    """Options of a kind of object, and the comparison by which a new value protects less."""

    where: str
    """A regular expression that the whole path template has to match."""
    options: tuple[str, ...]
    """`net[n]` stands for all of net0, net1, …"""
    when: str
    weakens: Comparison
    reason: Reason = Reason.WEAKENS

    def touched_options(self, request: Request) -> Iterator[str]:
        """Those of its options that the request writes, deletes or reverts."""
        if re.fullmatch(self.where, request.template):
            listed = (option for name in OPTION_LISTS for option in split_list(_text(request.params.get(name))))
            for name in dict.fromkeys((*request.params, *listed)):
                if name in self.options or re.sub(r"\d+$", "[n]", name) in self.options:
                    yield name


# -- comparisons -------------------------------------------------------------------------------------------------------


def _is_turned_off(default: str) -> Comparison:
    return lambda edit, name: edit.switches(name, default) == (True, False)


def _is_turned_on(edit: Edit, name: str) -> bool:
    return edit.switches(name, "0") == (False, True)


def _loses_elements(edit: Edit, name: str) -> bool:
    before, after = edit.elements(name)
    return bool(before - after)


def _covers_fewer_nodes(edit: Edit, name: str) -> bool:
    """No list means all nodes; a node may have a priority behind a colon."""
    before, after = ({node.partition(":")[0] for node in nodes} for nodes in edit.elements(name))
    return bool(after) and not (before and before <= after)


def _is_changed(edit: Edit, name: str) -> bool:
    before, after = edit.texts(name)
    return bool(before) and before != after


def _is_changed_or_set(edit: Edit, name: str) -> bool:
    before, after = edit.texts(name)
    return before != after


def _falls(default: str) -> Comparison:
    return lambda edit, name: _number(edit.texts(name, default)[1]) < _number(edit.texts(name, default)[0])


def _allows_fewer_protected_backups(edit: Edit, name: str) -> bool:
    """-1 means any number, and so does nothing for a caller who manages the storage."""
    before, after = (_number(text) for text in edit.texts(name, "-1"))
    return after >= 0 and (before < 0 or after < before)


def _is_throttled(least: float) -> Comparison:
    """A limit that is lower than before and below what gets the work done; 0 means no limit."""

    def compare(edit: Edit, name: str) -> bool:
        before, after = (_number(text) for text in edit.texts(name, "0"))
        return 0 < after < least and (before == 0 or after < before)

    return compare


def _runs_less_often(default: str) -> Comparison:
    def compare(edit: Edit, _name: str) -> bool:
        before, after = _schedule(edit.before, default), _schedule(edit.after, default)
        if before == after:
            return False
        old, new = _parse_event(before), _parse_event(after)
        return old is None or new is None or new.is_rarer_than(old, edit.now)

    return compare


def _rotates_faster(edit: Edit, _name: str) -> bool:
    """A job that prunes and runs more often replaces older backups by newer ones sooner."""
    old, new = _parse_event(_schedule(edit.before, "")), _parse_event(_schedule(edit.after, ""))
    return _prunes(edit.after) and old is not None and new is not None and old.is_rarer_than(new, edit.now)


def _starts_pruning(edit: Edit, name: str) -> bool:
    return edit.switches(name, "1") == (False, True) and _prunes(edit.after)


def _prunes_elsewhere(edit: Edit, _name: str) -> bool:
    """A job that is pointed at other guests or another storage deletes older backups there."""
    same_storage = edit.texts("storage")[0] == edit.texts("storage")[1]
    return _prunes(edit.after) and not (same_storage and _selection(edit.before) == _selection(edit.after))


def _gives_up_on_entries(edit: Edit, name: str) -> bool:
    """The backup of a container with more files than that fails."""
    before, after = (_number(values.parse(text).get("pbs-entries-max", "1048576")) for text in edit.texts(name))
    return after < before


def _saves_less(edit: Edit, name: str) -> bool:
    """Less of each guest: more excluded paths, or the standard exclusions in addition."""
    if name == "stdexcludes":
        return edit.switches(name, "1") == (False, True)
    before, after = edit.elements(name)
    return bool(after - before)


def _empties_backups(edit: Edit, name: str) -> bool:
    return _saves_less(edit, name) and _prunes(edit.after)


def _selects_fewer_guests(edit: Edit, _name: str) -> bool:
    """Whether guests may no longer be in a backup job."""
    before, after = _selection(edit.before), _selection(edit.after)
    if before == after:
        return False
    (old_kind, old_names, old_node), (kind, names, node) = before, after
    if node and node != old_node:
        return True
    if kind == "all":  # the names are those left out
        return bool({"all": names - old_names, "vmid": names & old_names, "pool": names}[old_kind])
    if kind == "vmid":
        return old_kind != "vmid" or not old_names <= names
    return before[:2] != after[:2]


def _selection(job: Mapping[str, Any]) -> tuple[str, frozenset[str], str]:
    """How a job selects guests, the names that belong to it, and its node."""
    node = _text(job.get("node"))
    for kind in ("vmid", "pool"):
        if names := _elements(job.get(kind)):
            return kind, frozenset(names), node
    return "all", frozenset(_elements(job.get("exclude"))), node


def _prunes(job: Mapping[str, Any]) -> bool:
    """PVE prunes by default, after the retention of the storage if the job has none."""
    if _text(job.get("remove"), "1") == "0":
        return False
    return "keep-all=1" not in _text(job.get("prune-backups"))


def _silences_job(edit: Edit, name: str) -> bool:
    before, after = edit.texts(name)
    if before == after:
        return False
    if name == "notification-mode":
        return after == "legacy-sendmail" and not _elements(edit.after.get("mailto"))
    return after == "never" or (name == "notification-target" and bool(before))


def _matches_less(edit: Edit, name: str) -> bool:
    """Whether a matcher may let fewer messages through."""
    if name in ("mode", "invert-match"):
        before, after = edit.texts(name, {"mode": "all", "invert-match": "0"}[name])
        return before != after
    before_conditions, after_conditions = edit.elements(name)
    if before_conditions == after_conditions:
        return False
    inverted = edit.switches("invert-match", "0")[1]
    is_any = edit.texts("mode", "all")[1] == "any"
    if is_any and before_conditions and not inverted:
        return not before_conditions <= after_conditions
    return inverted or is_any or not after_conditions <= before_conditions


def _opens_policy(edit: Edit, name: str) -> bool:
    before, after = edit.texts(name, {"policy_in": "DROP", "policy_out": "ACCEPT"}[name])
    return before != "ACCEPT" and after == "ACCEPT"


def _lets_more_through(edit: Edit, name: str) -> bool:
    """A firewall rule that blocks, or a security group, which may: switched off, narrowed, turned or moved down."""
    blocks = _text(edit.before.get("action")) in ("DROP", "REJECT") or _text(edit.before.get("type")) == "group"
    if not (blocks and values.is_on(_text(edit.before.get("enable")))):
        return False
    if name == "action":
        return _text(edit.after.get("action")) not in ("DROP", "REJECT")
    if name == "enable":
        return not values.is_on(_text(edit.after.get("enable")))
    before, after = edit.texts(name)
    return _number(after) > _number(_text(edit.before.get("pos"))) if name == "moveto" else before != after


def _drops_firewall(edit: Edit, name: str) -> bool:
    return (
        name in edit.after
        and _part(edit.before, name, "firewall", "0")
        and not _part(edit.after, name, "firewall", "0")
    )


def _leaves_backups(edit: Edit, name: str) -> bool:
    """The same volume in the same place, which a backup or a replication now leaves out."""
    if name not in edit.before or name not in edit.after:
        return False
    if values.volume_of(_text(edit.before[name])) != values.volume_of(_text(edit.after[name])):
        return False
    defaults = {"backup": "0" if name.startswith("mp") else "1", "replicate": "1"}
    return any(
        _part(edit.before, name, key, default) and not _part(edit.after, name, key, default)
        for key, default in defaults.items()
    )


def _is_removed(edit: Edit, name: str) -> bool:
    return name in edit.before and not _text(edit.after.get(name))


def _part(options: Mapping[str, Any], name: str, key: str, default: str) -> bool:
    return values.is_on(values.parse(_text(options.get(name)), "volume").get(key, default))


def _schedule(options: Mapping[str, Any], default: str) -> str:
    """The calendar event; jobs from before there were any have days and a time."""
    days_and_time = f"{_text(options.get('dow'))} {_text(options.get('starttime'))}".strip()
    return _text(options.get("schedule")) or days_and_time or default


def _parse_event(text: str) -> CalendarEvent | None:
    try:
        return parse_calendar_event(text)
    except Unparsable:
        return None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def _elements(value: Any) -> set[str]:
    if isinstance(value, (list, tuple)):
        return {str(element) for element in value}
    return {element for element in split_list(_text(value)) if element}


def _text(value: Any, default: str = "") -> str:
    if value is None:
        return default
    if isinstance(value, Mapping):
        return ",".join(f"{key}={text_of(part)}" for key, part in value.items())
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else text_of(value)


# -- what protects -----------------------------------------------------------------------------------------------------

_JOB: Final = r"/cluster/backup/{id}"
_REPLICATION: Final = r"/cluster/replication/{id}"
_STORAGE: Final = r"/storage/{storage}"
_MATCHER: Final = r"/cluster/notifications/matchers/{name}"
_ENDPOINT: Final = r"/cluster/notifications/endpoints/\w+/{name}"
_CONFIG: Final = r"/nodes/{node}/(qemu|lxc)/{vmid}/config"
_FIREWALL: Final = r"/nodes/{node}/(qemu|lxc)/{vmid}/firewall"
_HA: Final = r"/cluster/ha/(groups/{group}|rules/{rule})"
_SWITCHED_OFF: Final = "switched off"
_FEWER: Final = "something is taken out"
_USABLE_KIB_PER_SECOND: Final = 10 * 1024
_USABLE_MB_PER_SECOND: Final = 10
_DISKS: Final = ("rootfs", *sorted(f"{bus}[n]" for bus in values.DISKS - {"rootfs"}))
_SWITCHABLE: Final = rf"{_MATCHER}|{_ENDPOINT}|/cluster/metrics/server/{{id}}|/cluster/acme/plugins/{{id}}"

GUARDS: Final = (
    Guard(_JOB, ("enabled",), _SWITCHED_OFF, _is_turned_off("1")),
    Guard(_JOB, ("protected", "repeat-missed"), _SWITCHED_OFF, _is_turned_off("0")),
    Guard(_JOB, ("enabled",), "switched on, and the job prunes", _starts_pruning, Reason.PRUNES),
    Guard(_JOB, ("schedule", "dow", "starttime"), "it runs less often or pauses for longer", _runs_less_often("")),
    Guard(_JOB, ("schedule", "dow", "starttime"), "it runs more often and prunes", _rotates_faster, Reason.PRUNES),
    Guard(_JOB, ("all", "vmid", "pool", "exclude", "node"), "guests are left out", _selects_fewer_guests),
    Guard(
        _JOB,
        ("all", "vmid", "pool", "exclude", "node", "storage"),
        "the job prunes, and now elsewhere",
        _prunes_elsewhere,
        Reason.PRUNES,
    ),
    Guard(_JOB, ("exclude-path", "stdexcludes"), "less of each guest is saved", _saves_less),
    Guard(
        _JOB,
        ("exclude-path", "stdexcludes"),
        "less is saved, and the job prunes",
        _empties_backups,
        Reason.EMPTIES_BACKUPS,
    ),
    Guard(_JOB, ("lockwait",), "it gives up sooner", _falls("180")),
    Guard(_JOB, ("stopwait",), "it gives up sooner", _falls("10")),
    Guard(_JOB, ("performance",), "it gives up on containers with many files", _gives_up_on_entries),
    Guard(_JOB, ("bwlimit",), "too slow to finish", _is_throttled(_USABLE_KIB_PER_SECOND)),
    Guard(_JOB, ("mailto",), _FEWER, _loses_elements),
    Guard(
        _JOB,
        ("notification-mode", "notification-policy", "notification-target", "mailnotification"),
        "nobody gets its messages",
        _silences_job,
    ),
    Guard(_REPLICATION, ("disable",), _SWITCHED_OFF, _is_turned_on),
    Guard(_REPLICATION, ("schedule",), "it runs less often or pauses for longer", _runs_less_often("*/15")),
    Guard(_REPLICATION, ("rate",), "too slow to finish", _is_throttled(_USABLE_MB_PER_SECOND)),
    Guard(_STORAGE, ("disable",), _SWITCHED_OFF, _is_turned_on),
    Guard(_STORAGE, ("nodes",), _FEWER, _covers_fewer_nodes),
    Guard(_STORAGE, ("content",), _FEWER, _loses_elements),
    Guard(_STORAGE, ("saferemove",), _SWITCHED_OFF, _is_turned_off("0")),
    Guard(_STORAGE, ("is_mountpoint",), "changed, so PVE may take it for not mounted", _is_changed_or_set),
    Guard(_STORAGE, ("tagged_only",), "volumes without a tag disappear", _is_turned_on),
    Guard(_STORAGE, ("transport",), "changed", _is_changed),
    Guard(_STORAGE, ("max-protected-backups",), "lowered", _allows_fewer_protected_backups),
    Guard(_SWITCHABLE, ("disable",), _SWITCHED_OFF, _is_turned_on),
    Guard(_MATCHER, ("target",), _FEWER, _loses_elements),
    Guard(
        _MATCHER,
        ("mode", "invert-match", "match-calendar", "match-field", "match-severity"),
        "fewer messages may match",
        _matches_less,
    ),
    Guard(_ENDPOINT, ("mailto", "mailto-user"), _FEWER, _loses_elements),
    Guard(_ENDPOINT, ("body", "method", "username"), "changed, so messages may not arrive", _is_changed),
    Guard(r"/cluster/acme/plugins/{id}", ("nodes",), _FEWER, _covers_fewer_nodes),
    Guard(r"/cluster/ha/resources/{sid}", ("max_restart", "max_relocate"), "lowered", _falls("1")),
    Guard(
        _HA, ("disable", "restricted", "strict"), "guests are recovered on fewer nodes, or the rule ends", _is_turned_on
    ),
    Guard(_HA, ("nodes",), _FEWER, _covers_fewer_nodes),
    Guard(_HA, ("resources",), _FEWER, _loses_elements),
    Guard(_HA, ("affinity",), "changed", _is_changed),
    Guard(_CONFIG, ("protection",), _SWITCHED_OFF, _is_turned_off("0")),
    Guard(_CONFIG, ("template",), "its linked clones build on what it could change", _is_turned_off("0")),
    Guard(r"/nodes/{node}/qemu/{vmid}/config", ("watchdog",), "removed", _is_removed),
    Guard(_CONFIG, ("net[n]",), "its firewall is switched off", _drops_firewall),
    Guard(_CONFIG, _DISKS, "left out of backups or replication", _leaves_backups),
    Guard(rf"{_FIREWALL}/options", ("enable", "ipfilter"), _SWITCHED_OFF, _is_turned_off("0")),
    Guard(rf"{_FIREWALL}/options", ("macfilter",), _SWITCHED_OFF, _is_turned_off("1")),
    Guard(rf"{_FIREWALL}/options", ("radv",), "switched on", _is_turned_on),
    Guard(rf"{_FIREWALL}/options", ("policy_in", "policy_out"), "ACCEPT instead of a refusal", _opens_policy),
    Guard(
        rf"{_FIREWALL}/rules/{{pos}}",
        (
            "action",
            "dest",
            "dport",
            "enable",
            "icmp-type",
            "iface",
            "macro",
            "moveto",
            "proto",
            "source",
            "sport",
            "type",
        ),
        "the rule blocks, and would block less",
        _lets_more_through,
    ),
)


# -- judging -----------------------------------------------------------------------------------------------------------


async def weakened_protections(cluster: Cluster, plan: Plan, facts: Facts) -> list[tuple[Call, Effect]]:
    """The calls of the plan after which something is protected less, each with its effects."""
    effects: list[tuple[Call, Effect]] = []
    for call in plan.api_calls:
        request = read(facts, call.method, call.path, call.params) if call.method in ("POST", "PUT") else None
        touched = [(guard, name) for guard in GUARDS for name in guard.touched_options(request)] if request else []
        if request and touched:
            effects += [(call, effect) for effect in await _compare(cluster, facts, request, touched)]
    return effects


async def _compare(
    cluster: Cluster, facts: Facts, request: Request, touched: Iterable[tuple[Guard, str]]
) -> list[Effect]:
    location = locate(facts, request)
    try:
        stored = await read_stored(cluster, location) if location else None
    except Problem:
        stored = None
    if stored is None:
        return [Effect(Reason.UNKNOWN_OBJECT)]
    after = predict(request, stored)
    if after is not None and location is not None and request.has("revert"):
        after = await _without_pending(cluster, location, request, after)
    if not stored.exists or after is None:  # an earlier call of the plan creates it, or PVE reports that it is missing
        return []
    edit = Edit(stored.options, {**after, **_position(request)}, cluster.clock.time())
    weaker = [Effect(guard.reason, name) for guard, name in touched if guard.weakens(edit, name)]
    return list(dict.fromkeys(weaker))


async def _without_pending(
    cluster: Cluster, location: Location, request: Request, after: Mapping[str, Any]
) -> Mapping[str, Any]:
    """PVE shows a guest as it will be; what is reverted stays as it is."""
    reverted = {*request.elements("revert")}
    current = await read_stored(cluster, replace(location, query=(("current", "1"),)))
    kept = {name: value for name, value in after.items() if name not in reverted}
    return kept | {name: value for name, value in current.options.items() if name in reverted}


def _position(request: Request) -> dict[str, Any]:
    """Where a firewall rule moves; a field of the request, but not of the rule."""
    return {"moveto": request.text("moveto")} if request.has("moveto") else {}
