"""HA rules of PVE 9, and the groups that came before them."""

from __future__ import annotations

import copy
from typing import Any

from quorate.sim.config_files import changing
from quorate.sim.ha_manager import HaManager
from quorate.sim.ha_rules import HaRules, errors_of, parse_nodes, refuse_infeasible, resources_of, written_nodes
from quorate.sim.refusals import failure
from quorate.sim.routing import Call, route
from quorate.sim.sections import Section, options_of

_MIGRATED = "ha groups have been migrated to rules"


@route("GET /cluster/ha/rules")
def list_rules(call: Call) -> list[dict[str, Any]]:
    rules, kind, resource = _rules(call), call.params.get("type"), call.params.get("resource")
    return [
        _shown_rule(call, name)
        for name, rule in rules.rules.sections.items()
        if kind in (None, rule["type"]) and (resource is None or resource in resources_of(rule))
    ]


@route("GET /cluster/ha/rules/{rule}")
def read_rule(call: Call) -> dict[str, Any]:
    if call.params["rule"] not in _rules(call).rules.sections:
        raise failure(f"no such ha rule '{call.params['rule']}'")
    return _shown_rule(call, call.params["rule"])


@route("POST /cluster/ha/rules")
def create_rule(call: Call) -> None:
    rules, name = _rules(call), call.params["rule"]
    section = rules.rules.new_section(call.params["type"], options_of(call.params, "rule", "type"))
    with changing("create ha rule failed"):
        if name in rules.rules.sections:
            raise failure(f"HA rule '{name}' already defined")
        _check_members(call, section)
    _keep_if_feasible(call, name, section)


@route("PUT /cluster/ha/rules/{rule}")
def change_rule(call: Call) -> None:
    rules, name = _rules(call), call.params["rule"]
    with changing("update HA rules failed"):
        rules.rules.check_digest(call.params.get("digest"))
        if name not in rules.rules.sections:
            raise failure(f"HA rule '{name}' does not exist")
        section = copy.copy(rules.rules.sections[name])
        given = options_of(call.params, "rule", "type", "digest", "delete")
        rules.rules.change(section, given, call.params.get("delete"))
        _check_members(call, section)
    _keep_if_feasible(call, name, section)


@route("DELETE /cluster/ha/rules/{rule}")
def delete_rule(call: Call) -> None:
    _rules(call).rules.sections.pop(call.params["rule"], None)


def _check_members(call: Call, section: Section) -> None:
    unmanaged = [sid for sid in resources_of(section) if sid not in call.world.ha]
    if unmanaged:
        raise failure(f"cannot use unmanaged resource(s) {', '.join(unmanaged)}.")
    missing = [node for node in sorted(parse_nodes(section.get("nodes"))) if node not in call.world.nodes]
    if missing:
        raise failure(f"cannot use non-existant node(s) {', '.join(missing)}.")


def _keep_if_feasible(call: Call, name: str, section: Section) -> None:
    rules = _rules(call)
    before = rules.rules.sections.get(name)
    section["resources"] = ",".join(resources_of(section))
    if "nodes" in section:
        section["nodes"] = written_nodes(section["nodes"])
    rules.rules.sections[name] = section
    try:
        refuse_infeasible(rules, name, len(call.world.nodes))
    except BaseException:
        if before is None:
            del rules.rules.sections[name]
        else:
            rules.rules.sections[name] = before
        raise
    call.world.part(HaManager).wake()


def _shown_rule(call: Call, name: str) -> dict[str, Any]:
    rules = _rules(call)
    section = rules.rules.sections[name]
    shown: dict[str, Any] = {
        "rule": name,
        **section,
        "digest": rules.rules.digest(),
        "order": list(rules.rules.sections).index(name) + 1,
    }
    if section["type"] == "node-affinity":
        shown.setdefault("strict", 0)
        if call.world.version_at_least(9, 2):
            shown.setdefault("affinity", "positive")
    errors = errors_of(rules, len(call.world.nodes)).get(name)
    return shown | ({"errors": {"resources": errors}} if errors else {})


@route("GET /cluster/ha/groups")
def list_groups(call: Call) -> list[dict[str, Any]]:
    _refuse_migrated(call, "index groups")
    return [_shown_group(call, name) for name in _rules(call).groups.sections]


@route("GET /cluster/ha/groups/{group}")
def read_group(call: Call) -> dict[str, Any]:
    _refuse_migrated(call, "read group")
    return _shown_group(call, _existing_group(call, "no such ha group '{}'"))


@route("POST /cluster/ha/groups")
def create_group(call: Call) -> None:
    _refuse_migrated(call, "create group")
    groups, name = _rules(call).groups, call.params["group"]
    with changing("create ha group failed"):
        if name in groups.sections:
            raise failure(f"ha group ID '{name}' already defined")
        groups.sections[name] = groups.new_section("group", options_of(call.params, "group", "type"))
    call.world.part(HaManager).wake()


@route("PUT /cluster/ha/groups/{group}")
def change_group(call: Call) -> None:
    _refuse_migrated(call, "update group")
    groups = _rules(call).groups
    with changing("update ha group failed"):
        groups.check_digest(call.params.get("digest"))
        section = groups.sections[_existing_group(call, "no such ha group '{}'")]
        given = options_of(call.params, "group", "digest", "delete")
        groups.change(section, given, call.params.get("delete"))
    call.world.part(HaManager).wake()


@route("DELETE /cluster/ha/groups/{group}")
def delete_group(call: Call) -> None:
    _refuse_migrated(call, "delete group")
    with changing("delete ha group failed"):
        for resource in call.world.ha.values():
            if resource.group == call.params["group"]:
                raise failure(f"ha group is used by service '{resource.sid}'")
    _rules(call).groups.sections.pop(call.params["group"], None)


def _existing_group(call: Call, missing: str) -> str:
    name: str = call.params["group"]
    if name not in _rules(call).groups.sections:
        raise failure(missing.format(name))
    return name


def _refuse_migrated(call: Call, what: str) -> None:
    if call.world.version_at_least(9, 0):
        raise failure(f"cannot {what}: {_MIGRATED}")


def _shown_group(call: Call, name: str) -> dict[str, Any]:
    groups = _rules(call).groups
    return {"group": name, **groups.sections[name], "digest": groups.digest()}


def _rules(call: Call) -> HaRules:
    return call.world.part(HaManager).rules
