"""The firewall of the cluster, of nodes, guests and vnets: options, rules, groups, aliases and IP sets."""

from __future__ import annotations

import ipaddress
import re
from typing import Any

from pve_schema.firewall_formats import ALIAS
from pve_simulator.cluster import firewall as scope
from pve_simulator.cluster.config_files import EMPTY_DIGEST, check_digest, digest_of, encode_value
from pve_simulator.cluster.firewall import (
    MACROS,
    RULE_KEYS,
    Entry,
    FirewallFile,
    Firewalls,
    FirewallScope,
    about_rule,
    check_rule,
    copy_rule,
    scope_of,
    with_digest,
)
from pve_simulator.http.parameters import split_list
from pve_simulator.http.refusals import bad_parameters, existing, failure
from pve_simulator.http.routing import Call, Payload, route

_SCOPES = (scope.CLUSTER, scope.NODE, scope.QEMU, scope.LXC, scope.VNET)
_NO_OPTIONS = ("delete", "digest", "node", "vmid", "vnet")


@route(*(f"GET {scope}/options" for scope in _SCOPES))
def options(call: Call) -> dict[str, Any]:
    current = scope_of(call).file.options
    return {**current, "digest": _digest(current)}


@route(*(f"PUT {scope}/options" for scope in _SCOPES))
def change_options(call: Call) -> None:
    current = scope_of(call, changes=True).file.options
    check_digest(_digest(current), call.params.get("digest"))
    unwanted = split_list(call.params.get("delete"))
    known = call.endpoint.parameters.keys() - set(_NO_OPTIONS)
    for name in unwanted:
        if name not in known:
            raise bad_parameters({"delete": f"no such option '{name}'"})
    for name in unwanted:
        current.pop(name, None)
    current.update({name: encode_value(call.params[name]) for name in known & call.params.keys()})
    if call.endpoint.template.startswith(scope.CLUSTER) and current.get("enable", 0) > 1:
        current["enable"] = int(call.world.clock.now())  # PVE stores the time it was enabled


def _digest(current: dict[str, Any]) -> str:
    return digest_of([current]) if current else EMPTY_DIGEST


@route("GET /cluster/firewall/macros")
def macros(_call: Call) -> list[dict[str, str]]:
    return [{"macro": name, "descr": text} for name, text in MACROS.items()]


@route(*(f"GET {scope}/refs" for scope in (scope.CLUSTER, scope.QEMU, scope.LXC)))
def references(call: Call) -> list[dict[str, str]]:
    """The aliases and IP sets that a rule can refer to."""
    scope = scope_of(call)
    rows = _references(call.world.part(Firewalls).cluster, "dc")
    if scope.own is not None:
        rows += _references(scope.own, "guest")
    only = call.params.get("type")
    return [row for row in rows if only in (None, row["type"])]


def _references(file: FirewallFile, scope: str) -> list[dict[str, str]]:
    rows: list[dict[str, str]] = []
    for name in sorted(file.ipsets):
        row = {"type": "ipset", "name": name, "ref": f"+{name}", "scope": scope}
        comment = file.ipset_comments.get(name)
        rows.append(row | ({"comment": comment} if comment else {}))
    for _, alias in sorted(file.aliases.items()):
        row = {"type": "alias", "name": alias["name"], "ref": alias["name"], "scope": scope}
        rows.append(row | ({"comment": alias["comment"]} if "comment" in alias else {}))
    return rows


@route(*(f"GET {scope}/log" for scope in (scope.NODE, scope.QEMU, scope.LXC)))
def log(_call: Call) -> Payload:
    """No packet was ever logged, so there is no log file."""
    return Payload([{"n": 1, "t": "unable to open file - No such file or directory"}], total=1)


_LISTS = (scope.GROUP, *(f"{each}/rules" for each in _SCOPES))
# Where the file of a node or guest has no rules at all, PVE's code fails on it; the line shows where.
_TRIPS = "Can't use an undefined value as an ARRAY reference at /usr/share/perl5/PVE/API2/Firewall/Rules.pm line {}."
_LINE_OF_UPDATE = 386
_LINE_OF_DELETE = 462


@route(*(f"GET {path}" for path in _LISTS))
def list_rules(call: Call) -> list[Entry]:
    scope = scope_of(call)
    rules = with_digest(scope.rules)
    return [{**rule, **about_rule(rule, scope.own, scope.cluster), "pos": pos} for pos, rule in enumerate(rules)]


@route(*(f"GET {path}/{{pos}}" for path in _LISTS))
def one_rule(call: Call) -> Entry:
    scope, pos = scope_of(call), call.params["pos"]
    if pos >= len(scope.rules):
        raise failure(f"no rule at position {pos}")
    rule = with_digest(scope.rules)[pos]
    return {**rule, **about_rule(rule, scope.own, scope.cluster), "pos": call.values["pos"]}  # as in the path


@route(*(f"POST {path}" for path in _LISTS))
def create_rule(call: Call) -> None:
    """A new rule comes first, and does nothing until it is enabled."""
    scope = scope_of(call, changes=True)
    rule: Entry = {}
    copy_rule(rule, call.params)
    check_rule(rule, scope.kind, scope.own, scope.cluster)
    rule.setdefault("enable", 0)
    scope.rules.insert(0, rule)


