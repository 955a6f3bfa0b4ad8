"""A world that nothing is wrong with, and time that jumps."""

from __future__ import annotations

import datetime
from dataclasses import replace

from pve_simulator.cluster.firewall import Firewalls
from pve_simulator.routes.cluster.ceph import Ceph
from pve_simulator.routes.nodes.apt import Packages
from pve_simulator.routes.nodes.settings import Settings
from pve_simulator.routes.replication import Replication, ReplicationJob
from pve_simulator.storage.backup_jobs import BackupJobs
from pve_simulator.storage.storages import Storage, StorageSpace, Volume
from pve_simulator.world import World

DAY = 86400.0
GIB = 1024**3


def make_healthy(world: World) -> None:
    """Take away everything that the watch would find."""
    world.part(BackupJobs).add("nightly", {"all": 1, "schedule": "01:00", "storage": "pbs"})
    for guest in world.guests.values():
        guest.snapshots.clear()
        guest.config |= {key: f"{value},backup=1" for key, value in guest.config.items() if key.startswith("mp")}
        guest.config.pop("parent", None)
        guest.system, guest.paused = replace(guest.system, agent_installed=True), False
    pbs, nas = world.storages["pbs"], world.storages["nas"]
    for storage in (pbs, nas):
        for volid in [volume.volid for volume in storage.volumes("pve1") if volume.content == "backup"]:
            storage.remove("pve1", volid)
    for days in range(7):
        back_up(world, world.clock.now() - days * DAY)
    world.part(Packages).updates = lambda node: []  # type: ignore[method-assign]
    for node in world.nodes:
        settings = world.part(Settings).of(node)
        settings.subscription_key, settings.subscription_due = "pve2c-1234567890", "2030-01-01"
    world.storages["rbd"] = Storage("rbd", "rbd", ("images",), shared=True, config={"pool": "rbd"})
    world.storages["rbd"].spaces = {"": StorageSpace(900 * GIB, 100 * GIB)}
    world.part(Ceph).health = "HEALTH_OK"
    firewalls = world.part(Firewalls)
    firewalls.cluster.options["enable"] = 1
    for vmid, guest in world.guests.items():
        if "critical" in str(guest.config.get("tags", "")):
            firewalls.guest(vmid).options["enable"] = 1
            cards = {name: str(value) for name, value in guest.config.items() if name.startswith("net")}
            guest.config |= {name: card for name, card in cards.items() if "firewall=1" in card}
            guest.config |= {name: f"{card},firewall=1" for name, card in cards.items() if "firewall=1" not in card}
    world.part(Replication).add(ReplicationJob("102-0", 102, "pve2", {"schedule": "*/15"}))


def back_up(world: World, when: float, grow: float = 1.0) -> None:
    """A verified backup of every guest at that time; the oldest beyond seven go."""
    pbs = world.storages["pbs"]
    stamp = _stamp(when)
    for vmid, guest in world.guests.items():
        if guest.template:
            continue
        kind = "vm" if guest.kind == "qemu" else "ct"
        size = int((4 + vmid % 7) * GIB * grow * (1 + (int(when) // 3600 % 10) / 100))
        name = f"pbs:backup/{kind}/{vmid}/{stamp}"
        if pbs.volume("pve1", name) is None:
            pbs.add(
                "pve1", Volume(name, "backup", f"pbs-{kind}", size, size // 50, int(when), vmid=vmid, verified=True)
            )
    by_guest: dict[int, list[Volume]] = {}
    for volume in pbs.volumes("pve1"):
        by_guest.setdefault(volume.vmid or 0, []).append(volume)
    for volumes in by_guest.values():
        for volume in sorted(volumes, key=lambda volume: volume.name)[:-7]:
            pbs.remove("pve1", volume.volid)


def _stamp(when: float) -> str:
    return datetime.datetime.fromtimestamp(when, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
