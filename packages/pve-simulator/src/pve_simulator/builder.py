"""Building worlds: nodes, storages, and guests with disks and addresses, reproducible from a seed."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterable

from pve_simulator.guests.guest import GIB, Address, Guest, Kind, OperatingSystem, Value
from pve_simulator.storage.storages import Storage, StorageSpace, Volume
from pve_simulator.world import Node, World

DAY = 86400.0


class Builder:
    """Adds things to a world that is not running yet; the same seed gives the same world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._now = world.clock.now()

    def node(self, name: str, *, memory: int = 64, cpus: int = 16, up_days: float = 21.0) -> Node:
        """Add a node; memory in GiB."""
        number = len(self.world.nodes) + 1
        node = Node(name, number, f"192.168.10.{10 + number % 240}", self._now - up_days * DAY)
        node.memory, node.cpus = memory * GIB, cpus
        self.world.nodes[name] = node
        return node

    def storage(
        self,
        name: str,
        kind: str,
        content: str,
        *,
        total: int,
        used: int = 0,
        shared: bool = False,
        nodes: Iterable[str] | None = None,
        **config: str | int,
    ) -> Storage:
        """Add a storage with its space in GiB, on every node or on the given ones."""
        only = None if nodes is None else frozenset(nodes)
        storage = Storage(name, kind, tuple(content.split(",")), shared, only, config=config)
        where = [""] if shared else list(self.world.nodes)
        storage.spaces = {node: StorageSpace(total * GIB, used * GIB) for node in where}
        self.world.storages[name] = storage
        return storage

    def guest(
        self,
        kind: Kind,
        vmid: int,
        name: str,
        node: str,
        *,
        cores: int = 2,
        memory: int = 2048,
        disk: int = 16,
        storage: str = "local-lvm",
        ip: str | None = None,
        running: bool = True,
        up_days: float = 9.0,
        template: bool = False,
        system: OperatingSystem | None = None,
        **options: Value,
    ) -> Guest:
        """Add a guest with one disk (GiB), one network device and, if given, an address."""
        mac = self._mac(vmid)
        drive = self._disk(kind, vmid, node, storage, disk, base=template)
        base = _vm_config if kind == "qemu" else _container_config
        config = base(self._identity(vmid), name, mac, drive, cores, memory, ip)
        config |= options
        if template:
            config["template"] = 1
        guest = Guest(vmid, kind, node, config, running=running and not template)
        guest.system = system or OperatingSystem()
        if guest.running:
            guest.started_at = self._now - up_days * DAY
            guest.pid = self.world.nodes[node].next_pid()
        if ip is not None:
            guest.addresses = [Address("eth0" if kind == "lxc" else "ens18", mac, ip)]
        self.world.guests[vmid] = guest
        return guest

    def file(self, storage: str, node: str, name: str, content: str, fmt: str, size: int, **more: object) -> None:
        """Add an ISO, a container template or a backup; size in bytes."""
        volume = Volume(f"{storage}:{name}", content, fmt, size, size, int(self._now - 30 * DAY))
        for field, value in more.items():
            setattr(volume, field, value)
        self.world.storages[storage].add(node, volume)

    def _disk(self, kind: Kind, vmid: int, node: str, storage_name: str, size: int, *, base: bool) -> str:
        storage = self.world.storages[storage_name]
        fmt = "qcow2" if kind == "qemu" and storage.type in ("dir", "nfs") else "raw"
        volid = storage.disk_name(vmid, 0, kind, base=base, fmt=fmt)
        content = "images" if kind == "qemu" else "rootdir"
        shown = "subvol" if "subvol" in volid else fmt
        used = size * GIB * (30 + vmid % 50) // 100
        created = int(self._now - 120 * DAY)
        storage.add(node, Volume(volid, content, shown, size * GIB, used, created, vmid=vmid))
        return f"{volid},size={size}G"

    def _mac(self, vmid: int) -> str:
        digest = hashlib.sha256(f"{self.world.seed}:{vmid}".encode()).hexdigest().upper()
        return f"BC:24:11:{digest[0:2]}:{digest[2:4]}:{digest[4:6]}"

    def _identity(self, vmid: int) -> str:
        digest = hashlib.sha256(f"{self.world.seed}/{vmid}".encode()).digest()
        return str(uuid.UUID(bytes=digest[:16], version=4))


def _vm_config(
    identity: str, name: str, mac: str, drive: str, cores: int, memory: int, _ip: str | None
) -> dict[str, Value]:
    return {
        "name": name, "ostype": "l26", "sockets": 1, "cores": cores, "cpu": "x86-64-v2-AES", "memory": str(memory),
        "scsihw": "virtio-scsi-single", "scsi0": drive, "net0": f"virtio={mac},bridge=vmbr0,firewall=1",
        "boot": "order=scsi0;net0", "agent": "1", "onboot": 1, "smbios1": f"uuid={identity}",
        "vmgenid": identity[::-1].replace("-", "")[:8] + identity[8:],
        "meta": "creation-qemu=10.1.2,ctime=1736500000",
    }  # fmt: skip


def _container_config(
    _identity: str, name: str, mac: str, drive: str, cores: int, memory: int, ip: str | None
) -> dict[str, Value]:
    address = f"{ip}/24,gw=192.168.10.1" if ip else "dhcp"
    return {
        "hostname": name, "arch": "amd64", "ostype": "debian", "cores": cores, "memory": memory, "swap": 512,
        "rootfs": drive, "net0": f"name=eth0,bridge=vmbr0,firewall=1,hwaddr={mac},ip={address},type=veth",
        "onboot": 1, "unprivileged": 1, "features": "nesting=1",
    }  # fmt: skip