@route(*(f"PUT {path}/{{pos}}" for path in _LISTS))
def update_rule(call: Call) -> None:
    scope, pos = _existing(call, _LINE_OF_UPDATE)
    moveto = call.params.get("moveto")
    if moveto is not None and moveto != pos:
        _move(scope.rules, pos, moveto)
        return
    changed = dict(scope.rules[pos])
    copy_rule(changed, call.params)
    for key in split_list(call.params.get("delete")):
        if key not in RULE_KEYS:
            raise bad_parameters({"delete": f"no such property ('{key}')"})
        if key in ("type", "action"):
            raise bad_parameters({"delete": f"unable to delete required property '{key}'"})
        changed.pop(key, None)
    check_rule(changed, scope.kind, scope.own, scope.cluster)
    scope.rules[pos] = changed


@route(*(f"DELETE {path}/{{pos}}" for path in _LISTS))
def delete_rule(call: Call) -> None:
    scope, pos = _existing(call, _LINE_OF_DELETE)
    del scope.rules[pos]


def _existing(call: Call, line: int) -> tuple[FirewallScope, int]:
    scope, pos = scope_of(call, changes=True), call.params["pos"]
    check_digest(digest_of(scope.rules), call.params.get("digest"))
    if not scope.rules and scope.kind in ("host", "vm", "ct"):
        raise failure(_TRIPS.format(line))
    if pos >= len(scope.rules):
        raise failure(f"no rule at position {pos}")
    return scope, pos


def _move(rules: list[Any], pos: int, moveto: int) -> None:
    """`moveto` refers to the list before the move: the rule goes before the one at that position."""
    rule = rules[pos]
    before = [each for index, each in enumerate(rules[:moveto]) if index != pos]
    after = [each for index, each in enumerate(rules[moveto:], moveto) if index != pos]
    rules[:] = [*before, rule, *after]


_OBJECT_SCOPES = (scope.CLUSTER, scope.QEMU, scope.LXC)


def _routes(method: str, path: str) -> list[str]:
    return [f"{method} {scope}{path}" for scope in _OBJECT_SCOPES]


@route(*_routes("GET", "/aliases"))
def list_aliases(call: Call) -> list[Entry]:
    return with_digest(_aliases(scope_of(call).file))


def _aliases(file: FirewallFile) -> list[Entry]:
    return [alias for _, alias in sorted(file.aliases.items())]


@route(*_routes("POST", "/aliases"))
def create_alias(call: Call) -> None:
    aliases, name = scope_of(call).file.aliases, call.params["name"]
    if name.lower() in aliases:
        raise bad_parameters({"name": f"alias '{name}' already exists"})
    aliases[name.lower()] = _alias(call, name)


@route(*_routes("GET", "/aliases/{name}"))
def one_alias(call: Call) -> Entry:
    return _existing_alias(call, scope_of(call).file)


@route(*_routes("PUT", "/aliases/{name}"))
def update_alias(call: Call) -> None:
    file = scope_of(call).file
    check_digest(digest_of(_aliases(file)), call.params.get("digest"))
    old = _existing_alias(call, file)["name"].lower()
    name = call.params.get("rename", call.values["name"])
    if name.lower() != old and name.lower() in file.aliases:
        raise bad_parameters({"name": f"alias '{name}' already exists"})
    del file.aliases[old]
    file.aliases[name.lower()] = _alias(call, name)


@route(*_routes("DELETE", "/aliases/{name}"))
def delete_alias(call: Call) -> None:
    file = scope_of(call).file
    check_digest(digest_of(_aliases(file)), call.params.get("digest"))
    file.aliases.pop(call.values["name"].lower(), None)


def _existing_alias(call: Call, file: FirewallFile) -> Entry:
    return existing(file.aliases.get(call.values["name"].lower()), bad_parameters({"name": "no such alias"}))


def _alias(call: Call, name: str) -> Entry:
    cidr = _normalize_cidr(call.params["cidr"])
    version = ipaddress.ip_network(cidr, strict=False).version
    return {"name": name, "cidr": cidr, "ipversion": version, **_comment(call)}


def _normalize_cidr(cidr: str) -> str:
    """A network of one address is written as an address."""
    return cidr.removesuffix("/128") if ":" in cidr else cidr.removesuffix("/32")


@route(*_routes("GET", "/ipset"))
def list_ipsets(call: Call) -> list[Entry]:
    return with_digest(_list_names(scope_of(call).file.ipsets, scope_of(call).file.ipset_comments, "name"))


def _list_names(sets: dict[str, list[Entry]], comments: dict[str, str], key: str) -> list[Entry]:
    return [{key: name} | ({"comment": comments[name]} if comments.get(name) else {}) for name in sorted(sets)]


@route(*_routes("POST", "/ipset"))
def create_ipset(call: Call) -> None:
    file = scope_of(call).file
    _create_or_rename(call, "IPSet", "name", file.ipsets, file.ipset_comments)


