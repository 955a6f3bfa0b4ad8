"""Whether the nodes could still be reached for management (8006, 22) under a given firewall.

PVE goes through a node's own rules, then the cluster's; the first that matches decides. After them it lets the
IP set `management` and the nodes' local network in, and what is left meets the cluster's input policy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from quorate.hints import FIREWALL_RULE_SET, Advice
from quorate.operations.firewall.scopes import CLUSTER
from quorate.problems import Conflict, Problem
from quorate.pve.cluster import Cluster

WEB, SSH = 8006, 22
SERVICES = {WEB: "the web interface and API (8006)", SSH: "SSH (22)"}

_MACROS = {"ssh": {SSH}}
_PORT_NAMES = {"ssh": SSH}
_TCP = ("", "tcp", "6")
# A rule with one of these concerns some of the packets only.
_NARROWING = ("source", "dest", "sport", "iface")

Rule = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Firewall:
    """What decides about packets to the nodes themselves."""

    options: Mapping[str, Any]
    rules: tuple[Rule, ...]
    groups: Mapping[str, tuple[Rule, ...]]
    node_options: Mapping[str, Mapping[str, Any]]
    node_rules: Mapping[str, tuple[Rule, ...]]
    management: tuple[str, ...] = ()

    def is_on(self, node: str) -> bool:
        return bool(int(self.options.get("enable", 0))) and bool(int(self.node_options[node].get("enable", 1)))


@dataclass(frozen=True, slots=True)
class Access:
    """Who reaches a port of a node."""

    everyone: bool = False
    sources: tuple[str, ...] = ()
    blocked_by: str | None = None
    """The rule that blocks everyone else, if it is a rule."""


async def read(pve: Cluster) -> Firewall:
    nodes = sorted(row.node for row in await pve.inventory.of_type("node") if row.status == "online")
    options, rules, groups, sets, *of_nodes = await asyncio.gather(
        pve.get(f"{CLUSTER}/options"),
        pve.get(f"{CLUSTER}/rules"),
        pve.get(f"{CLUSTER}/groups"),
        pve.get(f"{CLUSTER}/ipset"),
        *(pve.get(f"/nodes/{node}/firewall/{part}") for node in nodes for part in ("options", "rules")),
    )
    names = [str(row["group"]) for row in groups]
    in_groups = await asyncio.gather(*(pve.get(f"{CLUSTER}/groups/{name}") for name in names))
    managed = any(row["name"] == "management" for row in sets)
    members = await pve.get(f"{CLUSTER}/ipset/management") if managed else []
    return Firewall(
        options=options,
        rules=tuple(rules),
        groups={name: tuple(found) for name, found in zip(names, in_groups, strict=True)},
        node_options=dict(zip(nodes, of_nodes[::2], strict=True)),
        node_rules={node: tuple(found) for node, found in zip(nodes, of_nodes[1::2], strict=True)},
        management=tuple(row["cidr"] for row in members if not row.get("nomatch")),
    )


def access_to(firewall: Firewall, node: str, port: int) -> Access:
    if not firewall.is_on(node):
        return Access(everyone=True)
    sources: list[str] = []
    for where, rule in _in_order(firewall, node):
        if not _concerns(rule, port):
            continue
        narrow = [f"{key} {rule[key]}" for key in _NARROWING if rule.get(key)]
        if rule["action"] == "ACCEPT":
            if not narrow:
                return Access(everyone=True)
            sources.append(", ".join(narrow).removeprefix("source "))
        elif not narrow:
            return Access(
                sources=tuple(sources), blocked_by=f"rule {rule.get('pos', '?')} of {where} ({rule['action']})"
            )
    if firewall.options.get("policy_in", "DROP") == "ACCEPT":
        return Access(everyone=True)
    return Access(sources=(*sources, "the nodes' local network", *firewall.management))


def _in_order(firewall: Firewall, node: str) -> Iterable[tuple[str, Rule]]:
    for where, rules in ((f"node {node}", firewall.node_rules[node]), ("the cluster", firewall.rules)):
        for rule in rules:
            if not rule.get("enable"):
                continue
            if rule["type"] == "group":
                name = str(rule["action"])
                inner = (one for one in firewall.groups.get(name, ()) if one.get("enable") and one["type"] == "in")
                yield from ((f"security group {name}", one) for one in inner)
            elif rule["type"] == "in":
                yield where, rule


def _concerns(rule: Rule, port: int) -> bool:
    if rule.get("macro"):
        return port in _MACROS.get(str(rule["macro"]).lower(), ())
    if str(rule.get("proto", "")) not in _TCP:
        return False
    return not rule.get("dport") or any(_covers(part, port) for part in str(rule["dport"]).split(","))


def _covers(part: str, port: int) -> bool:
    first, colon, last = part.strip().partition(":")
    if colon:
        return first.isdecimal() and last.isdecimal() and int(first) <= port <= int(last)
    return (int(first) if first.isdecimal() else _PORT_NAMES.get(first.lower())) == port


def remarks(firewall: Firewall) -> list[str]:
    """Who would still get in, one sentence for the nodes that are alike; nothing where everyone does."""
    found: dict[str, list[str]] = {}
    for node in firewall.node_rules:
        for port, service in SERVICES.items():
            access = access_to(firewall, node, port)
            if not access.everyone:
                found.setdefault(_sentence(service, access), []).append(node)
    return [f"{', '.join(nodes)}: {sentence}" for sentence, nodes in found.items()]


def _sentence(service: str, access: Access) -> str:
    if not access.sources:
        return f"{service} is closed to everyone by {access.blocked_by}"
    return f"{service} is open only from {'; '.join(access.sources)}" + (
        f", then closed by {access.blocked_by}" if access.blocked_by else ""
    )


def refuse_lockout(firewall: Firewall) -> None:
    """Nobody could undo it remotely, not even Quorate."""
    for node in firewall.node_rules:
        access = access_to(firewall, node, WEB)
        if not access.everyone and not access.sources:
            raise Conflict(
                f"This would lock everyone out of {node}",
                why=f"There, {SERVICES[WEB]} would be closed by {access.blocked_by}",
                next_step=Advice(
                    "Nothing was changed. First add an enabled ACCEPT rule for tcp 8006 from your network above it",
                    FIREWALL_RULE_SET,
                ),
            )


async def consequences(pve: Cluster, change: Any) -> list[str]:
    """What a change of the firewall means for management access; `change` maps the current Firewall to the new one."""
    try:
        before = await read(pve)
    except Problem as problem:
        return [f"Whether the nodes stay reachable could not be checked: {problem.what}"]
    after: Firewall = change(before)
    if not any(after.is_on(node) for node in after.node_rules):
        return []
    refuse_lockout(after)
    return remarks(after)


def with_rules(firewall: Firewall, scope: str, name: str, rules: Iterable[Rule]) -> Firewall:
    """The same firewall with other rules in one place, renumbered."""
    numbered = tuple({**rule, "pos": pos} for pos, rule in enumerate(rules))
    if scope == "cluster":
        return replace(firewall, rules=numbered)
    if scope == "group":
        return replace(firewall, groups={**firewall.groups, name: numbered})
    return replace(firewall, node_rules={**firewall.node_rules, name: numbered})
