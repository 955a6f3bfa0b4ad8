"""Firewall rules of the cluster, nodes and guests, and whether the nodes can still be reached under them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, Literal

from msgspec import Meta

from quorate.hints import NAMED, OMITTED, Advice, ArgumentHint, Sentence, either, tools
from quorate.operations.plan import Call, Plan, Target, create_or_change, unset_empty
from quorate.operations.registry import Risk, Table, operation, page
from quorate.problems import BadArgument, Conflict, NotFound, Problem
from quorate.pve import values
from quorate.pve.cluster import Cluster, Guest
from quorate.pve.tasks import gather_bounded
from quorate.tools.directory import unknown
from quorate.tools.firewall_packets import Match, Rule, match_port
from quorate.units import count_of

CLUSTER = "/cluster/firewall"
READS_AT_ONCE = 8
NO_LOG = ("no content", "unable to open file")

RULE_COLUMNS = {
    "pos": "pos",
    "on": "enable",
    "type": "type",
    "action": "action",
    "macro": "macro",
    "proto": "proto",
    "source": "source",
    "sport": "sport",
    "dest": "dest",
    "dport": "dport",
    "icmp": "icmp-type",
    "iface": "iface",
    "log": "log",
    "comment": "comment",
}
# Defaults, so that the answer is complete where nothing is set.
DEFAULTS: dict[str, dict[str, Any]] = {
    "cluster": {"enable": 0, "policy_in": "DROP", "policy_out": "ACCEPT"},
    "node": {"enable": 1},
    "guest": {"enable": 0, "policy_in": "DROP", "policy_out": "ACCEPT"},
}

Scope = Literal["cluster", "node", "guest", "group"]
FileScope = Literal["cluster", "node", "guest"]
ObjectScope = Literal["cluster", "guest"]
Of = Annotated[int | str, Meta(description="The node, guest (vmid or name) or security group; not for cluster")]
Digest = Annotated[str, Meta(description="From firewall_get: only if unchanged since")]


@dataclass(frozen=True, slots=True)
class FirewallScope:
    """A set of firewall rules, and where PVE has it."""

    scope: str
    base: str
    rules: str
    label: str
    target: Target
    guest: Guest | None = None


async def scope_of(pve: Cluster, scope: str, of: int | str | None) -> FirewallScope:
    if scope == "cluster":
        if of is not None:
            raise BadArgument(
                "There is one cluster only",
                next_step=either(Advice("Leave `{of}` out", of=OMITTED), "choose another scope"),
            )
        return FirewallScope(scope, CLUSTER, f"{CLUSTER}/rules", "the cluster", Target("firewall", "cluster"))
    if of is None:
        raise BadArgument(
            f"Which {scope}?", next_step=Advice("Give it as `{of}`, together with {scope}", of=NAMED, scope=scope)
        )
    if scope == "node":
        node = (await pve.inventory.node(str(of))).node
        base = f"/nodes/{node}/firewall"
        return FirewallScope(scope, base, f"{base}/rules", f"node {node}", Target("node", node, node=node))
    if scope == "guest":
        guest = await pve.guest(of)
        base = guest.path("firewall")
        target = Target.of_guest(guest)
        return FirewallScope(scope, base, f"{base}/rules", str(guest), target, guest)
    known = [str(row["group"]) for row in await pve.get(f"{CLUSTER}/groups")]
    if str(of) not in known:
        raise unknown("security group", str(of), known)
    return FirewallScope(
        scope, CLUSTER, f"{CLUSTER}/groups/{of}", f"security group {of}", Target("firewall group", str(of))
    )


@operation(
    toolset="firewall",
    risk=Risk.READ,
    search_words="show firewall rules ports open closed blocked reachable allowed log dropped packets",
)
async def firewall_get(
    pve: Cluster,
    scope: Scope = "cluster",
    of: Of | None = None,
    show: Annotated[
        Literal["rules", "objects", "log"], Meta(description="objects: aliases, IP sets, security groups")
    ] = "rules",
    limit: Annotated[int, Meta(ge=1, le=200)] = 50,
    offset: Annotated[int, Meta(ge=0)] = 0,
) -> Table:
    """Firewall rules in order of precedence, with options and whether it is active; or objects, or the log."""
    firewall = await scope_of(pve, scope, of)
    if show == "log":
        return await _log(pve, firewall, limit, offset)
    if show == "objects":
        return page(("kind", "name", "value", "comment"), await _objects(pve, firewall), limit=limit, offset=offset)
    rules = await pve.get(firewall.rules)
    table = page(tuple(RULE_COLUMNS), [rule_row(rule) for rule in rules], limit=limit, offset=offset)
    table.facts = {} if not rules else {"digest": rules[0].get("digest", "")}
    if scope != "group":
        options = await options_of(pve, firewall)
        table.facts |= {"options_digest": options.pop("digest", ""), "options": options}
        table.facts["in_force"] = "; ".join(await not_in_force(pve, firewall, options)) or "yes"
    return table


def rule_row(rule: dict[str, Any]) -> list[Any]:
    return [
        ("yes" if rule.get("enable") else "no") if key == "enable" else rule.get(key, "")
        for key in RULE_COLUMNS.values()
    ]


async def options_of(pve: Cluster, firewall: FirewallScope) -> dict[str, Any]:
    """The options that count, defaults included."""
    return with_defaults(firewall, await pve.get(f"{firewall.base}/options"))


def with_defaults(firewall: FirewallScope, stored: Mapping[str, Any]) -> dict[str, Any]:
    options = {**DEFAULTS[firewall.scope], **stored}
    return options | {"enable": int(options["enable"])}


async def not_in_force(pve: Cluster, firewall: FirewallScope, options: dict[str, Any]) -> list[str]:
    """The reasons why the rules of a scope have no effect; empty if they are active."""
    reasons = [] if options.get("enable") else [f"no: the firewall of {firewall.label} is off"]
    if firewall.scope == "cluster":
        return reasons
    try:
        everywhere = await pve.get(f"{CLUSTER}/options")
    except Problem:
        return reasons  # seeing a guest does not include seeing the cluster's firewall
    if not int(everywhere.get("enable", 0)):
        reasons.append("no: the firewall of the cluster is off, and with it all others")
    if firewall.guest is not None:
        config = await firewall.guest.get("config")
        open_ports = [
            key
            for key, value in sorted(config.items())
            if values.bus_of(key) == "net" and not values.is_on(values.parse(str(value), "model").get("firewall", "0"))
        ]
        if open_ports:
            reasons.append(f"not for {', '.join(open_ports)}: without firewall=1")
    return reasons


async def _objects(pve: Cluster, firewall: FirewallScope) -> list[list[Any]]:
    if firewall.scope not in ("cluster", "guest"):
        raise BadArgument(
            f"A {firewall.scope} has no aliases and IP sets of its own",
            next_step=Advice("The cluster and guests have; use {scope}", scope="cluster or guest"),
        )
    rows = [
        ["alias", alias["name"], alias["cidr"], alias.get("comment", "")]
        for alias in await pve.get(f"{firewall.base}/aliases")
    ]
    sets = await pve.get(f"{firewall.base}/ipset")
    contents = await gather_bounded(
        READS_AT_ONCE, [partial(pve.get, f"{firewall.base}/ipset/{ipset['name']}") for ipset in sets]
    )
    for ipset, members in zip(sets, contents, strict=True):
        listed = ", ".join(("!" if member.get("nomatch") else "") + member["cidr"] for member in members)
        rows.append(["ipset", ipset["name"], listed, ipset.get("comment", "")])
    if firewall.scope == "cluster":
        rows += [
            ["group", group["group"], "", group.get("comment", "")] for group in await pve.get(f"{CLUSTER}/groups")
        ]
    return rows


async def _log(pve: Cluster, firewall: FirewallScope, limit: int, offset: int) -> Table:
    """The newest lines first: `offset` goes back in time."""
    if firewall.scope not in ("node", "guest"):
        raise BadArgument(
            "Firewall logs are kept by node and guest",
            next_step=Advice("Use {scope} with `{of}`", scope="node or guest", of=NAMED),
        )
    answer = await pve.client.request("GET", f"{firewall.base}/log", {"start": 0, "limit": 1})
    total = answer.total or 0
    last = max(total - offset, 0)
    first = max(last - limit, 0)
    lines = await pve.get(f"{firewall.base}/log", start=first, limit=last - first) if last > first else []
    texts = [str(line.get("t", "")) for line in lines]
    if len(texts) == 1 and texts[0].startswith(NO_LOG):
        texts, total = [], 0
    return Table(("line",), [[text] for text in reversed(texts)], total, offset)


WEB, SSH = 8006, 22
SERVICES = {WEB: "the web interface and API (8006)", SSH: "SSH (22)"}

# A rule with one of these concerns some of the packets only.
_NARROWING = ("source", "dest", "sport", "iface")


@dataclass(frozen=True, slots=True)
class Firewall:
    """All settings that decide about packets to the nodes themselves."""

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
    """The senders that reach a port of a node."""

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
        groups={name: tuple(contents) for name, contents in zip(names, in_groups, strict=True)},
        node_options=dict(zip(nodes, of_nodes[::2], strict=True)),
        node_rules={node: tuple(contents) for node, contents in zip(nodes, of_nodes[1::2], strict=True)},
        management=tuple(row["cidr"] for row in members if not row.get("nomatch")),
    )


def access_to(firewall: Firewall, node: str, port: int) -> Access:
    if not firewall.is_on(node):
        return Access(everyone=True)
    sources: list[str] = []
    for where, rule in _in_order(firewall, node):
        if match_port(rule, port) is not Match.YES:
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
                inner = (
                    inner_rule
                    for inner_rule in firewall.groups.get(name, ())
                    if inner_rule.get("enable") and inner_rule["type"] == "in"
                )
                yield from ((f"security group {name}", inner_rule) for inner_rule in inner)
            elif rule["type"] == "in":
                yield where, rule


def remarks(firewall: Firewall) -> list[str]:
    """A sentence about who can still get in, per group of nodes that are alike; nothing for nodes open to everyone."""
    nodes_by_sentence: dict[str, list[str]] = {}
    for node in firewall.node_rules:
        for port, service in SERVICES.items():
            access = access_to(firewall, node, port)
            if not access.everyone:
                nodes_by_sentence.setdefault(_sentence(service, access), []).append(node)
    return [f"{', '.join(nodes)}: {sentence}" for sentence, nodes in nodes_by_sentence.items()]


def _sentence(service: str, access: Access) -> str:
    if not access.sources:
        return f"{service} is closed to everyone by {access.blocked_by}"
    return f"{service} is open only from {'; '.join(access.sources)}" + (
        f", then closed by {access.blocked_by}" if access.blocked_by else ""
    )


def refuse_lockout(firewall: Firewall) -> None:
    """Refuse what nobody could undo remotely, not even Quorate."""
    for node in firewall.node_rules:
        access = access_to(firewall, node, WEB)
        if not access.everyone and not access.sources:
            raise Conflict(
                f"This would lock everyone out of {node}",
                why=f"There, {SERVICES[WEB]} would be closed by {access.blocked_by}",
                next_step=Advice(
                    "Nothing was changed. First add an enabled ACCEPT rule for tcp 8006 from your network above it",
                    tools.firewall_rule_set,
                ),
            )


async def consequences(pve: Cluster, change: Any) -> list[str]:
    """The effect of a change on management access; `change` maps the current Firewall to the new one."""
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


RULE_KEYS = (
    "type", "action", "macro", "proto", "source", "sport", "dest", "dport", "icmp-type", "iface", "log", "comment",
    "enable",
)  # fmt: skip
_VERDICTS = ("ACCEPT", "DROP", "REJECT")


def risk_of(arguments: Mapping[str, Any]) -> Risk:
    """A guest's rules affect that guest. All others can cut off the nodes, and with them the means to undo it."""
    return Risk.CHANGE if arguments["scope"] == "guest" else Risk.DESTROY


