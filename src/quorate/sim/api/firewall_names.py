"""Names that firewall rules use: aliases, IP sets and security groups."""

from __future__ import annotations

import ipaddress
import re
from typing import Any

from quorate.sim.api import firewall_places as places
from quorate.sim.api.firewall_places import Place, place_of
from quorate.sim.config_files import check_digest, digest_of
from quorate.sim.firewall import Entry, FirewallFile, Firewalls, with_digest
from quorate.sim.refusals import bad_parameters, failure
from quorate.sim.routing import Call, route

_PLACES = (places.CLUSTER, places.QEMU, places.LXC)
_ALIAS = re.compile(r"(?:(?:dc|guest)/)?[A-Za-z][A-Za-z0-9\-_]+")


def _routes(method: str, path: str) -> list[str]:
    return [f"{method} {place}{path}" for place in _PLACES]


@route(*_routes("GET", "/aliases"))
def list_aliases(call: Call) -> list[Entry]:
    return with_digest(_aliases(place_of(call).file))


def _aliases(file: FirewallFile) -> list[Entry]:
    return [alias for _, alias in sorted(file.aliases.items())]


@route(*_routes("POST", "/aliases"))
def create_alias(call: Call) -> None:
    aliases, name = place_of(call).file.aliases, call.params["name"]
    _check_cidr(call.params["cidr"])
    if name.lower() in aliases:
        raise bad_parameters({"name": f"alias '{name}' already exists"})
    aliases[name.lower()] = _alias(call, name)


@route(*_routes("GET", "/aliases/{name}"))
def one_alias(call: Call) -> Entry:
    return _existing_alias(call, place_of(call).file)


@route(*_routes("PUT", "/aliases/{name}"))
def update_alias(call: Call) -> None:
    file = place_of(call).file
    _check_cidr(call.params["cidr"])
    check_digest(digest_of(_aliases(file)), call.params.get("digest"))
    old = _existing_alias(call, file)["name"].lower()
    name = call.params.get("rename", call.values["name"])
    if name.lower() != old and name.lower() in file.aliases:
        raise bad_parameters({"name": f"alias '{name}' already exists"})
    del file.aliases[old]
    file.aliases[name.lower()] = _alias(call, name)


@route(*_routes("DELETE", "/aliases/{name}"))
def delete_alias(call: Call) -> None:
    file = place_of(call).file
    check_digest(digest_of(_aliases(file)), call.params.get("digest"))
    file.aliases.pop(call.values["name"].lower(), None)


def _existing_alias(call: Call, file: FirewallFile) -> Entry:
    alias = file.aliases.get(call.values["name"].lower())
    if alias is None:
        raise bad_parameters({"name": "no such alias"})
    return alias


def _alias(call: Call, name: str) -> Entry:
    cidr = call.params["cidr"]
    alias = {"name": name, "cidr": cidr, "ipversion": ipaddress.ip_network(cidr, strict=False).version}
    return alias | ({"comment": call.params["comment"]} if call.params.get("comment") else {})


def _check_cidr(cidr: str, *, alias_too: bool = False) -> None:
    """The named format of an address or network."""
    if alias_too and _ALIAS.fullmatch(cidr):
        return
    try:
        ipaddress.ip_network(cidr, strict=False)
    except ValueError as error:
        text = "value does not look like a valid IP address or CIDR network"
        raise bad_parameters({"cidr": f"invalid format - {text}\n"}) from error


@route(*_routes("GET", "/ipset"))
def list_ipsets(call: Call) -> list[Entry]:
    return with_digest(_named(place_of(call).file.ipsets, place_of(call).file.ipset_comments, "name"))


def _named(sets: dict[str, list[Entry]], comments: dict[str, str], key: str) -> list[Entry]:
    return [{key: name} | ({"comment": comments[name]} if comments.get(name) else {}) for name in sorted(sets)]


@route(*_routes("POST", "/ipset"))
def create_ipset(call: Call) -> None:
    file = place_of(call).file
    _create_or_rename(call, "IPSet", "name", file.ipsets, file.ipset_comments)


