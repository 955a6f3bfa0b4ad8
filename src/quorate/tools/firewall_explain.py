"""Which firewall rule decides about packets to a guest, on each of its network cards, and whether it counts at all."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Literal

from msgspec import Meta

from quorate.hints import Advice, tools
from quorate.inside.guest_addresses import read_interfaces, usable_addresses
from quorate.operations.registry import GuestRef, Risk, Table, operation, page
from quorate.problems import BadArgument, Problem, catch_problem
from quorate.pve import values
from quorate.pve.cluster import Cluster, Guest
from quorate.pve.tasks import gather_bounded
from quorate.tools.firewall_packets import (
    Match,
    Names,
    Network,
    Packet,
    Rule,
    match_addresses,
    match_rule,
    read_networks,
)
from quorate.tools.firewall_rules import (
    CLUSTER,
    READS_AT_ONCE,
    FirewallScope,
    describe,
    not_in_force,
    options_of,
    scope_of,
)

COLUMNS = ("guest", "card", "direction", "result", "decided_by", "in_force", "once_in_force", "depends_on")
ADDRESSES_AT_MOST = 8

Result = Literal["allowed", "blocked", "depends"]


@operation(
    toolset="firewall",
    risk=Risk.READ,
    search_words=(
        "why can I not reach connect blocked refused timeout port open reachable which rule decides allows drops "
        "firewall explain trace from source packet"
    ),
    example="guest=docker01 port=443",
)
async def firewall_explain(
    pve: Cluster,
    guest: GuestRef,
    port: Annotated[int, Meta(ge=1, le=65535)],
    source: Annotated[
        int | str, Meta(description="Address, network, or a guest, whose outgoing rules count, too; default: anyone")
    ]
    | None = None,
    proto: Literal["tcp", "udp"] = "tcp",
) -> Table:
    """Whether packets to a port of a guest pass its firewall: the rule that decides on each network card, and whether
    it is in force. What listens in the guest is not checked."""
    target = await pve.guest(guest)
    sender = None if source is None or _networks_of(source) else await pve.guest(source)
    sides = [(target, "in"), *([(sender, "out")] if sender is not None else [])]
    cluster = await _read_cluster(pve)
    walls = await asyncio.gather(*(_read_wall(pve, side) for side, _ in sides))
    origin = _networks_of(source) if source is not None and sender is None else None
    if sender is not None:
        origin = walls[1].addresses
        if not origin:
            raise BadArgument(
                f"The addresses of {sender} are not known",
                why="Its configuration sets none, and no agent reports them",
                next_step="Give its address as the source",
            )
    packet = Packet(port, proto, origin or (), walls[0].addresses)
    lines = [
        line
        for wall, (_, direction) in zip(walls, sides, strict=True)
        for line in _explain(cluster, wall, direction, packet)
    ]
    table = page(COLUMNS, [line.as_row() for line in lines], limit=len(lines) or 1, offset=0)
    table.facts = _facts(cluster, walls, lines, packet, source)
    return table


def _networks_of(source: int | str) -> tuple[Network, ...] | None:
    """A vmid is a number, and no address."""
    return None if str(source).isdecimal() else read_networks(str(source))


@dataclass(frozen=True, slots=True)
class _Rules:
    """What the cluster's firewall has for guests. Its own rules protect the nodes, not the guests."""

    enabled: bool = True
    groups: Mapping[str, tuple[Rule, ...]] = field(default_factory=dict)
    names: Names = field(default_factory=Names)
    hidden: str = ""


@dataclass(frozen=True, slots=True)
class _Wall:
    """The firewall of one guest."""

    scope: FirewallScope
    options: Mapping[str, Any]
    rules: tuple[Rule, ...]
    names: Names
    cards: Mapping[str, Mapping[str, str]]
    addresses: tuple[Network, ...]
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Line:
    guest: str
    card: str
    direction: str
    result: Result
    """What the rules say, whether they are in force or not."""
    decided_by: str
    in_force: str
    conditions: tuple[str, ...] = ()

    @property
    def is_in_force(self) -> bool:
        return self.in_force == "yes"

    @property
    def passes(self) -> Result:
        return self.result if self.is_in_force else "allowed"

    def as_row(self) -> list[Any]:
        decided_by = self.decided_by if self.is_in_force else "nothing: no rule is in force"
        later = "" if self.is_in_force else f"{self.result} by {self.decided_by}"
        return [
            self.guest, self.card, self.direction, self.passes, decided_by, self.in_force, later,
            "; ".join(self.conditions),
        ]  # fmt: skip