@operation(
    toolset="firewall",
    risk=Risk.DESTROY,
    risk_of=risk_of,
    least=Risk.CHANGE,
    search_words=(
        "limit restrict reach webgui only open close port allow block deny accept drop isolate traffic incoming "
        "outgoing inbound internet lan ssh http tcp udp"
    ),
    example="scope=guest of=docker01 type=in action=ACCEPT proto=tcp dport=443",
)
async def firewall_rule_set(
    pve: Cluster,
    scope: Scope,
    of: Of | None = None,
    pos: Annotated[int, Meta(ge=0, description="The rule to change; without it one is added")] | None = None,
    move_to: Annotated[int, Meta(ge=0, description="New position; a new rule goes first")] | None = None,
    type: Literal["in", "out", "forward", "group"] | None = None,
    action: Annotated[str, Meta(description="ACCEPT, DROP, REJECT, or the security group")] | None = None,
    enable: Annotated[bool, Meta(description="A new rule is on unless false")] | None = None,
    macro: str | None = None,
    proto: str | None = None,
    source: Annotated[str, Meta(description="CIDRs, an alias or +ipset")] | None = None,
    dest: str | None = None,
    sport: str | None = None,
    dport: Annotated[str, Meta(description="80,443 or 8000:8100")] | None = None,
    icmp_type: str | None = None,
    iface: str | None = None,
    log: str | None = None,
    comment: str | None = None,
    digest: Digest | None = None,
) -> Plan:
    """Add a firewall rule, or change or move one; "" clears a field. Rules are numbered from the top. Scopes other
    than guest need access admin."""
    requested = {
        "type": type, "action": action, "macro": macro, "proto": proto, "source": source, "dest": dest,
        "sport": sport, "dport": dport, "icmp-type": icmp_type, "iface": iface, "log": log, "comment": comment,
        "enable": None if enable is None else int(enable),
    }  # fmt: skip
    settings: dict[str, Any] = {name: value for name, value in requested.items() if value is not None}
    firewall = await scope_of(pve, scope, of)
    rules = await read_rules(pve, firewall, digest)
    if move_to is not None and move_to > len(rules) - (pos is not None):
        raise BadArgument(
            Sentence("{move_to} is beyond the end", move_to=move_to),
            next_step=f"{firewall.label} has {count_of(len(rules), 'rule')}",
        )
    kind = type or (_at(firewall, rules, pos).get("type") if pos is not None else None)
    if action and kind != "group" and action.upper() in _VERDICTS:
        settings["action"] = action.upper()
    if pos is None:
        return await _add(pve, firewall, rules, settings, move_to or 0)
    return await _change(pve, firewall, rules, pos, settings, move_to)


