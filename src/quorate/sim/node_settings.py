"""Small settings of a node: notes and options, DNS, hosts file, time zone, subscription."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

from quorate.sim.refusals import failure
from quorate.sim.world import Node, World

DOMAIN = "home.lan"
_SHOP = "https://www.proxmox.com/en/proxmox-virtual-environment/pricing"


@dataclass(slots=True)
class NodeSettings:
    """What an administrator can set on one node."""

    hosts: str
    options: dict[str, Any] = field(default_factory=dict)
    dns: dict[str, str] = field(default_factory=lambda: {"search": DOMAIN, "dns1": "192.168.10.2"})
    timezone: str = "UTC"
    subscription_key: str | None = None
    custom_certificate: str | None = None

    def options_digest(self) -> str:
        return sha1("".join(f"{key}: {value}\n" for key, value in sorted(self.options.items())))

    def hosts_digest(self) -> str:
        return sha1(self.hosts)


class Settings:
    """The settings of every node."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._by_node: dict[str, NodeSettings] = {}

    def of(self, node: str) -> NodeSettings:
        known = self._by_node.get(node)
        if known is None:
            known = self._by_node[node] = NodeSettings(_hosts_file(self._world.nodes[node]))
        return known

    def subscription(self, node: str) -> dict[str, Any]:
        server = hashlib.md5(f"{self._world.seed}{node}".encode(), usedforsecurity=False).hexdigest().upper()
        key = self.of(node).subscription_key
        if key is None:
            message = "There is no subscription key"
            return {"status": "notfound", "message": message, "serverid": server, "url": _SHOP}
        return {
            "status": "new",
            "message": "subscription information not yet checked",
            "key": key,
            "level": key[3] if len(key) > 3 else "",
            "serverid": server,
            "sockets": self._world.nodes[node].sockets,
            "url": _SHOP,
        }


def check_digest(given: str | None, own: str) -> None:
    """Optimistic locking, where the caller asked for it."""
    if given is not None and given != own:
        raise failure("detected modified configuration - file changed by other user? Try again.")


def sha1(text: str) -> str:
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


def _hosts_file(node: Node) -> str:
    return f"127.0.0.1 localhost.localdomain localhost\n{node.ip} {node.name}.{DOMAIN} {node.name}\n"
