"""The firewall apart from its rules: options, and the names that rules use: aliases, IP sets, security groups."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal

from msgspec import Meta

from quorate.hints import NAMED, Advice, Sentence, either, tools
from quorate.operations.plan import Call, Plan, create_or_change, unset_empty
from quorate.operations.registry import Risk, operation
from quorate.problems import BadArgument, Conflict
from quorate.pve.cluster import Cluster
from quorate.tools.directory import unknown
from quorate.tools.firewall_rules import (
    CLUSTER,
    Digest,
    FileScope,
    FirewallScope,
    ObjectScope,
    Of,
    Scope,
    consequences,
    not_in_force,
    plan_rule_deletion,
    risk_of,
    scope_of,
    with_defaults,
)

_NOT_OPTIONS = ("delete", "digest", "node", "vmid")

Policy = Literal["ACCEPT", "REJECT", "DROP"]


@operation(
    toolset="firewall",
    risk=Risk.DESTROY,
    risk_of=risk_of,
    least=Risk.CHANGE,
    search_words="switch firewall enable disable default policy drop incoming block everything",
    example="scope=guest of=docker01 enable=true",
)
async def firewall_options_set(
    pve: Cluster,
    scope: FileScope,
    of: Of | None = None,
    enable: bool | None = None,
    policy_in: Policy | None = None,
    policy_out: Policy | None = None,
    options: Annotated[dict[str, str | int | bool], Meta(description='Others, as PVE names them; "" unsets')]
    | None = None,
    digest: Annotated[Digest, Meta(description="options_digest of firewall_get: only if unchanged since")]
    | None = None,
) -> Plan:
    """Switch the firewall of the cluster, a node (both need access admin) or a guest on or off, or change its options.

    Before the nodes are affected, it checks who could still reach ports 8006 and 22.
    """
    firewall = await scope_of(pve, scope, of)
    requested = {"enable": enable, "policy_in": policy_in, "policy_out": policy_out, **(options or {})}
    settings = {
        name: int(value) if isinstance(value, bool) else value for name, value in requested.items() if value is not None
    }
    if not settings:
        raise BadArgument(
            "No option was specified",
            next_step=either(Advice("Give {enable}", enable=NAMED), "a policy", Advice("{options}", options=NAMED)),
        )
    defaults = await _check_names(pve, firewall, settings)
    stored = await _read_options(pve, firewall)
    present = stored.pop("digest", "")
    current = with_defaults(firewall, stored)
    if digest and digest != present:
        raise Conflict(
            f"The firewall options of {firewall.label} have changed since they were read",
            next_step=Advice("Read them again, then decide", tools.firewall_get),
        )
    summary = f"Set firewall options of {firewall.label}"
    params = {**unset_empty(settings), **({"digest": present} if present else {})}
    call = Call(summary, "PUT", f"{firewall.base}/options", params, firewall.target)
    edit = await create_or_change(pve, stored, call, call, defaults=defaults)
    if edit.call is None:
        return edit.plan(f"the firewall of {firewall.label} already has these settings")
    changed = {name: value for name, value in settings.items() if name in edit.changed}
    summary = f"{summary}: " + ", ".join(f"{name}={value}" for name, value in changed.items())
    after = {name: value for name, value in (current | changed).items() if value != ""}
    return Plan(
        summary,
        (replace(edit.call, summary=summary),),
        tuple(f"{name}={value} is so already" for name, value in settings.items() if name not in changed),
        facts={"was": {name: stored.get(name, _default_of(current, name)) for name in changed}},
        warnings=tuple(await _option_warnings(pve, firewall, changed, after)),
        after=partial(_show_stored, pve, firewall),
    )


def _default_of(current: Mapping[str, Any], name: str) -> str:
    return f"not set, so {current[name]}" if name in current else "not set"


async def _read_options(pve: Cluster, firewall: FirewallScope) -> dict[str, Any]:
    """What PVE has stored, without defaults."""
    stored = dict(await pve.get(f"{firewall.base}/options"))
    if "enable" in stored:
        stored["enable"] = int(bool(int(stored["enable"])))  # the cluster keeps the time it was switched on
    return stored


async def _show_stored(pve: Cluster, firewall: FirewallScope) -> dict[str, Any]:
    stored = await _read_options(pve, firewall)
    stored.pop("digest", None)
    return {"stored": stored}


async def _check_names(pve: Cluster, firewall: FirewallScope, names: Iterable[str]) -> dict[str, Any]:
    """Refuse unknown options; returns the defaults that the API declares. A policy has none, so it is always stored."""
    match = (await pve.facts()).find("PUT", f"{firewall.base}/options")
    assert match is not None, firewall.base
    known = [name for name in match.endpoint.parameters if name not in _NOT_OPTIONS]
    for name in names:
        if name not in known:
            raise unknown(f"{firewall.scope} firewall option", name, known)
    declared = {name: (match.endpoint.schema_of(name) or {}).get("default") for name in names}
    return {name: default for name, default in declared.items() if default is not None}


async def _option_warnings(
    pve: Cluster, firewall: FirewallScope, changed: Mapping[str, Any], after: dict[str, Any]
) -> list[str]:
    if firewall.scope == "guest":
        reasons = await not_in_force(pve, firewall, after) if after.get("enable") else []
        return [reason.removeprefix("no: ") for reason in reasons]
    if changed.get("enable") == 0:
        everywhere = " and of every node and guest" if firewall.scope == "cluster" else ""
        return [f"The firewall of {firewall.label}{everywhere} stops filtering at once"]
    if firewall.scope == "cluster":
        return await consequences(pve, lambda now: replace(now, options=after))
    return await consequences(
        pve, lambda now: replace(now, node_options={**now.node_options, firewall.target.id: after})
    )


MEMBERS_AT_ONCE = 100

Kind = Literal["alias", "ipset", "group"]
_LIST = {"alias": "aliases", "ipset": "ipset", "group": "groups"}
_KEY = {"alias": "name", "ipset": "name", "group": "group"}


@operation(
    toolset="firewall",
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
    firewall = await _scope_for(pve, scope, of, kind)
    _check_arguments(kind, cidr, add, remove)
    known = await _load(pve, firewall, kind)
    present = known.get(_lookup_key(kind, name))
    if rename is not None and present is None:
        raise unknown(_word(kind), name, list(known))
    calls: list[Call] = []
    if kind == "alias":
        calls += await _alias_calls(pve, firewall, name, present, cidr, rename, comment)
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
    """The IP set `management` lets other networks reach the nodes: warn of what removing members closes."""
    if (firewall.scope, kind, name) != ("cluster", "ipset", "management") or not leaving:
        return []
    return await consequences(
        pve, lambda now: replace(now, management=tuple(member for member in now.management if member not in leaving))
    )


async def _plan_object_deletion(pve: Cluster, firewall: FirewallScope, kind: str, name: str, *, force: bool) -> Plan:
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
    content = await pve.get(path) if kind != "alias" else []
    if content and not force:
        what = "members" if kind == "ipset" else "rules"
        raise Conflict(
            f"{_word(kind).capitalize()} {name} has {len(content)} {what}",
            next_step=Advice("Give {force} to delete them, too", force=True),
        )
    calls = [
        Call(f"Delete rule {pos} of security group {name}", "DELETE", f"{path}/{pos}", {}, firewall.target)
        for pos in reversed(range(len(content) if kind == "group" else 0))  # so that positions do not shift
    ]
    params: dict[str, Any] = {"force": 1} if kind == "ipset" and content else {}
    if kind == "alias" and present.get("digest"):
        params["digest"] = present["digest"]

    summary = f"Delete {_word(kind)} {name} of {firewall.label}"
    calls.append(Call(summary, "DELETE", path, params, firewall.target))
    lost = {"cidr": present["cidr"]} if kind == "alias" else {}
    if kind == "ipset" and content:
        lost = {"members": [member["cidr"] for member in content]}
    warnings = () if firewall.scope == "guest" else ("The rules of single guests were not searched for it",)
    return Plan(summary, tuple(calls), facts=lost, warnings=warnings)


async def _scope_for(pve: Cluster, scope: str, of: int | str | None, kind: str) -> FirewallScope:
    """The scope of an object: the cluster or a guest; security groups belong to the cluster."""
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


async def _alias_calls(
    pve: Cluster,
    firewall: FirewallScope,
    name: str,
    present: dict[str, Any] | None,
    cidr: str | None,
    rename: str | None,
    comment: str | None,
) -> list[Call]:
    shown = present or {}
    address = cidr or shown.get("cidr")
    if address is None:
        raise BadArgument(
            Sentence("A new alias needs {cidr}", cidr=NAMED), next_step=Advice("Such as {cidr}", cidr="192.168.10.0/24")
        )
    # PVE drops the comment unless it is sent along.
    note = shown.get("comment") if comment is None else comment
    edit = await create_or_change(
        pve,
        present,
        Call(
            f"Create alias {name} = {address}",
            "POST",
            f"{firewall.base}/aliases",
            {"name": name, "cidr": address, "comment": note},
            firewall.target,
        ),
        Call(
            f"Change alias {name} = {address}" + (f", now {rename}" if rename else ""),
            "PUT",
            f"{firewall.base}/aliases/{name}",
            {"cidr": address, "comment": note, "rename": rename, "digest": shown.get("digest")},
            firewall.target,
        ),
        whole=True,
    )
    if edit.call is None:
        return []
    return [replace(edit.call, params={key: value for key, value in edit.call.params.items() if value})]


def _set_calls(
    firewall: FirewallScope,
    kind: str,
    name: str,
    present: dict[str, Any] | None,
    rename: str | None,
    comment: str | None,
) -> list[Call]:
    """The call that creates, renames or comments an IP set or a group; PVE has one for all three."""
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
    for cidr in dict.fromkeys(text.removeprefix("!") for text in remove):
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


async def _used_by(pve: Cluster, firewall: FirewallScope, kind: str, name: str) -> list[str]:
    """The rules that name the object. For objects of the cluster, rules of guests are not read: there are too many."""
    if firewall.scope == "guest":
        lists = {firewall.label: firewall.rules}
    else:
        groups = [str(row["group"]) for row in await pve.get(f"{CLUSTER}/groups")]
        nodes = [row.node for row in await pve.inventory.of_type("node") if row.status == "online"]
        lists = {"the cluster": f"{CLUSTER}/rules"}
        lists |= {f"security group {group}": f"{CLUSTER}/groups/{group}" for group in groups}
        lists |= {f"node {node}": f"/nodes/{node}/firewall/rules" for node in sorted(nodes)}
    rule_lists = await asyncio.gather(*(pve.get(path) for path in lists.values()))
    return [
        f"rule {rule['pos']} of {where}"
        for where, rules in zip(lists, rule_lists, strict=True)
        for rule in rules
        if _is_named(rule, kind, name, firewall.scope)
    ]


def _is_named(rule: Mapping[str, Any], kind: str, name: str, scope: str) -> bool:
    if kind == "group":
        return bool(rule["type"] == "group" and rule["action"] == name)
    scoped = "guest" if scope == "guest" else "dc"
    spelled = {name, f"{scoped}/{name}"} if kind == "alias" else {f"+{name}", f"+{scoped}/{name}"}
    spelled = {spelling.lower() for spelling in spelled} if kind == "alias" else spelled
    used = [part for key in ("source", "dest") for part in str(rule.get(key, "")).split(",")]
    return any((part.lower() if kind == "alias" else part) in spelled for part in used)


@operation(
    toolset="firewall",
    risk=Risk.DESTROY,
    search_words="remove drop away firewall rule alias ipset security group",
    example="scope=cluster kind=rule item=0",
)
async def firewall_delete(
    pve: Cluster,
    scope: Scope,
    kind: Literal["rule", "alias", "ipset", "group"],
    item: Annotated[int | str, Meta(description="Position of the rule, or the name")],
    of: Of | None = None,
    force: Annotated[bool, Meta(description="Also members of the IP set or rules of the group")] = False,
    digest: Digest | None = None,
) -> Plan:
    """Delete a firewall rule, or an alias, IP set or security group that no rule uses. Returns what was deleted."""
    if kind != "rule":
        if digest is not None:
            raise BadArgument(
                Sentence("{digest} cannot be combined with {kind}", digest=NAMED, kind=kind),
                next_step="It is for rules",
            )
        firewall = await _scope_for(pve, scope, of, kind)
        return await _plan_object_deletion(pve, firewall, kind, str(item), force=force)
    text = str(item)
    if not (text.isascii() and text.isdecimal()):
        raise BadArgument(
            f"{item!r} is not a position of a rule",
            next_step=Advice("The first is 0; see the rules", tools.firewall_get),
        )
    return await plan_rule_deletion(pve, await scope_of(pve, scope, of), int(text), digest)