async def plan_rule_deletion(pve: Cluster, firewall: FirewallScope, pos: int, digest: str | None) -> Plan:
    rules = await read_rules(pve, firewall, digest)
    rule = _at(firewall, rules, pos)
    left = [other for other in rules if other is not rule]
    call = Call(
        f"Delete rule {pos} of {firewall.label}",
        "DELETE",
        f"{firewall.rules}/{pos}",
        {"digest": rule["digest"]},
        firewall.target,
    )
    warnings = await _warnings(pve, firewall, left)
    return Plan(f"{call.summary}: {describe(rule)}", (call,), facts={"rule": as_dict(rule)}, warnings=tuple(warnings))


async def read_rules(pve: Cluster, firewall: FirewallScope, digest: str | None) -> list[dict[str, Any]]:
    """The rules as they are, refused if they changed since the caller read them."""
    rules: list[dict[str, Any]] = sorted(await pve.get(firewall.rules), key=lambda rule: int(rule["pos"]))
    if digest and digest != (rules[0].get("digest") if rules else None):
        raise Conflict(
            f"The rules of {firewall.label} have changed since they were read",
            next_step=Advice("Positions may have shifted. Read them again, then decide", tools.firewall_get),
        )
    return rules


def _at(firewall: FirewallScope, rules: list[dict[str, Any]], pos: int) -> dict[str, Any]:
    if pos < len(rules):
        return rules[pos]
    positions = f"It has the positions 0 to {len(rules) - 1}" if rules else "It has no rules"
    raise NotFound(f"{firewall.label} has no rule {pos}", next_step=Advice(positions, tools.firewall_get))


