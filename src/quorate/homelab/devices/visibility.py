"""Which devices a caller may see: rules that hide a host or guest hide its stored data, too."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from quorate.homelab.devices.device import Device, bare
from quorate.homelab.devices.sitemap import Sitemap, Tree, sitemap, trees
from quorate.homelab.devices.store import Devices
from quorate.homelab.homelab import Homelab
from quorate.homelab.host import Host


@dataclass(frozen=True, slots=True)
class VisibleDevices:
    devices: list[Device]
    hosts: list[Host]
    clusters: list[Tree]
    silent: dict[str, str]
    """Clusters that do not answer, and why."""

    def map(self) -> Sitemap:
        return sitemap(self.devices, self.clusters, self.silent)


async def visible_devices(homelab: Homelab) -> VisibleDevices:
    """Everything the caller may see."""
    devices, (clusters, silent), hosts, everyone = await asyncio.gather(
        Devices(homelab.store).all(), trees(homelab), homelab.hosts.all(), homelab.hosts.everyone()
    )
    seen = {host.name for host in hosts}
    hidden = [host for host in everyone if host.name not in seen]
    names, addresses = {host.name for host in hidden}, {host.address for host in hidden}
    unguarded = {one.name for one in homelab.clusters} - {one.name for one in homelab.guarded}
    places = {
        f"{tree.cluster.name}/{row.vmid or row.node}"
        for tree in clusters
        for row in tree.rows
        if row.is_guest or row.type == "node"
    }

    def may_be_seen(device: Device) -> bool:
        if device.place and device.place.partition("/")[0] not in unguarded and device.place not in places:
            return False
        return not (names & set(device.refs) or addresses & {bare(one) for one in device.addresses})

    return VisibleDevices([one for one in devices if may_be_seen(one)], hosts, clusters, silent)