def _create_or_rename(call: Call, word: str, key: str, sets: dict[str, list[Entry]], comments: dict[str, str]) -> None:
    """With `rename`, an existing set gets the name; its own name changes only the comment."""
    name, old = call.params[key], call.params.get("rename")
    if old is None:
        if name in sets:
            raise bad_parameters({key: f"{word} '{name}' already exists"})
        sets.setdefault(name.lower(), [])  # names are read back in lower case
    else:
        check_digest(digest_of(_list_names(sets, comments, key)), call.params.get("digest"))
        if old not in sets:
            raise bad_parameters({key: f"{word} '{old}' does not exist"})
        if name != old and name in sets:
            raise bad_parameters({key: f"{word} '{name}' does already exist"})
        sets[name.lower()] = sets.pop(old)
        comments[name.lower()] = comments.pop(old, "")
    if "comment" in call.params:
        comments[name.lower()] = call.params["comment"].strip()


@route(*_routes("DELETE", "/ipset/{name}"))
def delete_ipset(call: Call) -> None:
    file, name = scope_of(call).file, call.values["name"]
    if _entries(call, scope_of(call)) and not call.params.get("force"):
        raise failure(f"IPSet '{name}' is not empty")
    del file.ipsets[name]
    file.ipset_comments.pop(name, None)


@route(*_routes("GET", "/ipset/{name}"))
def ipset_content(call: Call) -> list[Entry]:
    return with_digest(_describe_entries(call))


@route(*_routes("POST", "/ipset/{name}"))
def add_address(call: Call) -> None:
    cidr = _normalize_cidr(call.params["cidr"])
    scope = scope_of(call)
    entries = _entries(call, scope)
    if any(entry["cidr"] == cidr for entry in entries):
        raise bad_parameters({"cidr": f"address '{cidr}' already exists"})
    if re.search(r"/0+$", cidr):
        raise bad_parameters({"cidr": "a zero prefix is not allowed in ipset entries"})
    if error := _alias_error(scope, cidr):
        raise failure(error["errors"]["cidr"])
    entries.append({"cidr": cidr, **_about_entry(call)})
    entries.sort(key=lambda entry: str(entry["cidr"]))


@route(*_routes("GET", "/ipset/{name}/{cidr}"))
def one_address(call: Call) -> Entry:
    for entry in with_digest(_describe_entries(call)):
        if entry["cidr"] == call.values["cidr"]:
            return entry
    raise bad_parameters({"cidr": "no such IP/Network"})


@route(*_routes("PUT", "/ipset/{name}/{cidr}"))
def update_address(call: Call) -> None:
    entries = _entries(call, scope_of(call))
    check_digest(digest_of(entries), call.params.get("digest"))
    for index, entry in enumerate(entries):
        if entry["cidr"] == call.values["cidr"]:
            entries[index] = {"cidr": entry["cidr"], **_about_entry(call)}
            return
    raise bad_parameters({"cidr": "no such IP/Network"})


@route(*_routes("DELETE", "/ipset/{name}/{cidr}"))
def delete_address(call: Call) -> None:
    entries = _entries(call, scope_of(call))
    check_digest(digest_of(entries), call.params.get("digest"))
    entries[:] = [entry for entry in entries if entry["cidr"] != call.values["cidr"]]


def _entries(call: Call, scope: FirewallScope) -> list[Entry]:
    name = call.values["name"]
    if name not in scope.file.ipsets:
        raise failure(f"no such IPSet '{name}'")
    return scope.file.ipsets[name]


def _describe_entries(call: Call) -> list[Entry]:
    """The entries of an IP set, with an error where an alias is missing."""
    scope = scope_of(call)
    return [entry | _alias_error(scope, entry["cidr"]) for entry in _entries(call, scope)]


def _alias_error(scope: FirewallScope, cidr: str) -> Entry:
    name = cidr.removeprefix("dc/").removeprefix("guest/").lower()
    if not ALIAS.fullmatch(cidr) or name in scope.file.aliases or name in scope.cluster.aliases:
        return {}
    return {"errors": {"cidr": f"no such alias '{cidr}'"}}


def _about_entry(call: Call) -> Entry:
    return ({"nomatch": 1} if call.params.get("nomatch") else {}) | _comment(call)


def _comment(call: Call) -> Entry:
    """A comment as PVE reads it from the file."""
    text = str(call.params.get("comment") or "").strip()
    return {"comment": text} if text else {}


@route("GET /cluster/firewall/groups")
def list_groups(call: Call) -> list[Entry]:
    cluster = call.world.part(Firewalls).cluster
    return with_digest(_list_names(cluster.groups, cluster.group_comments, "group"))


@route("POST /cluster/firewall/groups")
def create_group(call: Call) -> None:
    cluster = call.world.part(Firewalls).cluster
    _create_or_rename(call, "Security group", "group", cluster.groups, cluster.group_comments)


@route("DELETE /cluster/firewall/groups/{group}")
def delete_group(call: Call) -> None:
    scope, group = scope_of(call), call.values["group"]
    if scope.rules:
        raise failure(f"Security group '{group}' is not empty")
    del scope.file.groups[group]
    scope.file.group_comments.pop(group, None)