async def _add(
    pve: Cluster, firewall: FirewallScope, rules: list[dict[str, Any]], settings: dict[str, Any], position: int
) -> Plan:
    for name in ("type", "action"):
        if not settings.get(name):
            raise BadArgument(
                Sentence("A new rule needs {name}", name=ArgumentHint(name)),
                next_step=Advice(
                    "Such as {type} {action} {proto} {dport}", type="in", action="ACCEPT", proto="tcp", dport=22
                ),
            )
    rule = {"enable": 1} | {name: value for name, value in settings.items() if value != ""}
    after = [*rules[:position], rule, *rules[position:]]
    summary = f"Add to {firewall.label}: {describe(rule)}"
    if position == 0:
        calls = [Call(summary, "POST", firewall.rules, rule, firewall.target)]
    else:
        # PVE puts a new rule on top. It stays off until it is in its place: on top it could cut everyone off.
        off = {**rule, "enable": 0}
        calls = [
            Call(
                f"{summary} (off)",
                "POST",
                firewall.rules,
                off,
                firewall.target,
            ),
            _move_call(firewall, 0, position),
        ]
        if rule["enable"]:
            path = f"{firewall.rules}/{position}"
            calls.append(Call("Switch it on", "PUT", path, {"enable": 1}, firewall.target))
    warnings = await _warnings(pve, firewall, after)
    facts = {"position": position, "enabled": bool(rule["enable"])}
    return Plan(summary, tuple(calls), facts=facts, warnings=tuple(warnings))


