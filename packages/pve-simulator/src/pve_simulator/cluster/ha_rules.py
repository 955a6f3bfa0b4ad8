"""The rules of HA, and the groups of PVE 8: which nodes resources prefer, and which belong together or apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pve_simulator.cluster.config_files import SectionFile, section_type
from pve_simulator.http.parameters import split_list
from pve_simulator.http.refusals import Refusal

_COMMON = "disable comment"
RULE_TYPES = {
    "node-affinity": section_type(required="resources nodes", optional=f"strict {_COMMON}"),
    "resource-affinity": section_type(required="resources affinity", optional=_COMMON),
}
GROUP_TYPES = {"group": section_type(required="nodes", optional="restricted nofailback comment")}

Rule = Mapping[str, Any]


class HaRules:
    """The two files: rules of PVE 9 and groups of PVE 8."""

    def __init__(self, *, nodes_have_affinity: bool) -> None:
        types = dict(RULE_TYPES)
        if nodes_have_affinity:  # since 9.2 a rule can also keep resources away from nodes
            plain = types["node-affinity"]
            types["node-affinity"] = replace(plain, optional=plain.optional | {"affinity"})
        self.rules = SectionFile(types)
        self.groups = SectionFile(GROUP_TYPES)

    def active(self, kind: str) -> dict[str, Rule]:
        """The enabled rules of a type."""
        return {
            name: rule for name, rule in self.rules.sections.items() if rule["type"] == kind and not rule.get("disable")
        }

    def of_resource(self, sid: str, kind: str) -> list[Rule]:
        return [rule for rule in self.active(kind).values() if sid in resources_of(rule)]

    def node_priorities(self, sid: str, group: str | None) -> tuple[dict[str, int], bool] | None:
        """The preferred nodes of a resource with their priorities, and whether others are forbidden."""
        if group is not None and group in self.groups.sections:
            section = self.groups.sections[group]
            return parse_nodes(section["nodes"]), bool(section.get("restricted"))
        for rule in self.of_resource(sid, "node-affinity"):
            return parse_nodes(rule["nodes"]), bool(rule.get("strict"))
        return None

    def partners(self, sid: str) -> tuple[list[str], list[str]]:
        """The resources that must share this one's node, and those that must not."""
        together: set[str] = set()
        apart: set[str] = set()
        for rule in self.of_resource(sid, "resource-affinity"):
            (together if rule["affinity"] == "positive" else apart).update(resources_of(rule))
        return sorted(together - {sid}), sorted(apart - {sid})

    def drop_resource(self, sid: str) -> None:
        """Remove a resource from all rules, and rules that become empty."""
        for name, rule in list(self.rules.sections.items()):
            left = [each for each in resources_of(rule) if each != sid]
            if left:
                rule["resources"] = ",".join(left)
            else:
                del self.rules.sections[name]


def resources_of(rule: Rule) -> list[str]:
    return sorted(set(split_list(rule["resources"])))


def parse_nodes(text: Any) -> dict[str, int]:
    """Node -> priority of `n1:2,n2`."""
    priorities = {}
    for part in split_list(text):
        name, _, priority = part.partition(":")
        priorities[name] = int(priority) if priority.isdecimal() else 0
    return priorities


def written_nodes(text: Any) -> str:
    """The list as PVE writes it: sorted by name, without zero priorities."""
    return ",".join(f"{name}:{value}" if value else name for name, value in sorted(parse_nodes(text).items()))


def errors_of(rules: HaRules, node_count: int) -> dict[str, list[str]]:
    """Infeasible rules, with the reasons."""
    errors: dict[str, list[str]] = {}
    affinity_rules = rules.active("node-affinity")
    for name, rule in affinity_rules.items():
        for sid in resources_of(rule):
            if any(sid in resources_of(other) for other_name, other in affinity_rules.items() if other_name != name):
                text = f"resource '{sid}' is already used in another node affinity rule"
                errors.setdefault(name, []).append(text)
    relations = rules.active("resource-affinity")
    for name, rule in relations.items():
        errors.setdefault(name, []).extend(_relation_errors(rule, relations, node_count))
    return {name: texts for name, texts in errors.items() if texts}


def _relation_errors(rule: Rule, relations: Mapping[str, Rule], node_count: int) -> list[str]:
    resources, affinity = set(resources_of(rule)), rule["affinity"]
    errors = []
    if len(resources) < 2:
        errors.append("rule is ineffective as there are less than two resources")
    if affinity == "negative" and len(resources) > node_count:
        errors.append("rule defines more resources than available nodes")
    return errors + [
        f"rule shares two or more resources with a {other['affinity']} resource affinity rule"
        for other in relations.values()
        if other["affinity"] != affinity and len(resources & set(resources_of(other))) >= 2
    ]


def refuse_infeasible(rules: HaRules, name: str, node_count: int) -> None:
    """HTTP 400 if the rule conflicts with the others."""
    errors = errors_of(rules, node_count).get(name)
    if errors:
        raise Refusal(400, f"Rule '{name}' is invalid.\n", {"resources": ", ".join(errors)})
