"""The recorded cluster of two nodes: its initial state, and what was done between the recorded requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pve_simulator.access.directory import Token
from pve_simulator.clock import ManualClock
from pve_simulator.cluster.ha_manager import HaManager
from pve_simulator.guests.guest import GIB, MIB, Guest, Kind, OperatingSystem
from pve_simulator.nodes.disks import Disk, Disks, MountedDirectory
from pve_simulator.nodes.power_loss import cut_power, restore_power
from pve_simulator.nodes.status_daemon import StatusDaemon
from pve_simulator.routes.nodes.network import Networks
from pve_simulator.simulator import SimulatedCluster
from pve_simulator.storage.archives import Archive
from pve_simulator.storage.storages import Storage, StorageSpace, Volume
from pve_simulator.world import HaResource, Node, World
from simulator.recorded_world import interfaces

STARTED_AT = 1794974039.0
TOKEN_SECRET = "11111111-2222-4333-8444-555555555555"

_TOTAL, _USED = 270553174016, 31449878528
_LIVE_ISO = "local:iso/rig-live-1.0.iso"
_ISO_SIZE = 23875584
_BARE = OperatingSystem(agent_installed=False, obeys_shutdown=False)

_HISTORY = """
pve2 startall  OK 178|pve2 vzmigrate 210 OK 560|pve2 qmigrate 110 OK 568|pve2 vzstart 210 WARNINGS:_1 570
pve2 qmstart 110 OK 571|pve2 clusterjoin  OK 619|pve1 vzstart 210 OK 174|pve1 startall  OK 178|pve1 qmstart 110 OK 178
pve1 vzstop 210 OK 489|pve1 qmstop 110 OK 491|pve1 vzstart 210 WARNINGS:_1 555|pve1 qmstart 110 OK 566
pve1 vzmigrate 210 OK 582|pve1 vzcreate 210 WARNINGS:_1 585|pve1 qmigrate 110 OK 587|pve1 qmcreate 110 OK 588
pve1 clustercreate rigcluster OK 625|pve1 stopall  OK 1369|pve1 vzshutdown 200 OK 1375|pve1 qmshutdown 100 OK 1378
pve1 qmstart 100 OK 1423|pve1 qmstart 100 start_failed:_QEMU_exited_with_code_1 1505|pve1 vzstart 200 OK 1507
pve1 qmtemplate 900 OK 1509|pve1 qmcreate 900 OK 1510|pve1 qmcreate 100 OK 1511|pve1 vzcreate 200 OK 1512
pve1 startall  OK 1871
"""
"""The tasks before the first request: node, type, target, outcome (_ for a blank) and how many seconds before."""


def two_nodes_cluster(clock: ManualClock) -> SimulatedCluster:
    cluster = SimulatedCluster(clock=clock, auth_delay=0.0, build=_build, endpoints=2)
    del cluster.world.access.users["root@pam"].tokens["simulator"]
    return cluster


def _build(world: World) -> None:
    world.name = "rigcluster"
    now = world.clock.now()
    for number, name in enumerate(("pve1", "pve2"), 1):
        node = Node(name, number, f"10.99.0.1{number}", now - 3785)
        node.has_skopeo = False
        node.cpus, node.memory, node.swap = 2, 25276518400, 0
        node.disk, node.disk_used = _TOTAL, _USED
        world.nodes[name] = node
    for name, kind, content, shared in (
        ("local", "dir", "vztmpl,backup,rootdir,import,images,snippets,iso", False),
        ("shared", "dir", "iso,snippets,vztmpl,backup,rootdir,images", True),
        ("snap", "btrfs", "images,rootdir", False),
        ("dir2", "dir", "images,backup,vztmpl,rootdir,iso", False),
    ):
        path = "/var/lib/vz" if name == "local" else f"/mnt/{name}"
        storage = Storage(name, kind, tuple(content.split(",")), shared, config={"path": path})
        storage.spaces = {place: StorageSpace(_TOTAL, _USED) for place in ([""] if shared else world.nodes)}
        world.storages[name] = storage
    for name in world.nodes:
        world.storages["local"].add(name, Volume(_LIVE_ISO, "iso", "iso", _ISO_SIZE, _ISO_SIZE, 1794971289))
        world.part(Disks).of(name).disks.clear()
        world.part(Networks).of(name)._active = interfaces()
    add_guest(world, 100, "qemu", "debvm", "local", memory=256)
    add_guest(world, 110, "qemu", "mig", "shared", running=True)
    add_guest(world, 200, "lxc", "ct200", "snap", memory=256)
    add_guest(world, 210, "lxc", "mig-ct", "shared", memory=128, running=True)
    add_guest(world, 900, "qemu", "tmpl900", "local", memory=256, template=True)
    for entry in _HISTORY.replace("\n", "|").strip("|").split("|"):
        place, kind, target, outcome, ago = entry.split(" ")
        world.tasks.add_finished(
            place, kind, target, _user(kind), started=now - int(ago), lasted=1, exitstatus=outcome.replace("_", " ")
        )
    world.access.users["root@pam"].tokens["rig"] = Token(TOKEN_SECRET, privsep=False)
    world.access.invalidate_cache()


def _user(kind: str) -> str:
    return "root@pam" if kind in ("startall", "stopall", "clusterjoin", "clustercreate") else "root@pam!rig"


def add_guest(
    world: World,
    vmid: int,
    kind: Kind,
    name: str,
    storage: str,
    *,
    node: str = "pve1",
    memory: int = 64,
    running: bool = False,
    template: bool = False,
    **options: Any,
) -> Guest:
    """A guest with one disk of a GiB, or with what `options` say if the storage is empty."""
    config: dict[str, Any] = {"name": name, "memory": str(memory), "kvm": 0, "scsihw": "virtio-scsi-pci", "onboot": 1}
    if kind == "lxc":
        config = {"hostname": name, "memory": memory, "swap": 0, "ostype": "debian", "arch": "amd64", "onboot": 1}
    if storage:
        place = world.storages[storage]
        form = "raw" if kind == "lxc" else "qcow2"
        volid = place.disk_name(vmid, 0, kind, base=template, fmt=form)
        content = "rootdir" if kind == "lxc" else "images"
        place.add(node, Volume(volid, content, form, GIB, 100 * MIB, int(world.clock.now()) - 600, vmid=vmid))
        config["rootfs" if kind == "lxc" else "scsi0"] = f"{volid},size=1G"
    if template:
        config["template"] = 1
    guest = Guest(vmid, kind, node, config | options, system=_BARE)
    world.guests[vmid] = guest
    if running:
        guest.start_running(world.clock.now() - 170, world.nodes[node].next_pid())
    return guest


Scene = Callable[[World], None]


def _to(vmid: int, node: str, *, running: bool | None = None, lock: str = "") -> Scene:
    """The guest on this node; its local disks go with it."""

    def scene(world: World) -> None:
        guest = world.guests[vmid]
        if guest.node != node:
            for storage in world.storages.values():
                for volume in [
                    each for each in storage.volumes(guest.node) if each.vmid == vmid and not storage.shared
                ]:
                    storage.remove(guest.node, volume.volid)
                    storage.add(node, volume)
            guest.node = node
        if running is not None and running != guest.running:
            guest.start_running(world.clock.now(), 4711) if running else guest.stop_running()
        guest.config.pop("lock", None)
        guest.config |= {"lock": lock} if lock else {}
        guest.touch()

    return scene


def _new(vmid: int, kind: Kind, name: str, storage: str, **options: Any) -> Scene:
    def scene(world: World) -> None:
        if vmid not in world.guests:
            add_guest(world, vmid, kind, name, storage, **options)

    return scene


def _gone(vmid: int) -> Scene:
    def scene(world: World) -> None:
        for storage in world.storages.values():
            for node in list(world.nodes):
                for volume in [each for each in storage.volumes(node) if each.vmid == vmid]:
                    storage.remove(node, volume.volid)
        world.guests.pop(vmid, None)

    return scene


def _managed(*sids: str) -> Scene:
    """Exactly these guests under HA."""

    def scene(world: World) -> None:
        for sid in [known for known in world.ha if known not in sids]:
            del world.ha[sid]
        for sid in sids:
            world.ha.setdefault(sid, HaResource(sid))

    return scene


def _report(world: World) -> None:
    world.part(StatusDaemon).report()


def _die(world: World) -> None:
    cut_power(world, world.nodes["pve2"])


def _return(world: World) -> None:
    restore_power(world, world.nodes["pve2"])


def _backup_on_shared(world: World) -> None:
    name = "shared:backup/vzdump-qemu-110-2026_11_18-03_59_11.vma.zst"
    now = int(world.clock.now())
    volume = Volume(name, "backup", "vma.zst", MIB, MIB, now, vmid=110)
    volume.archive = Archive("qemu", 110, dict(world.guests[110].config))
    world.storages["shared"].add("pve1", volume)


def _restored(world: World) -> None:
    world.tasks.add_finished("pve2", "vzrestore", "141", "root@pam!rig", started=world.clock.now(), lasted=1)


def _small_disk(world: World) -> None:
    disk = Disk("/dev/ram0", _SMALL, "ram", "", "ssd")
    world.part(Disks).of("pve1").directories["/mnt/q2small"] = MountedDirectory("/mnt/q2small", disk, "ext4")


def _small_storage(world: World) -> None:
    world.storages["q2small"].spaces["pve1"] = StorageSpace(_SMALL, 4096)


def _rule(name: str, **options: Any) -> Scene:
    """This is the only rule."""

    def scene(world: World) -> None:
        sections = world.part(HaManager).rules.rules.sections
        sections.clear()
        sections[name] = options

    return scene


def _no_rules(world: World) -> None:
    world.part(HaManager).rules.rules.sections.clear()


def _disk_on_dir2(world: World) -> None:
    volume = Volume("dir2:120/vm-120-disk-0.qcow2", "images", "qcow2", GIB, MIB, int(world.clock.now()), vmid=120)
    world.storages["dir2"].add("pve1", volume)
    world.guests[120].config["scsi0"] = f"{volume.volid},size=1G"


_SMALL = 41943040
_MADE = {
    "boot": "order=scsi0",
    "meta": "creation-qemu=10.0.13,ctime=1794973452",
    "smbios1": "uuid=07bb818d-ca7b-4867-99d0-466484122837",
    "vmgenid": "97837aae-35c8-46c1-a6a0-327faeb4e620",
}
_ISO = {"ide2": f"{_LIVE_ISO},media=cdrom,size={_ISO_SIZE // 1024}K"}


def _ha_is_idle(world: World) -> None:
    world.part(HaManager).active = True  # it has had resources before


SCENES: dict[int, tuple[Scene, ...]] = {
    0: (_ha_is_idle,),
    34: (_to(110, "pve2"),),
    35: (_to(110, "pve1", lock="backup"),),
    37: (_to(110, "pve1"), _to(210, "pve1", lock="backup")),
    38: (
        _to(210, "pve1"),
        _new(120, "qemu", "loc", "local", running=True),
        _new(121, "qemu", "iso", "", running=True, **_ISO),
        _new(122, "qemu", "cdp", "shared", ide2="cdrom,media=cdrom"),
        _new(123, "qemu", "off", "local"),
    ),
    45: (_to(121, "pve1", running=False),),
    57: (_to(100, "pve2"), _to(200, "pve2")),
    59: (_new(131, "qemu", "cl2", "shared", node="pve2", **_MADE),),
    62: (_gone(131),),
    63: (_backup_on_shared,),
    64: (_restored,),
    65: (_managed("vm:110"),),
    67: (_managed("vm:110", "ct:210", "ct:200"), _to(200, "pve1", running=True)),
    69: (_to(110, "pve2"),),
    70: (_to(110, "pve1"),),
    73: (_managed("vm:110"),),
    85: (
        _managed("vm:110", "ct:210", "ct:200"),
        _rule("apart", type="resource-affinity", resources="ct:210,vm:110", affinity="negative"),
    ),
    87: (_rule("pin", type="node-affinity", resources="ct:200", nodes="pve1", strict=1),),
    90: (_no_rules, _to(110, "pve2")),
    91: (_to(110, "pve2"), _managed("vm:110", "ct:210")),
    94: (_to(120, "pve1"), _disk_on_dir2, _to(210, "pve2")),
    104: (_small_disk,),
    105: (_small_storage, _new(212, "lxc", "evct212", "shared", running=True, memory=128),),
    115: (
        _to(900, "pve2"), _to(100, "pve2"), _to(200, "pve2"), _to(210, "pve2"), _managed("vm:110", "ct:210"),
        _new(211, "lxc", "evct211", "shared", node="pve2", running=True, memory=128), _to(212, "pve2", running=True),
        _new(124, "qemu", "ev124", "shared", running=True), _to(110, "pve1", running=True),
        _new(125, "qemu", "ev125", "shared", node="pve2", running=True, onboot=0), _gone(123), _to(120, "pve1"),
        _report,
    ),
    116: (_die,),
    216: (_no_rules, _to(110, "pve2"), _managed("vm:110", "ct:210")),
    117: (_to(124, "pve1", lock="migrate"),),
    148: (_return,),
}  # fmt: skip
"""By number of the recording: what happened just before it."""
