"""Firewall rules of every place: list, one, create, change, move, delete."""

from __future__ import annotations

from typing import Any

from quorate.sim.api import firewall_places as places
from quorate.sim.api.firewall_places import Place, place_of
from quorate.sim.config_files import check_digest, digest_of, split_list
from quorate.sim.firewall import Entry, with_digest
from quorate.sim.firewall_rules import RULE_KEYS, check_formats, check_rule, copy_rule
from quorate.sim.refusals import failure
from quorate.sim.routing import Call, Handler, route

_LISTS = (
    places.GROUP,
    *(f"{place}/rules" for place in (places.CLUSTER, places.NODE, places.QEMU, places.LXC, places.VNET)),
)
# Where the file of a node or guest has no rules at all, PVE's code trips over it; the line tells where.
_TRIPS = "Can't use an undefined value as an ARRAY reference at /usr/share/perl5/PVE/API2/Firewall/Rules.pm line {}."
_LINE_OF_UPDATE = 386
_LINE_OF_DELETE = 462


def _for_all(method: str, *, one: bool = False) -> list[str]:
    return [f"{method} {path}{'/{pos}' if one else ''}" for path in _LISTS]


def list_rules(call: Call) -> list[Entry]:
    rules = with_digest(place_of(call).rules)
    return [{**rule, "pos": pos} for pos, rule in enumerate(rules)]


def one_rule(call: Call) -> Entry:
    rules = list_rules(call)
    pos: int = call.params["pos"]
    if pos >= len(rules):
        raise failure(f"no rule at position {pos}")
    return rules[pos]


def create_rule(call: Call) -> None:
    """A new rule comes first, and does nothing until it is enabled."""
    check_formats(call.params)
    place = place_of(call, changes=True)
    rule: Entry = {}
    copy_rule(rule, call.params)
    check_rule(rule, place.kind, place.own, place.cluster)
    rule.setdefault("enable", 0)
    place.rules.insert(0, rule)


def update_rule(call: Call) -> None:
    check_formats(call.params)
    place, pos = _existing(call, _LINE_OF_UPDATE)
    moveto = call.params.get("moveto")
    if moveto is not None and moveto != pos:
        _move(place.rules, pos, moveto)
        return
    changed = dict(place.rules[pos])
    copy_rule(changed, call.params)
    for key in split_list(call.params.get("delete")):
        if key in RULE_KEYS:
            changed.pop(key, None)
    check_rule(changed, place.kind, place.own, place.cluster)
    place.rules[pos] = changed


def delete_rule(call: Call) -> None:
    place, pos = _existing(call, _LINE_OF_DELETE)
    del place.rules[pos]


def _existing(call: Call, line: int) -> tuple[Place, int]:
    place, pos = place_of(call, changes=True), call.params["pos"]
    check_digest(digest_of(place.rules), call.params.get("digest"))
    if not place.rules and place.kind in ("host", "vm", "ct"):
        raise failure(_TRIPS.format(line))
    if pos >= len(place.rules):
        raise failure(f"no rule at position {pos}")
    return place, pos


def _move(rules: list[Any], pos: int, moveto: int) -> None:
    """`moveto` counts in the list as it was: the rule comes before the one that is there now."""
    rule = rules[pos]
    before = [each for index, each in enumerate(rules[:moveto]) if index != pos]
    after = [each for index, each in enumerate(rules[moveto:], moveto) if index != pos]
    rules[:] = [*before, rule, *after]


_HANDLERS: tuple[tuple[str, bool, Handler], ...] = (
    ("GET", False, list_rules),
    ("GET", True, one_rule),
    ("POST", False, create_rule),
    ("PUT", True, update_rule),
    ("DELETE", True, delete_rule),
)
for _method, _one, _handler in _HANDLERS:
    route(*_for_all(_method, one=_one))(_handler)
