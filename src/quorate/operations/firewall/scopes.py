"""Reading the firewall of the cluster, of nodes, guests and security groups."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

from msgspec import Meta

from quorate.hints import NAMED, OMITTED, Advice, either
from quorate.operations.access.directory import unknown
from quorate.operations.plan import Target
from quorate.operations.registry import Risk, Table, operation, page
from quorate.problems import BadArgument, Problem
from quorate.pve import values
from quorate.pve.cluster import Cluster, Guest
from quorate.pve.tasks import gather_bounded

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
    """One set of firewall rules."""

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
    options = {**DEFAULTS[firewall.scope], **await pve.get(f"{firewall.base}/options")}
    return options | {"enable": int(options["enable"])}


async def not_in_force(pve: Cluster, firewall: FirewallScope, options: dict[str, Any]) -> list[str]:
    """Why the rules of a scope have no effect; empty if they are active."""
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
        ["alias", one["name"], one["cidr"], one.get("comment", "")] for one in await pve.get(f"{firewall.base}/aliases")
    ]
    sets = await pve.get(f"{firewall.base}/ipset")
    contents = await gather_bounded(
        READS_AT_ONCE, [partial(pve.get, f"{firewall.base}/ipset/{one['name']}") for one in sets]
    )
    for one, members in zip(sets, contents, strict=True):
        listed = ", ".join(("!" if member.get("nomatch") else "") + member["cidr"] for member in members)
        rows.append(["ipset", one["name"], listed, one.get("comment", "")])
    if firewall.scope == "cluster":
        rows += [["group", one["group"], "", one.get("comment", "")] for one in await pve.get(f"{CLUSTER}/groups")]
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
