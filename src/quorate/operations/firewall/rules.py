"""Adding, changing, moving and deleting firewall rules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta

from quorate.hints import FIREWALL_GET, Advice, ArgumentHint, Sentence
from quorate.operations.firewall import lockout
from quorate.operations.firewall.scopes import Digest, FirewallScope, Of, Scope, not_in_force, options_of, scope_of
from quorate.operations.plan import Call, Plan
from quorate.operations.registry import Risk, operation
from quorate.problems import BadArgument, Conflict, NotFound
from quorate.pve.cluster import Cluster

RULE_KEYS = (
    "type", "action", "macro", "proto", "source", "sport", "dest", "dport", "icmp-type", "iface", "log", "comment",
    "enable",
)  # fmt: skip
_VERDICTS = ("ACCEPT", "DROP", "REJECT")


def risk_of(arguments: Mapping[str, Any]) -> Risk:
    """A guest's rules affect that guest. All others can cut off the nodes, and with them the means to undo it."""
    return Risk.CHANGE if arguments["scope"] == "guest" else Risk.DESTROY


@operation(
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
    given = {
        "type": type, "action": action, "macro": macro, "proto": proto, "source": source, "dest": dest,
        "sport": sport, "dport": dport, "icmp-type": icmp_type, "iface": iface, "log": log, "comment": comment,
        "enable": None if enable is None else int(enable),
    }  # fmt: skip
    given = {name: value for name, value in given.items() if value is not None}
    firewall = await scope_of(pve, scope, of)
    rules = await read_rules(pve, firewall, digest)
    if move_to is not None and move_to > len(rules) - (pos is not None):
        raise BadArgument(
            Sentence("{move_to} is beyond the end", move_to=move_to),
            next_step=f"{firewall.label} has {len(rules)} rules",
        )
    kind = type or (_at(firewall, rules, pos).get("type") if pos is not None else None)
    if action and kind != "group" and action.upper() in _VERDICTS:
        given["action"] = action.upper()
    if pos is None:
        return await _add(pve, firewall, rules, given, move_to or 0)
    return await _change(pve, firewall, rules, pos, given, move_to)


async def plan_rule_deletion(pve: Cluster, firewall: FirewallScope, pos: int, digest: str | None) -> Plan:
    rules = await read_rules(pve, firewall, digest)
    rule = _at(firewall, rules, pos)
    left = [one for one in rules if one is not rule]
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
            next_step=Advice("Positions may have shifted. Read them again, then decide", FIREWALL_GET),
        )
    return rules


def _at(firewall: FirewallScope, rules: list[dict[str, Any]], pos: int) -> dict[str, Any]:
    if pos < len(rules):
        return rules[pos]
    positions = f"It has the positions 0 to {len(rules) - 1}" if rules else "It has no rules"
    raise NotFound(f"{firewall.label} has no rule {pos}", next_step=Advice(positions, FIREWALL_GET))


async def _add(
    pve: Cluster, firewall: FirewallScope, rules: list[dict[str, Any]], given: dict[str, Any], position: int
) -> Plan:
    for name in ("type", "action"):
        if not given.get(name):
            raise BadArgument(
                Sentence("A new rule needs {name}", name=ArgumentHint(name)),
                next_step=Advice(
                    "Such as {type} {action} {proto} {dport}", type="in", action="ACCEPT", proto="tcp", dport=22
                ),
            )
    rule = {"enable": 1} | {name: value for name, value in given.items() if value != ""}
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
            calls.append(_change_call(firewall, position, {"enable": 1}, summary="Switch it on"))
    warnings = await _warnings(pve, firewall, after)
    facts = {"position": position, "enabled": bool(rule["enable"])}
    return Plan(summary, tuple(calls), facts=facts, warnings=tuple(warnings))


async def _change(
    pve: Cluster,
    firewall: FirewallScope,
    rules: list[dict[str, Any]],
    pos: int,
    given: dict[str, Any],
    move_to: int | None,
) -> Plan:
    rule = _at(firewall, rules, pos)
    changed = {name: value for name, value in given.items() if str(rule.get(name, "")) != str(value)}
    calls: list[Call] = []
    after = list(rules)
    if changed:
        call = _change_call(
            firewall, pos, changed, summary=f"Change rule {pos} of {firewall.label}", digest=rule["digest"]
        )
        calls.append(call)
        after[pos] = _apply_changes(rule, changed)
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


def _change_call(
    firewall: FirewallScope,
    pos: int,
    changed: dict[str, Any],
    *,
    summary: str,
    digest: str | None = None,
) -> Call:
    cleared = [name for name, value in changed.items() if value == ""]
    params = {name: value for name, value in changed.items() if value != ""}
    params |= {"delete": ",".join(cleared)} if cleared else {}
    params |= {"digest": digest} if digest else {}
    return Call(summary, "PUT", f"{firewall.rules}/{pos}", params, firewall.target)


def _move_call(firewall: FirewallScope, pos: int, to: int, *, digest: str | None = None) -> Call:
    # PVE counts in the list as it is: the rule comes before the one that has this position now.
    params: dict[str, Any] = {"moveto": to if to < pos else to + 1, **({"digest": digest} if digest else {})}
    summary = f"Move rule {pos} of {firewall.label} to position {to}"
    return Call(summary, "PUT", f"{firewall.rules}/{pos}", params, firewall.target)


def _apply_changes(rule: dict[str, Any], changed: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in (rule | changed).items() if value != ""}


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
    return await lockout.consequences(
        pve, lambda now: lockout.with_rules(now, firewall.scope, firewall.target.id, rules)
    )
