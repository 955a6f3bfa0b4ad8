"""The firewall configuration of the cluster, its nodes, guests and vnets."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pve_simulator.cluster.config_files import digest_of
from pve_simulator.cluster.sdn_routes import require_vnet
from pve_simulator.http.refusals import failure
from pve_simulator.http.routing import Call
from pve_simulator.world import World

Entry = dict[str, Any]


@dataclass(slots=True)
class FirewallFile:
    """What one `.fw` file holds. Only the cluster's has security groups."""

    rules: list[Entry] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)
    aliases: dict[str, Entry] = field(default_factory=dict)  # by name in lower case
    ipsets: dict[str, list[Entry]] = field(default_factory=dict)
    ipset_comments: dict[str, str] = field(default_factory=dict)
    groups: dict[str, list[Entry]] = field(default_factory=dict)
    group_comments: dict[str, str] = field(default_factory=dict)


class Firewalls:
    """All firewall files of a cluster; a missing file counts as empty."""

    def __init__(self, world: World) -> None:
        self.cluster = FirewallFile()
        self._nodes: dict[str, FirewallFile] = {}
        self._guests: dict[int, FirewallFile] = {}
        self._vnets: dict[str, FirewallFile] = {}
        world.on_guest_removed.append(self.forget_guest)

    def node(self, name: str) -> FirewallFile:
        return self._nodes.setdefault(name, FirewallFile())

    def guest(self, vmid: int) -> FirewallFile:
        return self._guests.setdefault(vmid, FirewallFile())

    def vnet(self, name: str) -> FirewallFile:
        return self._vnets.setdefault(name, FirewallFile())

    def copy_guest(self, source: int, target: int) -> None:
        """A clone starts with the rules of its source."""
        if source in self._guests:
            self._guests[target] = copy.deepcopy(self._guests[source])

    def forget_guest(self, vmid: int) -> None:
        """Delete the guest's file."""
        self._guests.pop(vmid, None)


def with_digest(entries: Iterable[Mapping[str, Any]]) -> list[Entry]:
    """The entries as the API lists them: each has the digest of the whole list."""
    listed = [dict(entry) for entry in entries]
    digest = digest_of(listed)
    return [{**entry, "digest": digest} for entry in listed]


CLUSTER = "/cluster/firewall"
GROUP = "/cluster/firewall/groups/{group}"
NODE = "/nodes/{node}/firewall"
QEMU = "/nodes/{node}/qemu/{vmid}/firewall"
LXC = "/nodes/{node}/lxc/{vmid}/firewall"
VNET = "/cluster/sdn/vnets/{vnet}/firewall"


@dataclass(frozen=True, slots=True)
class FirewallScope:
    """One firewall file and PVE's name for its scope."""

    kind: str
    file: FirewallFile
    rules: list[Entry]
    cluster: FirewallFile

    @property
    def own(self) -> FirewallFile | None:
        """The file whose aliases and IP sets apply in addition to the cluster's."""
        return self.file if self.kind in ("vm", "ct") else None


def scope_of(call: Call, *, changes: bool = False) -> FirewallScope:
    """The scope in the path. For vnets the permission is checked here, as in PVE."""
    template = call.endpoint.template
    firewalls = call.world.part(Firewalls)
    cluster = firewalls.cluster
    if template.startswith(GROUP):
        group = call.values["group"]
        if group not in cluster.groups:
            raise failure(f"no such security group '{group}'")
        return FirewallScope("group", cluster, cluster.groups[group], cluster)
    if template.startswith(CLUSTER):
        return _scope("cluster", cluster, cluster)
    if template.startswith(VNET):
        vnet = call.values["vnet"]
        require_vnet(call, *(("SDN.Allocate",) if changes else ("SDN.Audit", "SDN.Allocate")))
        return _scope("vnet", firewalls.vnet(vnet), cluster)
    if template.startswith(NODE):
        return _scope("host", firewalls.node(call.node), cluster)
    return _scope("vm" if template.startswith(QEMU) else "ct", firewalls.guest(call.vmid), cluster)


def _scope(kind: str, file: FirewallFile, cluster: FirewallFile) -> FirewallScope:
    return FirewallScope(kind, file, file.rules, cluster)
