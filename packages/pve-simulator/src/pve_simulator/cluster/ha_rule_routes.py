"""HA rules of PVE 9, and the groups that came before them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pve_simulator.cluster.config_files import Section, SectionFile, changing, options_of
from pve_simulator.cluster.ha_manager import HaManager
from pve_simulator.cluster.ha_rules import (
    HaRules,
    errors_of,
    parse_nodes,
    refuse_infeasible,
    resources_of,
    written_nodes,
)
from pve_simulator.cluster.sections import Sections, texts
from pve_simulator.http.refusals import failure, flatten_errors
from pve_simulator.http.routing import Call


class _Rules(Sections):
    path, key = "/cluster/ha/rules", "rule"
    taken = "HA rule '{name}' already defined"
    missing = texts(read="no such ha rule '{name}'", update="HA rule '{name}' does not exist")

    def file(self, call: Call) -> SectionFile:
        return _rules(call).rules

    def lock(self, _call: Call, verb: str) -> Any:
        return changing({"create": "create ha rule failed"}.get(verb, f"{verb} HA rules failed"))

    def options(self, call: Call) -> Section:
        return options_of(super().options(call), "type")

    def visible(self, call: Call, _name: str, section: Section) -> bool:
        return call.params.get("resource") in (None, *resources_of(section))

    def row(self, call: Call, name: str, section: Section) -> Section:
        rules = _rules(call)
        shown = super().row(call, name, section) | {"order": list(rules.rules.sections).index(name) + 1}
        if section["type"] == "node-affinity" and call.world.version_at_least(9, 2):
            shown.setdefault("affinity", "positive")
        errors = errors_of(rules, _node_count(call)).get(name)
        return shown | ({"errors": {"resources": errors}} if errors else {})

    def check(self, call: Call, _name: str, section: Section, _before: Section | None) -> None:
        if call.params["type"] != section["type"]:
            raise failure("unexpected property 'type'")
        unmanaged = [sid for sid in resources_of(section) if sid not in call.world.ha]
        if unmanaged:
            raise failure(f"cannot use unmanaged resource(s) {', '.join(unmanaged)}.")
        missing = [node for node in sorted(parse_nodes(section.get("nodes"))) if node not in call.world.nodes]
        if missing:
            raise failure(f"cannot use non-existent node(s) {', '.join(missing)}.")

    def keep(self, call: Call, name: str, section: Section) -> None:
        """Store the rule, unless it conflicts with others."""
        rules = _rules(call)
        before = dict(rules.rules.sections)
        section["resources"] = ",".join(resources_of(section))
        if "nodes" in section:
            section["nodes"] = written_nodes(section["nodes"])
        rules.rules.sections[name] = section
        try:
            with flatten_errors():
                refuse_infeasible(rules, name, _node_count(call))
        except BaseException:
            rules.rules.sections = before
            raise
        call.world.part(HaManager).wake()


def _node_count(call: Call) -> int:
    """The number of nodes for anti-affinity; a standalone node counts as none."""
    return 0 if call.world.standalone else len(call.world.nodes)


class _Groups(Sections):
    """HA groups of PVE 8; PVE 9 refuses every call."""

    path, key, kind = "/cluster/ha/groups", "group", "group"
    failing, locks_early = "{verb} ha group failed", True
    taken = "ha group ID '{name}' already defined"
    missing = texts(read="no such ha group '{name}'", update="no such ha group '{name}'")

    def file(self, call: Call) -> SectionFile:
        return _rules(call).groups

    def list(self, call: Call) -> Any:
        _refuse_migrated(call, "index groups")
        return super().list(call)

    def read(self, call: Call) -> Any:
        _refuse_migrated(call, "read group")
        return super().read(call)

    @contextmanager
    def lock(self, call: Call, verb: str) -> Iterator[None]:
        _refuse_migrated(call, f"{verb} group")
        with super().lock(call, verb):
            yield
        call.world.part(HaManager).wake()

    def check_unused(self, call: Call, name: str) -> None:
        for resource in call.world.ha.values():
            if resource.group == name:
                raise failure(f"ha group is used by service '{resource.sid}'")


_Rules()
_Groups()


def _refuse_migrated(call: Call, what: str) -> None:
    if call.world.version_at_least(9, 0):
        raise failure(f"cannot {what}: ha groups have been migrated to rules")


def _rules(call: Call) -> HaRules:
    return call.world.part(HaManager).rules
