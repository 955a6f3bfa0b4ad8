"""A cluster of any size: nodes and guests by number, for measurements."""

from __future__ import annotations

from quorate.sim.access import Pool
from quorate.sim.building import Builder
from quorate.sim.metrics import spread
from quorate.sim.world import World

_ROLES = ("web", "db", "cache", "worker", "build", "mail", "proxy", "test")
_TAGS = ("prod", "staging", "lab", "prod;web", "db;prod")


def build_scaled_world(world: World, nodes: int, guests: int) -> None:
    """Fill an empty world with so many nodes and guests, spread evenly."""
    if nodes < 1 or guests < 0:
        raise ValueError("a cluster needs at least one node, and no fewer than zero guests")
    builder = Builder(world)
    names = [f"pve{number}" for number in range(1, nodes + 1)]
    for name in names:
        builder.node(name, memory=768, cpus=96, up_days=90.0)
    per_node = guests // nodes + 1
    _add_storages(builder, per_node, guests)
    for index in range(guests):
        _add_guest(builder, 100 + index, names[index % nodes])
    world.access.users["root@pam"].password = "simulated-root"  # noqa: S105
    production = range(100, 100 + guests // 2)
    world.access.pools = {
        "production": Pool("production", "one half", set(production)),
        "lab": Pool("lab", "the other", set(range(100 + guests // 2, 100 + guests))),
    }
    world.access.changed()


def _add_storages(builder: Builder, per_node: int, guests: int) -> None:
    builder.storage("local", "dir", "iso,vztmpl,backup,snippets", total=200, used=30, path="/var/lib/vz")
    builder.storage("local-lvm", "lvmthin", "images,rootdir", total=per_node * 64 + 500, thinpool="data", vgname="pve")
    builder.storage(
        "nas",
        "nfs",
        "images,iso,vztmpl,backup",
        total=guests * 16 + 10_000,
        used=900,
        shared=True,
        server="192.168.10.5",
        export="/volume1/proxmox",
        path="/mnt/pve/nas",
    )


def _add_guest(builder: Builder, vmid: int, node: str) -> None:
    chance = spread(builder.world.seed, vmid)
    role = _ROLES[vmid % len(_ROLES)]
    builder.guest(
        "lxc" if vmid % 3 == 0 else "qemu",
        vmid,
        f"{role}-{vmid}",
        node,
        cores=1 + vmid % 8,
        memory=1024 * (1 + vmid % 8),
        disk=8 + 8 * (vmid % 5),
        ip=f"10.{vmid >> 16 & 255}.{vmid >> 8 & 255}.{vmid & 255}",
        running=chance > 0.15,
        up_days=1.0 + 60.0 * chance,
        tags=_TAGS[vmid % len(_TAGS)],
    )
