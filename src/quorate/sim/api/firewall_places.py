"""Where a firewall call works: the cluster, a security group, a node, a guest or a vnet."""

from __future__ import annotations

from dataclasses import dataclass

from quorate.sim.api.sdn_common import require_vnet
from quorate.sim.firewall import Entry, FirewallFile, Firewalls
from quorate.sim.refusals import failure
from quorate.sim.routing import Call

CLUSTER = "/cluster/firewall"
GROUP = "/cluster/firewall/groups/{group}"
NODE = "/nodes/{node}/firewall"
QEMU = "/nodes/{node}/qemu/{vmid}/firewall"
LXC = "/nodes/{node}/lxc/{vmid}/firewall"
VNET = "/cluster/sdn/vnets/{vnet}/firewall"


@dataclass(frozen=True, slots=True)
class Place:
    """One firewall file, and how PVE calls the kind of place that it is for."""

    kind: str
    file: FirewallFile
    rules: list[Entry]
    cluster: FirewallFile

    @property
    def own(self) -> FirewallFile | None:
        """The file whose aliases and IP sets count beside those of the cluster."""
        return self.file if self.kind in ("vm", "ct") else None


def place_of(call: Call, *, changes: bool = False) -> Place:
    """The place that the path names. For vnets the permission is checked here, as PVE does."""
    template = call.endpoint.template
    firewalls = call.world.part(Firewalls)
    cluster = firewalls.cluster
    if template.startswith(GROUP):
        group = call.values["group"]
        if group not in cluster.groups:
            raise failure(f"no such security group '{group}'")
        return Place("group", cluster, cluster.groups[group], cluster)
    if template.startswith(CLUSTER):
        return _place("cluster", cluster, cluster)
    if template.startswith(VNET):
        vnet = call.values["vnet"]
        require_vnet(call, vnet, *(("SDN.Allocate",) if changes else ("SDN.Audit", "SDN.Allocate")))
        return _place("vnet", firewalls.vnet(vnet), cluster)
    if template.startswith(NODE):
        return _place("host", firewalls.node(call.node), cluster)
    return _place("vm" if template.startswith(QEMU) else "ct", firewalls.guest(call.vmid), cluster)


def _place(kind: str, file: FirewallFile, cluster: FirewallFile) -> Place:
    return Place(kind, file, file.rules, cluster)