def _create_or_rename(call: Call, word: str, key: str, sets: dict[str, list[Entry]], comments: dict[str, str]) -> None:
    """One call for both: with `rename` an existing set gets the name, which may be its own to change the comment."""
    name, old = call.params[key], call.params.get("rename")
    if old is None:
        if name in sets:
            raise bad_parameters({key: f"{word} '{name}' already exists"})
        sets[name] = []
    else:
        check_digest(digest_of(_named(sets, comments, key)), call.params.get("digest"))
        if old not in sets:
            raise bad_parameters({key: f"{word} '{old}' does not exist"})
        if name != old and name in sets:
            raise bad_parameters({key: f"{word} '{name}' does already exist"})
        sets[name] = sets.pop(old)
        if old in comments:
            comments[name] = comments.pop(old)
    if "comment" in call.params:
        comments[name] = call.params["comment"]


@route(*_routes("DELETE", "/ipset/{name}"))
def delete_ipset(call: Call) -> None:
    file, name = place_of(call).file, call.values["name"]
    if _entries(call, place_of(call)) and not call.params.get("force"):
        raise failure(f"IPSet '{name}' is not empty")
    del file.ipsets[name]
    file.ipset_comments.pop(name, None)


@route(*_routes("GET", "/ipset/{name}"))
def ipset_content(call: Call) -> list[Entry]:
    return with_digest(_entries(call, place_of(call)))


@route(*_routes("POST", "/ipset/{name}"))
def add_address(call: Call) -> None:
    cidr = call.params["cidr"]
    _check_cidr(cidr, alias_too=True)
    place = place_of(call)
    entries = _entries(call, place)
    if any(entry["cidr"] == cidr for entry in entries):
        raise bad_parameters({"cidr": f"address '{cidr}' already exists"})
    if re.search(r"/0+$", cidr):
        raise bad_parameters({"cidr": "a zero prefix is not allowed in ipset entries"})
    if _ALIAS.fullmatch(cidr):
        _check_alias(place, cidr)
    entries.insert(0, {"cidr": cidr, **_about_entry(call)})


@route(*_routes("GET", "/ipset/{name}/{cidr}"))
def one_address(call: Call) -> Entry:
    for entry in with_digest(_entries(call, place_of(call))):
        if entry["cidr"] == call.values["cidr"]:
            return entry
    raise bad_parameters({"cidr": "no such IP/Network"})


@route(*_routes("PUT", "/ipset/{name}/{cidr}"))
def update_address(call: Call) -> None:
    entries = _entries(call, place_of(call))
    check_digest(digest_of(entries), call.params.get("digest"))
    for index, entry in enumerate(entries):
        if entry["cidr"] == call.values["cidr"]:
            entries[index] = {"cidr": entry["cidr"], **_about_entry(call)}
            return
    raise bad_parameters({"cidr": "no such IP/Network"})


@route(*_routes("DELETE", "/ipset/{name}/{cidr}"))
def delete_address(call: Call) -> None:
    entries = _entries(call, place_of(call))
    check_digest(digest_of(entries), call.params.get("digest"))
    entries[:] = [entry for entry in entries if entry["cidr"] != call.values["cidr"]]


def _entries(call: Call, place: Place) -> list[Entry]:
    name = call.values["name"]
    if name not in place.file.ipsets:
        raise failure(f"no such IPSet '{name}'")
    return place.file.ipsets[name]


def _check_alias(place: Place, alias: str) -> None:
    name = alias.removeprefix("dc/").removeprefix("guest/").lower()
    if name not in place.file.aliases and name not in place.cluster.aliases:
        raise failure(f"no such alias '{alias}'")


def _about_entry(call: Call) -> Entry:
    about: dict[str, Any] = {"nomatch": 1} if call.params.get("nomatch") else {}
    return about | ({"comment": call.params["comment"]} if call.params.get("comment") else {})


@route("GET /cluster/firewall/groups")
def list_groups(call: Call) -> list[Entry]:
    cluster = call.world.part(Firewalls).cluster
    return with_digest(_named(cluster.groups, cluster.group_comments, "group"))


@route("POST /cluster/firewall/groups")
def create_group(call: Call) -> None:
    cluster = call.world.part(Firewalls).cluster
    _create_or_rename(call, "Security group", "group", cluster.groups, cluster.group_comments)


@route("DELETE /cluster/firewall/groups/{group}")
def delete_group(call: Call) -> None:
    place, group = place_of(call), call.values["group"]
    if place.rules:
        raise failure(f"Security group '{group}' is not empty")
    del place.file.groups[group]
    place.file.group_comments.pop(group, None)