async def _read_cluster(pve: Cluster) -> _Rules:
    """Security groups, aliases and IP sets of the cluster, or why they cannot be read."""
    try:
        options, groups, aliases, ipsets = await asyncio.gather(
            *(pve.get(f"{CLUSTER}/{part}") for part in ("options", "groups", "aliases", "ipset"))
        )
    except Problem as problem:
        return _Rules(hidden=f"The cluster's firewall could not be read: {problem.what}")
    contents = await gather_bounded(
        READS_AT_ONCE, [partial(pve.get, f"{CLUSTER}/groups/{group['group']}") for group in groups]
    )
    return _Rules(
        enabled=bool(int(options.get("enable", 0))),
        groups={str(group["group"]): _in_order(rules) for group, rules in zip(groups, contents, strict=True)},
        names=await _read_names(pve, "dc", CLUSTER, aliases, ipsets),
    )


def _in_order(rules: list[dict[str, Any]]) -> tuple[Rule, ...]:
    return tuple(sorted(rules, key=lambda rule: int(rule["pos"])))


async def _read_names(pve: Cluster, scope: str, base: str, aliases: Any, ipsets: Any) -> Names:
    contents = await gather_bounded(
        READS_AT_ONCE, [partial(pve.get, f"{base}/ipset/{ipset['name']}") for ipset in ipsets]
    )
    return Names(
        {f"{scope}/{str(alias['name']).lower()}": str(alias["cidr"]) for alias in aliases},
        {
            f"{scope}/{ipset['name']}": tuple(
                ("!" if member.get("nomatch") else "") + str(member["cidr"]) for member in members
            )
            for ipset, members in zip(ipsets, contents, strict=True)
        },
    )


async def _read_wall(pve: Cluster, guest: Guest) -> _Wall:
    scope = await scope_of(pve, "guest", guest.vmid)
    options, rules, aliases, ipsets, config = await asyncio.gather(
        options_of(pve, scope),
        pve.get(scope.rules),
        pve.get(f"{scope.base}/aliases"),
        pve.get(f"{scope.base}/ipset"),
        guest.get("config"),
    )
    names, reasons, addresses = await asyncio.gather(
        _read_names(pve, "guest", scope.base, aliases, ipsets),
        not_in_force(pve, scope, options),
        _read_addresses(guest, config),
    )
    cards = {
        key: values.parse(str(value), "model") for key, value in sorted(config.items()) if values.bus_of(key) == "net"
    }
    return _Wall(scope, options, _in_order(rules), names, cards, addresses, tuple(reasons))


async def _read_addresses(guest: Guest, config: Mapping[str, Any]) -> tuple[Network, ...]:
    texts = [address for own in values.addresses_in_config(config).values() for address in own]
    if not texts and guest.row.status == "running":
        interfaces = await catch_problem(read_interfaces(guest))
        texts = [] if isinstance(interfaces, Problem) else usable_addresses(interfaces, config)
    networks = [read_networks(text) for text in texts[:ADDRESSES_AT_MOST]]
    return tuple(network for listed in networks if listed for network in listed)


def _explain(cluster: _Rules, wall: _Wall, direction: str, packet: Packet) -> Iterator[_Line]:
    names = Names({**cluster.names.aliases, **wall.names.aliases}, {**cluster.names.ipsets, **wall.names.ipsets})
    for card, parts in wall.cards.items():
        result, decided_by, conditions = _decide(cluster, wall, card, direction, packet, names)
        obstacles = [
            *([] if cluster.enabled else ["no: the cluster's firewall is off"]),
            *([] if wall.options.get("enable") else ["no: the guest's firewall is off"]),
            *([] if values.is_on(parts.get("firewall", "0")) else [f"no: {card} has no firewall=1"]),
        ]
        in_force = "; ".join(obstacles) or "yes"
        yield _Line(wall.scope.label, card, direction, result, decided_by, in_force, conditions)


