"""Firewall options, references, macros and logs."""

from __future__ import annotations

from typing import Any

from quorate.sim.api import firewall_places as places
from quorate.sim.api.firewall_places import place_of
from quorate.sim.config_files import EMPTY_DIGEST, check_digest, digest_of, split_list, stored
from quorate.sim.firewall import FirewallFile, Firewalls
from quorate.sim.firewall_macros import MACROS
from quorate.sim.refusals import bad_parameters
from quorate.sim.routing import Answer, Call, route

_PLACES = (places.CLUSTER, places.NODE, places.QEMU, places.LXC, places.VNET)
_NO_OPTIONS = ("delete", "digest", "node", "vmid", "vnet")


@route(*(f"GET {place}/options" for place in _PLACES))
def options(call: Call) -> dict[str, Any]:
    current = place_of(call).file.options
    return {**current, "digest": _digest(current)}


@route(*(f"PUT {place}/options" for place in _PLACES))
def change_options(call: Call) -> None:
    current = place_of(call, changes=True).file.options
    check_digest(_digest(current), call.params.get("digest"))
    unwanted = split_list(call.params.get("delete"))
    known = call.endpoint.parameters.keys() - set(_NO_OPTIONS)
    for name in unwanted:
        if name not in known:
            raise bad_parameters({"delete": f"no such option '{name}'"})
    for name in unwanted:
        current.pop(name, None)
    current.update({name: stored(call.params[name]) for name in known & call.params.keys()})
    if call.endpoint.template.startswith(places.CLUSTER) and current.get("enable", 0) > 1:
        current["enable"] = int(call.world.clock.now())  # PVE keeps when it was switched on


def _digest(current: dict[str, Any]) -> str:
    return digest_of([current]) if current else EMPTY_DIGEST


@route("GET /cluster/firewall/macros")
def macros(_call: Call) -> list[dict[str, str]]:
    return [{"macro": name, "descr": text} for name, text in MACROS.items()]


@route(*(f"GET {place}/refs" for place in (places.CLUSTER, places.QEMU, places.LXC)))
def references(call: Call) -> list[dict[str, str]]:
    """What the source or destination of a rule can name."""
    place = place_of(call)
    rows = _references(call.world.part(Firewalls).cluster, "dc")
    if place.own is not None:
        rows += _references(place.own, "guest")
    wanted = call.params.get("type")
    return [row for row in rows if wanted in (None, row["type"])]


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


@route(*(f"GET {place}/log" for place in (places.NODE, places.QEMU, places.LXC)))
def log(_call: Call) -> Answer:
    """No packet was ever logged, so there is no file to read."""
    return Answer([{"n": 1, "t": "unable to open file - No such file or directory"}], total=1)
