"""Settings of a node: time, DNS, hosts, configuration and subscription."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from pve_simulator.cluster.config_files import check_digest
from pve_simulator.http.parameters import split_list
from pve_simulator.http.refusals import bad_parameters, failure
from pve_simulator.http.routing import Call, route
from pve_simulator.world import Node, PerNode

DOMAIN = "home.lan"
_PRICING_URL = "https://www.proxmox.com/en/proxmox-virtual-environment/pricing"


@dataclass(slots=True)
class NodeSettings:
    """The settings of one node."""

    hosts: str
    options: dict[str, Any] = field(default_factory=dict)
    written: bool = False  # whether the options file exists
    dns: dict[str, str] = field(default_factory=lambda: {"search": DOMAIN, "dns1": "192.168.10.2"})
    timezone: str = "UTC"
    subscription_key: str | None = None
    subscription_due: str | None = None  # the expiry date of a checked key
    custom_certificate: str | None = None

    def options_digest(self) -> str:
        return sha1("".join(f"{key}: {value}\n" for key, value in sorted(self.options.items())))

    def hosts_digest(self) -> str:
        return sha1(self.hosts)


class Settings(PerNode[NodeSettings]):
    """The settings of every node."""

    def make(self, node: Node) -> NodeSettings:
        return NodeSettings(f"127.0.0.1 localhost.localdomain localhost\n{node.ip} {node.name}.{DOMAIN} {node.name}\n")

    def subscription(self, node: str) -> dict[str, Any]:
        server = hashlib.md5(f"{self._world.seed}{node}".encode(), usedforsecurity=False).hexdigest().upper()
        key = self.of(node).subscription_key
        if key is None:
            message = "There is no subscription key"
            return {"status": "notfound", "message": message, "serverid": server, "url": _PRICING_URL}
        due = self.of(node).subscription_due
        checked = {"status": "active", "message": "", "nextduedate": due} if due is not None else {}
        return {
            "status": "new",
            "message": "subscription information not yet checked",
            "key": key,
            "level": key[3] if len(key) > 3 else "",
            "serverid": server,
            "sockets": self._world.nodes[node].sockets,
            "url": _PRICING_URL,
            **checked,
        }


def sha1(text: str) -> str:
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


_BASE = "/nodes/{node}"


def _settings(call: Call) -> NodeSettings:
    return call.world.part(Settings).of(call.node)


@route(f"GET {_BASE}/config")
def options(call: Call) -> dict[str, Any]:
    settings = _settings(call)
    name = call.params.get("property", "all")
    if name != "all":
        value = settings.options.get(name, "" if name == "description" and settings.written else None)
        return {} if value is None else {name: value}
    if not settings.written:
        return {}
    return {"description": "", **settings.options, "digest": settings.options_digest()}


@route(f"PUT {_BASE}/config")
def change_options(call: Call) -> None:
    settings = _settings(call)
    check_digest(settings.options_digest(), call.params.get("digest"))
    settings.written = True
    for key in split_list(call.params.get("delete")):
        settings.options.pop(key, None)
    for key, value in call.params.items():
        if key not in ("node", "delete", "digest"):
            settings.options[key] = f"{value.rstrip()}\n" if key == "description" else value


@route(f"GET {_BASE}/time")
def time(call: Call) -> dict[str, Any]:
    now = int(call.world.clock.now() + call.world.nodes[call.node].clock_offset)
    zone = _settings(call).timezone
    return {"timezone": zone, "time": now, "localtime": now + _offset(zone, now)}


def _offset(zone: str, now: int) -> int:
    try:
        difference = datetime.fromtimestamp(now, ZoneInfo(zone)).utcoffset()
    except ZoneInfoNotFoundError:
        return 0
    return 0 if difference is None else int(difference.total_seconds())


@route(f"PUT {_BASE}/time")
def change_time_zone(call: Call) -> None:
    zone = call.params["timezone"]
    known = available_timezones()  # empty without time zone data; then only the spelling is checked
    if zone not in known and (known or not re.fullmatch(r"[A-Z]\w+(/[A-Z][\w+-]+)*", zone)):
        raise bad_parameters({"timezone": "No such timezone"})
    _settings(call).timezone = zone


@route(f"GET {_BASE}/dns")
def dns(call: Call) -> dict[str, str]:
    return dict(_settings(call).dns)


@route(f"PUT {_BASE}/dns")
def change_dns(call: Call) -> None:
    """Rewrite the whole file: servers that are not given again are removed."""
    names = ("search", "dns1", "dns2", "dns3")
    _settings(call).dns = {name: call.params[name] for name in names if name in call.params}


@route(f"GET {_BASE}/hosts")
def hosts(call: Call) -> dict[str, str]:
    settings = _settings(call)
    return {"data": settings.hosts, "digest": settings.hosts_digest()}


@route(f"POST {_BASE}/hosts")
def change_hosts(call: Call) -> None:
    settings = _settings(call)
    check_digest(settings.hosts_digest(), call.params.get("digest"))
    settings.hosts = call.params["data"]


@route(f"GET {_BASE}/subscription")
def subscription(call: Call) -> dict[str, Any]:
    shown = call.world.part(Settings).subscription(call.node)
    if not call.is_root and not call.allowed(f"/nodes/{call.node}", "Sys.Audit"):
        hidden = ("key", "serverid", "signature", "checktime")
        return {key: value for key, value in shown.items() if key not in hidden}
    return shown


@route(f"PUT {_BASE}/subscription")
def set_subscription(call: Call) -> None:
    _settings(call).subscription_key = call.params["key"].strip()


@route(f"POST {_BASE}/subscription")
def check_subscription(call: Call) -> None:
    """Check the key with the shop, which is not reachable from here."""
    if _settings(call).subscription_key is not None:
        raise failure("Error checking subscription: 500 Can't connect to shop.proxmox.com:443")


@route(f"DELETE {_BASE}/subscription")
def remove_subscription(call: Call) -> None:
    _settings(call).subscription_key = None
