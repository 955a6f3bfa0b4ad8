"""Names that firewall rules use: aliases, IP sets with their members, security groups."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

from msgspec import Meta

from quorate.hints import NAMED, Advice, Sentence
from quorate.operations.access.directory import unknown
from quorate.operations.firewall import lockout
from quorate.operations.firewall.rules import risk_of
from quorate.operations.firewall.scopes import CLUSTER, FirewallScope, ObjectScope, Of, scope_of
from quorate.operations.plan import Call, Plan
from quorate.operations.registry import Risk, operation
from quorate.problems import BadArgument, Conflict
from quorate.pve.cluster import Cluster

MEMBERS_AT_ONCE = 100

Kind = Literal["alias", "ipset", "group"]
_LIST = {"alias": "aliases", "ipset": "ipset", "group": "groups"}
_KEY = {"alias": "name", "ipset": "name", "group": "group"}


@operation(
    risk=Risk.DESTROY,
    risk_of=risk_of,
    least=Risk.CHANGE,
    search_words="alias ip set addresses networks security group define reuse",
    example="scope=cluster kind=alias name=printer cidr=192.168.10.9",
)
async def firewall_object_set(
    pve: Cluster,
    scope: ObjectScope,
    kind: Kind,
    name: Annotated[str, Meta(description="Created if missing")],
    of: Of | None = None,
    cidr: Annotated[str, Meta(description="What an alias stands for")] | None = None,
    add: Annotated[list[str], Meta(description="Addresses for an IP set; !10.0.0.1 excludes")] | None = None,
    remove: list[str] | None = None,
    rename: Annotated[str, Meta(description="New name")] | None = None,
    comment: str | None = None,
) -> Plan:
    """Create or change an alias, an IP set or a security group; rules of a group: firewall_rule_set scope=group.

    The cluster's need access admin.
    """
    firewall = await scope_for(pve, scope, of, kind)
    _check_arguments(kind, cidr, add, remove)
    known = await _load(pve, firewall, kind)
    present = known.get(_lookup_key(kind, name))
    if rename is not None and present is None:
        raise unknown(_word(kind), name, list(known))
    calls: list[Call] = []
    if kind == "alias":
        calls += _alias_calls(firewall, name, present, cidr, rename, comment)
    else:
        calls += _set_calls(firewall, kind, name, present, rename, comment)
    unchanged: tuple[str, ...] = ()
    if kind == "ipset" and (add or remove):
        members = await pve.get(f"{firewall.base}/ipset/{name}") if present else []
        more, unchanged = _member_calls(firewall, rename or name, members, add or [], remove or [])
        calls += more
    if not calls and not unchanged:
        unchanged = (f"{_word(kind)} {name} already has these settings",)
    warnings = await _lockout_warnings(pve, firewall, kind, name, remove or []) if calls else []
    return Plan(f"Set {_word(kind)} {name} of {firewall.label}", tuple(calls), unchanged, warnings=tuple(warnings))


async def _lockout_warnings(
    pve: Cluster, firewall: FirewallScope, kind: str, name: str, leaving: list[str]
) -> list[str]:
    """The IP set `management` is how people from other networks reach the nodes."""
    if (firewall.scope, kind, name) != ("cluster", "ipset", "management") or not leaving:
        return []
    return await lockout.consequences(
        pve, lambda now: replace(now, management=tuple(one for one in now.management if one not in leaving))
    )


async def plan_object_deletion(pve: Cluster, firewall: FirewallScope, kind: str, name: str, *, force: bool) -> Plan:
    """Delete an alias, an IP set or a security group that no rule uses."""
    known = await _load(pve, firewall, kind)
    present = known.get(_lookup_key(kind, name))
    if present is None:
        raise unknown(_word(kind), name, list(known))
    if users := await _used_by(pve, firewall, kind, name):
        raise Conflict(
            f"{_word(kind).capitalize()} {name} is used by {', '.join(users)}",
            next_step="Change or delete those rules first",
        )
    path = f"{firewall.base}/{_LIST[kind]}/{name}"
    held = await pve.get(path) if kind != "alias" else []
    if held and not force:
        what = "members" if kind == "ipset" else "rules"
        raise Conflict(
            f"{_word(kind).capitalize()} {name} has {len(held)} {what}",
            next_step=Advice("Give {force} to delete them, too", force=True),
        )
    calls = _rule_deletions(path, name, held, firewall) if kind == "group" else []
    params: dict[str, Any] = {"force": 1} if kind == "ipset" and held else {}
    if kind == "alias" and present.get("digest"):
        params["digest"] = present["digest"]

    summary = f"Delete {_word(kind)} {name} of {firewall.label}"
    calls.append(Call(summary, "DELETE", path, params, firewall.target))
    warnings = () if firewall.scope == "guest" else ("The rules of single guests were not searched for it",)
    return Plan(summary, tuple(calls), facts=_describe_loss(kind, present, held), warnings=warnings)


async def scope_for(pve: Cluster, scope: str, of: int | str | None, kind: str) -> FirewallScope:
    """The cluster or a guest: only they have names of their own, and groups only the cluster."""
    if kind == "group" and scope != "cluster":
        raise BadArgument(
            "Security groups belong to the cluster",
            next_step=Advice("Use {scope}; guests' rules can name them", scope="cluster"),
        )
    if scope not in ("cluster", "guest"):
        raise BadArgument(
            f"A {scope} has no aliases and IP sets of its own",
            next_step=Advice("Use {scope}", scope="cluster or guest"),
        )
    return await scope_of(pve, scope, of)


def _check_arguments(kind: str, cidr: str | None, add: list[str] | None, remove: list[str] | None) -> None:
    if cidr is not None and kind != "alias":
        raise BadArgument(
            Sentence("{cidr} cannot be combined with {kind}", cidr=NAMED, kind=kind),
            next_step=Advice("For an IP set, use {add} and {remove}", add=NAMED, remove=NAMED),
        )
    if (add or remove) and kind != "ipset":
        raise BadArgument(
            Sentence("{add} and {remove} cannot be combined with {kind}", add=NAMED, remove=NAMED, kind=kind),
            next_step="They are for IP sets",
        )
    if len(add or []) + len(remove or []) > MEMBERS_AT_ONCE:
        raise BadArgument("Too many addresses for one call", next_step=f"Give at most {MEMBERS_AT_ONCE}")


async def _load(pve: Cluster, firewall: FirewallScope, kind: str) -> dict[str, dict[str, Any]]:
    return {_lookup_key(kind, row[_KEY[kind]]): row for row in await pve.get(f"{firewall.base}/{_LIST[kind]}")}


def _lookup_key(kind: str, name: str) -> str:
    """The key that PVE stores the object under: it ignores the case of aliases."""
    return name.lower() if kind == "alias" else name


def _word(kind: str) -> str:
    return {"alias": "alias", "ipset": "IP set", "group": "security group"}[kind]


def _alias_calls(
    firewall: FirewallScope,
    name: str,
    present: dict[str, Any] | None,
    cidr: str | None,
    rename: str | None,
    comment: str | None,
) -> list[Call]:
    wanted = {"cidr": cidr or (present or {}).get("cidr"), "comment": comment}
    if wanted["cidr"] is None:
        raise BadArgument(
            Sentence("A new alias needs {cidr}", cidr=NAMED), next_step=Advice("Such as {cidr}", cidr="192.168.10.0/24")
        )

    path = f"{firewall.base}/aliases"
    if present is None:
        params = {"name": name, **{key: value for key, value in wanted.items() if value}}
        return [Call(f"Create alias {name} = {wanted['cidr']}", "POST", path, params, firewall.target)]
    if not rename and wanted["cidr"] == present["cidr"] and comment in (None, present.get("comment", "")):
        return []
    # PVE drops the comment unless it is sent along.
    note = present.get("comment", "") if comment is None else comment
    params = {"cidr": wanted["cidr"], "comment": note, "rename": rename, "digest": present.get("digest")}
    params = {key: value for key, value in params.items() if value}
    summary = f"Change alias {name} = {wanted['cidr']}" + (f", now {rename}" if rename else "")
    return [Call(summary, "PUT", f"{path}/{name}", params, firewall.target)]


def _set_calls(
    firewall: FirewallScope,
    kind: str,
    name: str,
    present: dict[str, Any] | None,
    rename: str | None,
    comment: str | None,
) -> list[Call]:
    """One call creates, renames and comments IP sets and groups."""
    final = rename or name
    if present is not None and not rename and comment in (None, present.get("comment", "")):
        return []

    params: dict[str, Any] = {_KEY[kind]: final, **({"comment": comment} if comment is not None else {})}
    if present is not None:
        params |= {"rename": name, "digest": present.get("digest")}
    params = {key: value for key, value in params.items() if value is not None}
    summary = f"{'Create' if present is None else 'Change'} {_word(kind)} {name}" + (
        f", now {rename}" if rename else ""
    )
    return [Call(summary, "POST", f"{firewall.base}/{_LIST[kind]}", params, firewall.target)]


def _member_calls(
    firewall: FirewallScope, name: str, members: list[dict[str, Any]], add: list[str], remove: list[str]
) -> tuple[list[Call], tuple[str, ...]]:
    present = {str(member["cidr"]): bool(member.get("nomatch")) for member in members}
    calls: list[Call] = []
    unchanged: list[str] = []
    for text in dict.fromkeys(add):
        cidr, nomatch = text.removeprefix("!"), text.startswith("!")
        if present.get(cidr) == nomatch:
            unchanged.append(f"{text} is already in {name}")
        else:
            calls.append(_member_call(firewall, name, cidr, nomatch=nomatch, exists=cidr in present))
    for cidr in dict.fromkeys(one.removeprefix("!") for one in remove):
        if cidr not in present:
            unchanged.append(f"{cidr} is not in {name}")
        else:
            path = f"{firewall.base}/ipset/{name}/{cidr}"
            calls.append(Call(f"Take {cidr} out of IP set {name}", "DELETE", path, {}, firewall.target))
    return calls, tuple(unchanged)


def _member_call(firewall: FirewallScope, name: str, cidr: str, *, nomatch: bool, exists: bool) -> Call:
    base = f"{firewall.base}/ipset/{name}"
    summary = f"{'Exclude' if nomatch else 'Add'} {cidr} {'from' if nomatch else 'to'} IP set {name}"
    if exists:
        return Call(summary, "PUT", f"{base}/{cidr}", {"nomatch": int(nomatch)}, firewall.target)
    params = {"cidr": cidr, **({"nomatch": 1} if nomatch else {})}
    return Call(summary, "POST", base, params, firewall.target)


def _rule_deletions(path: str, name: str, rules: list[dict[str, Any]], firewall: FirewallScope) -> list[Call]:
    """From the last rule to the first, so that positions do not shift."""
    return [
        Call(f"Delete rule {pos} of security group {name}", "DELETE", f"{path}/{pos}", {}, firewall.target)
        for pos in reversed(range(len(rules)))
    ]


def _describe_loss(kind: str, present: Mapping[str, Any], held: list[dict[str, Any]]) -> dict[str, Any]:
    if kind == "alias":
        return {"cidr": present["cidr"]}
    return {"members": [one["cidr"] for one in held]} if kind == "ipset" and held else {}


async def _used_by(pve: Cluster, firewall: FirewallScope, kind: str, name: str) -> list[str]:
    """The rules that name the object, where it can be found with few reads."""
    if firewall.scope == "guest":
        lists = {firewall.label: firewall.rules}
    else:
        groups = [str(row["group"]) for row in await pve.get(f"{CLUSTER}/groups")]
        nodes = [row.node for row in await pve.inventory.of_type("node") if row.status == "online"]
        lists = {"the cluster": f"{CLUSTER}/rules"}
        lists |= {f"security group {one}": f"{CLUSTER}/groups/{one}" for one in groups}
        lists |= {f"node {one}": f"/nodes/{one}/firewall/rules" for one in sorted(nodes)}
    found = await asyncio.gather(*(pve.get(path) for path in lists.values()))
    return [
        f"rule {rule['pos']} of {where}"
        for where, rules in zip(lists, found, strict=True)
        for rule in rules
        if _names(rule, kind, name, firewall.scope)
    ]


def _names(rule: Mapping[str, Any], kind: str, name: str, scope: str) -> bool:
    if kind == "group":
        return bool(rule["type"] == "group" and rule["action"] == name)
    scoped = "guest" if scope == "guest" else "dc"
    spelled = {name, f"{scoped}/{name}"} if kind == "alias" else {f"+{name}", f"+{scoped}/{name}"}
    spelled = {one.lower() for one in spelled} if kind == "alias" else spelled
    used = [part for key in ("source", "dest") for part in str(rule.get(key, "")).split(",")]
    return any((part.lower() if kind == "alias" else part) in spelled for part in used)