def _decide(
    cluster: _Rules, wall: _Wall, card: str, direction: str, packet: Packet, names: Names
) -> tuple[Result, str, tuple[str, ...]]:
    """The first rule that matches all the packets decides; one before it that matches some is a condition."""
    conditions: list[tuple[str, str]] = []
    for where, rule in _candidates(cluster, wall, card, direction, packet, names):
        if rule["type"] == "group":
            conditions.append(("", f"{where}: security group {rule['action']} could not be read"))
            continue
        match = match_rule(rule, packet, names)
        if match is Match.NO:
            continue
        result: Result = "allowed" if rule["action"] == "ACCEPT" else "blocked"
        if match is Match.YES:
            return _settle(result, f"{where}: {describe(rule)}", conditions)
        conditions.append((result, f"{result} by {where}: {describe(rule)}"))
    policy = str(wall.options.get(f"policy_{direction}", "ACCEPT"))
    default: Result = "allowed" if policy == "ACCEPT" else "blocked"
    return _settle(default, f"policy_{direction}={policy} of {wall.scope.label}: no rule decides", conditions)


def _settle(
    result: Result, decided_by: str, conditions: Sequence[tuple[str, str]]
) -> tuple[Result, str, tuple[str, ...]]:
    differing = tuple(text for other, text in conditions if other != result)
    return ("depends" if differing else result), decided_by, differing


def _candidates(
    cluster: _Rules, wall: _Wall, card: str, direction: str, packet: Packet, names: Names
) -> Iterator[tuple[str, Rule]]:
    """The enabled rules for this card and direction in PVE's order, with where each is."""
    if direction == "in" and "dc/blacklist" in names.ipsets:
        yield (
            "IP set blacklist of the cluster",
            {"type": "in", "action": "DROP", "source": "+dc/blacklist", "enable": 1},
        )
    filtered = f"guest/ipfilter-{card}"
    if direction == "out" and filtered in names.ipsets:
        passing = match_addresses(f"+{filtered}", packet.source, names)
        if passing is Match.NO:
            yield f"IP set ipfilter-{card} of {wall.scope.label}", {"type": "out", "action": "DROP", "enable": 1}
    for rule in wall.rules:
        if not rule.get("enable") or rule.get("errors") or rule.get("iface", card) != card:
            continue
        where = f"rule {rule['pos']} of {wall.scope.label}"
        if rule["type"] == "group":
            group = cluster.groups.get(str(rule["action"]))
            if group is None:
                yield where, rule
            for inner in group or ():
                if inner.get("enable") and not inner.get("errors") and inner["type"] == direction:
                    yield f"rule {inner['pos']} of security group {rule['action']} ({where})", inner
        elif rule["type"] == direction:
            yield where, rule


def _facts(
    cluster: _Rules, walls: Sequence[_Wall], lines: Sequence[_Line], packet: Packet, source: int | str | None
) -> dict[str, Any]:
    sender = f"from {source}" if source is not None else "from anyone"
    notes = [cluster.hidden] if cluster.hidden else []
    notes += [
        f"Rule {rule['pos']} of {wall.scope.label} does nothing: {', '.join(map(str, rule['errors'].values()))}"
        for wall in walls
        for rule in wall.rules
        if rule.get("enable") and rule.get("errors")
    ]
    notes += [f"{wall.scope.label} has no network card" for wall in walls if not wall.cards]
    notes += [
        f"{card} of {wall.scope.label} is unplugged (link_down)"
        for wall in walls
        for card, parts in wall.cards.items()
        if values.is_on(parts.get("link_down", "0"))
    ]
    return {
        "packets": f"{packet.proto} {packet.port} to {walls[0].scope.label} {sender}",
        "answer": _answer(lines),
        "in_force": "; ".join(reason for wall in walls for reason in wall.reasons) or "yes",
        **({"notes": notes} if notes else {}),
        **({"next": Advice("Change a rule", tools.firewall_rule_set)} if "blocked" in _answer(lines) else {}),
    }


def _answer(lines: Sequence[_Line]) -> str:
    by_passing: dict[str, list[str]] = {}
    for line in lines:
        by_passing.setdefault(line.passes, []).append(f"{line.card} ({line.direction})")
    answer = "; ".join(f"{passing} on {', '.join(cards)}" for passing, cards in by_passing.items())
    idle = [line for line in lines if not line.is_in_force and line.result != "allowed"]
    if idle:
        answer += "; once in force, " + "; ".join(
            f"{line.card} ({line.direction}) would be {line.result} by {line.decided_by}" for line in idle
        )
    return answer