async def _change(
    pve: Cluster,
    firewall: FirewallScope,
    rules: list[dict[str, Any]],
    pos: int,
    settings: dict[str, Any],
    move_to: int | None,
) -> Plan:
    rule = _at(firewall, rules, pos)
    params = {**unset_empty(settings), "digest": rule["digest"]}
    change = Call(f"Change rule {pos} of {firewall.label}", "PUT", f"{firewall.rules}/{pos}", params, firewall.target)
    edit = await create_or_change(pve, rule, change, change)
    calls = [edit.call] if edit.call else []
    after = list(rules)
    after[pos] = {name: value for name, value in (rule | settings).items() if value != ""}
    if move_to is not None and move_to != pos:
        # The digest goes with the first call only: after it the list has another one.
        calls.append(_move_call(firewall, pos, move_to, digest=None if calls else rule["digest"]))
        after.insert(move_to, after.pop(pos))
    if not calls:
        return Plan(
            f"Change rule {pos} of {firewall.label}",
            unchanged=(f"rule {pos} already has these settings: {describe(rule)}",),
        )
    final = after[pos if move_to is None else move_to]
    facts = {
        "was": as_dict(rule),
        "rule": as_dict(final),
        "position": pos if move_to is None else move_to,
        "enabled": bool(final.get("enable")),
    }
    summary = "; ".join(call.summary for call in calls)
    return Plan(summary, tuple(calls), facts=facts, warnings=tuple(await _warnings(pve, firewall, after)))


def _move_call(firewall: FirewallScope, pos: int, to: int, *, digest: str | None = None) -> Call:
    # PVE counts in the list as it is: the rule comes before the one that has this position now.
    params: dict[str, Any] = {"moveto": to if to < pos else to + 1, **({"digest": digest} if digest else {})}
    summary = f"Move rule {pos} of {firewall.label} to position {to}"
    return Call(summary, "PUT", f"{firewall.rules}/{pos}", params, firewall.target)


def as_dict(rule: Mapping[str, Any]) -> dict[str, Any]:
    return {name: rule[name] for name in RULE_KEYS if name in rule}


def describe(rule: Mapping[str, Any]) -> str:
    """A rule in one line: `in ACCEPT tcp dport 22 from 10.0.0.0/8 (on)`."""
    parts = [
        str(rule.get("type", "")),
        str(rule.get("action", "")),
        str(rule.get("macro", "")),
        str(rule.get("proto", "")),
    ]
    for name, word in (("sport", "sport"), ("dport", "dport"), ("source", "from"), ("dest", "to"), ("iface", "on")):
        parts += [word, str(rule[name])] if rule.get(name) else []
    return " ".join(part for part in parts if part) + (" (on)" if rule.get("enable") else " (off)")


async def _warnings(pve: Cluster, firewall: FirewallScope, rules: list[dict[str, Any]]) -> list[str]:
    if firewall.scope == "guest":
        return [
            reason.removeprefix("no: ") for reason in await not_in_force(pve, firewall, await options_of(pve, firewall))
        ]
    return await consequences(pve, lambda now: with_rules(now, firewall.scope, firewall.target.id, rules))
