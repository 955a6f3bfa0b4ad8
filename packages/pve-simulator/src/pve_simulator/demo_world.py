"""The worlds of the simulator: a homelab of three nodes, or a cluster of any size."""

from __future__ import annotations

import random
import uuid
from datetime import UTC, datetime
from typing import Any

from pve_simulator.access.directory import Pool, Token, User
from pve_simulator.builder import DAY, Builder
from pve_simulator.guests.guest import MIB, OperatingSystem, Snapshot
from pve_simulator.nodes.status_daemon import spread
from pve_simulator.world import HaResource, World

_BACKUPS_MADE = ((2, 3604), (1, 3605))
"""Days ago and seconds after midnight (UTC). Carol makes these backups manually; her tasks are in the history."""
_MOVED = (15, 7201)
_NAS_CONTENT = "images,iso,vztmpl,backup"
_NAS: dict[str, Any] = {"server": "192.168.10.5", "export": "/volume1/proxmox", "path": "/mnt/pve/nas"}
_UBUNTU = OperatingSystem("ubuntu", "Ubuntu", "24.04.3 LTS (Noble Numbat)", "24.04", "6.8.0-87-generic")
_WINDOWS = OperatingSystem("mswindows", "Microsoft Windows", "11 Pro", "11", "26100", agent_installed=False)
_APPLIANCE = OperatingSystem(
    "opnsense", "OPNsense", "25.7", "25.7", "14.3-RELEASE", agent_installed=False, obeys_shutdown=False
)


def build_demo_world(world: World) -> None:
    """Fill an empty world."""
    builder = Builder(world)
    builder.node("pve1", memory=64, cpus=16, up_days=41.3).bridges = ("vmbr0", "vmbr1")
    builder.node("pve2", memory=64, cpus=16, up_days=41.2)
    builder.node("pve3", memory=32, cpus=8, up_days=12.6)
    _add_storages(builder)
    _add_machines(builder)
    _add_containers(builder)
    _add_templates(builder)
    _add_files(builder)
    _add_snapshots(world)
    _add_access(world)
    _add_history(world)
    world.ha["vm:101"] = HaResource("vm:101", comment="the house notices when this is gone")


def _add_storages(builder: Builder) -> None:
    builder.storage("local", "dir", "iso,vztmpl,backup,snippets,import", total=94, used=14, path="/var/lib/vz")
    builder.storage("local-lvm", "lvmthin", "images,rootdir", total=794, used=3, thinpool="data", vgname="pve")
    builder.storage(
        "tank", "zfspool", "images,rootdir", total=3600, used=210, nodes=["pve1", "pve2"], pool="tank/vm", sparse=1
    )
    builder.storage("nas", "nfs", _NAS_CONTENT, total=7400, used=2950, shared=True, **_NAS, options="vers=4.2")
    builder.storage(
        "pbs", "pbs", "backup", total=5500, used=1430, shared=True, server="192.168.10.6", datastore="homelab",
        username="backup@pbs", fingerprint=":".join(["4f"] * 32),
    )  # fmt: skip


def _add_machines(builder: Builder) -> None:
    add = builder.guest
    add(
        "qemu", 100, "router", "pve1", cores=2, memory=2048, disk=20, ip="192.168.10.1", up_days=41.1,
        tags="critical;network", startup="order=1,up=30", system=_APPLIANCE,
        net1="virtio=BC:24:11:0A:00:01,bridge=vmbr1",
        description="The way to the internet. Nothing works without it.\n",
    )  # fmt: skip
    add(
        "qemu", 101, "homeassistant", "pve1", cores=2, memory=4096, disk=32, storage="nas", ip="192.168.10.21",
        up_days=12.4, tags="critical;home", bios="ovmf", machine="q35", startup="order=2",
    )  # fmt: skip
    add(
        "qemu", 102, "docker01", "pve1", cores=4, memory=8192, disk=100, storage="tank", ip="192.168.10.31",
        up_days=9.7, tags="docker;prod", system=_UBUNTU,
        description="Compose stacks live in /srv. Ask before you reboot.\n",
    )  # fmt: skip
    add(
        "qemu", 103, "docker02", "pve2", cores=4, memory=8192, disk=100, storage="tank", ip="192.168.10.32",
        up_days=9.6, tags="docker;prod", system=_UBUNTU,
    )  # fmt: skip
    add(
        "qemu", 104, "k3s-server", "pve2", cores=4, memory=6144, disk=60, ip="192.168.20.41", up_days=3.2,
        tags="k3s;lab", system=_UBUNTU,
    )  # fmt: skip
    add(
        "qemu", 105, "k3s-agent", "pve3", cores=4, memory=6144, disk=60, ip="192.168.20.42", up_days=3.2,
        tags="k3s;lab", system=_UBUNTU,
    )  # fmt: skip
    paused = add(
        "qemu", 106, "build-runner", "pve3", cores=4, memory=4096, disk=80, ip="192.168.20.51", up_days=1.1,
        tags="ci", system=_UBUNTU,
    )  # fmt: skip
    paused.paused = True
    add(
        "qemu", 107, "win11", "pve2", cores=4, memory=8192, disk=120, running=False, ostype="win11", onboot=0,
        bios="ovmf", machine="q35", tags="desktop", system=_WINDOWS,
    )  # fmt: skip
    add(
        "qemu", 108, "test-vm", "pve1", cores=1, memory=1024, disk=8, running=False, onboot=0, tags="lab",
        ip="192.168.20.99",
    )  # fmt: skip
    noagent = add(
        "qemu", 109, "legacy-db", "pve3", cores=2, memory=4096, disk=50, up_days=12.5, tags="legacy", protection=1,
        system=OperatingSystem(agent_installed=False),
    )  # fmt: skip
    del noagent.config["agent"]
    waiting = builder.world.guests[104]
    waiting.pending = {"memory": "8192"}


def _add_containers(builder: Builder) -> None:
    add = builder.guest
    add("lxc", 200, "pihole", "pve1", cores=1, memory=512, disk=8, ip="192.168.10.2", tags="critical;dns")
    add("lxc", 201, "nginx-proxy", "pve1", cores=2, memory=1024, disk=8, ip="192.168.10.3", tags="prod;web")
    add(
        "lxc", 202, "nextcloud", "pve2", cores=4, memory=4096, disk=40, storage="tank", ip="192.168.10.61",
        tags="prod;web", mp0="nas:202/vm-202-disk-0.raw,mp=/data,size=500G",
        description="Files of the family. Carol backs it up to pbs by hand, now and then.\n",
    )  # fmt: skip
    add("lxc", 203, "postgres", "pve2", cores=2, memory=2048, disk=32, ip="192.168.10.62", tags="db;prod")
    add("lxc", 204, "grafana", "pve3", cores=2, memory=1024, disk=16, ip="192.168.10.63", tags="monitoring")
    add("lxc", 205, "jellyfin", "pve3", cores=4, memory=4096, disk=24, ip="192.168.10.64", tags="media")
    add("lxc", 206, "dev-sandbox", "pve3", cores=2, memory=1024, disk=8, running=False, onboot=0, tags="lab")
    add("lxc", 207, "old-wiki", "pve2", cores=1, memory=512, disk=8, running=False, onboot=0, protection=1)


def _add_templates(builder: Builder) -> None:
    add = builder.guest
    add(
        "qemu", 9000, "debian-13-cloud", "pve1", cores=2, memory=2048, disk=3, template=True, onboot=0, tags="template",
        ide2="local-lvm:vm-9000-cloudinit,media=cdrom", ciuser="debian", ipconfig0="ip=dhcp", serial0="socket",
    )  # fmt: skip
    add("lxc", 9001, "debian-13-base", "pve1", cores=1, memory=512, disk=4, template=True, onboot=0, tags="template")


def _add_files(builder: Builder) -> None:
    for node in builder.world.nodes:
        builder.file("local", node, "vztmpl/debian-13-standard_13.1-2_amd64.tar.zst", "vztmpl", "tzst", 124 * MIB)
    builder.file("local", "pve1", "iso/debian-13.1.0-amd64-netinst.iso", "iso", "iso", 783 * MIB)
    builder.file("nas", "pve1", "iso/ubuntu-24.04.3-live-server-amd64.iso", "iso", "iso", 3150 * MIB)
    builder.file("nas", "pve1", "iso/virtio-win-0.1.271.iso", "iso", "iso", 709 * MIB)
    backups = ((102, "vm", "qemu", 31_000), (202, "ct", "lxc", 18_000), (203, "ct", "lxc", 6_200))
    for vmid, group, _, megabytes in backups:
        name = str(builder.world.guests[vmid].name)
        for backup_time in _BACKUPS_MADE:
            when = datetime.fromtimestamp(_past(builder.world, *backup_time), UTC)
            builder.file(
                "pbs", "pve1", f"backup/{group}/{vmid}/{when:%Y-%m-%dT%H:%M:%SZ}", "backup", f"pbs-{group}",
                megabytes * MIB, vmid=vmid, notes=name, verified=True,
            )  # fmt: skip
    moved = datetime.fromtimestamp(_past(builder.world, *_MOVED), UTC)
    builder.file(
        "nas", "pve1", f"backup/vzdump-qemu-109-{moved:%Y_%m_%d-%H_%M_%S}.vma.zst", "backup", "vma.zst", 21_000 * MIB,
        vmid=109, notes="legacy-db, before the move", protected=True,
    )  # fmt: skip
    builder.file("nas", "pve1", "202/vm-202-disk-0.raw", "rootdir", "raw", 500 * 1024 * MIB, vmid=202)
    builder.file("local-lvm", "pve1", "vm-9000-cloudinit", "images", "raw", 4 * MIB, vmid=9000)


def _past(world: World, days: int, seconds: int) -> float:
    """A time of day (UTC, seconds after midnight) some days ago."""
    return world.clock.now() // DAY * DAY - days * DAY + seconds


def _add_snapshots(world: World) -> None:
    now = int(world.clock.now())
    _snapshot(world, 102, "before-upgrade", now - int(6 * DAY), "before docker 29", vmstate=True)
    _snapshot(world, 108, "clean", now - int(30 * DAY), "fresh installation")
    _snapshot(world, 108, "configured", now - int(29 * DAY), "with my keys")
    _snapshot(world, 203, "pre-migration", now - int(2 * DAY), "before pg17")


def _snapshot(world: World, vmid: int, name: str, when: int, description: str, *, vmstate: bool = False) -> None:
    guest = world.guests[vmid]
    parent = guest.config.get("parent")
    config = {key: value for key, value in guest.config.items() if key not in ("parent", "description")}
    guest.snapshots[name] = Snapshot(name, when, config, description, None if parent is None else str(parent), vmstate)
    guest.config["parent"] = name


def _add_access(world: World) -> None:
    access = world.access
    chance = random.Random(world.seed)  # noqa: S311 (repeatable on purpose)

    def secret() -> str:
        return str(uuid.UUID(int=chance.getrandbits(128), version=4))

    access.pools = {
        "production": Pool("production", "what the household relies on", {101, 102, 103, 201, 202, 203}),
        "lab": Pool("lab", "play here", {104, 105, 106, 108, 206}, {"local-lvm"}),
    }
    access.groups = {"admins": "may do everything", "family": None}
    access.users["root@pam"].password = "simulated-root"  # noqa: S105
    access.users["root@pam"].email = "root@home.lan"
    access.users |= {
        "alice@pve": User(
            "alice@pve", password="alice-in-the-lab", email="alice@home.lan", comment="plays in the lab",  # noqa: S106
            tokens={"ci": Token(secret(), privsep=True, comment="pipeline"), "cli": Token(secret(), privsep=False)},
        ),
        "bob@pve": User(
            "bob@pve", password="bob-looks-around", email="", comment="looks, never touches",  # noqa: S106
            tokens={"monitor": Token(secret(), privsep=True)},
        ),
        "carol@pve": User("carol@pve", password="carol-runs-it", groups={"admins"}),  # noqa: S106
        "dave@pve": User("dave@pve", password="dave-is-away", enable=False, groups={"family"}),  # noqa: S106
    }  # fmt: skip
    access.grant("/", "Administrator", "@admins")
    access.grant("/", "PVEAuditor", "bob@pve")
    access.grant("/", "PVEAuditor", "bob@pve!monitor")
    access.grant("/pool/lab", "PVEVMAdmin", "alice@pve")
    access.grant("/pool/lab", "PVEVMUser", "alice@pve!ci")
    access.grant("/pool/production", "PVEVMUser", "@family")
    access.grant("/vms/109", "NoAccess", "bob@pve")
    access.grant("/storage/local-lvm", "PVEDatastoreUser", "alice@pve")
    access.invalidate_cache()


def _add_history(world: World) -> None:
    """Tasks of the last days, including one with warnings and one that failed."""
    now, add = world.clock.now(), world.tasks.add_finished
    add("pve3", "vzdump", "109", "carol@pve", started=_past(world, *_MOVED), lasted=540.0)
    for backup_time in _BACKUPS_MADE:
        for node, vmid in (("pve1", "102"), ("pve2", "202"), ("pve2", "203")):
            add(node, "vzdump", vmid, "carol@pve", started=_past(world, *backup_time), lasted=260.0)
    add("pve2", "qmstart", "104", "root@pam", started=now - 3.2 * DAY, lasted=2.0)
    add("pve3", "qmstart", "105", "root@pam", started=now - 3.2 * DAY + 9, lasted=2.0)
    add("pve1", "qmsnapshot", "102", "carol@pve", started=now - 6 * DAY, lasted=14.0)
    add("pve3", "vzstop", "206", "alice@pve!cli", started=now - 4 * DAY, lasted=1.0)
    add(
        "pve3", "qmshutdown", "109", "carol@pve", started=now - 8 * DAY, lasted=60.0,
        exitstatus="VM quit/powerdown failed - got timeout",
    )  # fmt: skip
    add("pve1", "aptupdate", "", "root@pam", started=now - 0.4 * DAY, lasted=8.0, exitstatus="WARNINGS: 1")
    add("pve2", "vzsnapshot", "203", "carol@pve", started=now - 2 * DAY, lasted=3.0)


_ROLES = ("web", "db", "cache", "worker", "build", "mail", "proxy", "test")
_TAGS = ("prod", "staging", "lab", "prod;web", "db;prod")


def build_scaled_world(world: World, nodes: int, guests: int) -> None:
    """Fill an empty world with the given number of nodes and guests, spread evenly."""
    if nodes < 1 or guests < 0:
        raise ValueError("a cluster needs at least one node, and no fewer than zero guests")
    builder = Builder(world)
    names = [f"pve{number}" for number in range(1, nodes + 1)]
    for name in names:
        builder.node(name, memory=768, cpus=96, up_days=90.0)
    per_node = guests // nodes + 1
    _add_plain_storages(builder, per_node, guests)
    for index in range(guests):
        _add_guest(builder, 100 + index, names[index % nodes])
    world.access.users["root@pam"].password = "simulated-root"  # noqa: S105
    production = range(100, 100 + guests // 2)
    world.access.pools = {
        "production": Pool("production", "one half", set(production)),
        "lab": Pool("lab", "the other", set(range(100 + guests // 2, 100 + guests))),
    }
    world.access.invalidate_cache()


def _add_plain_storages(builder: Builder, per_node: int, guests: int) -> None:
    builder.storage("local", "dir", "iso,vztmpl,backup,snippets", total=200, used=30, path="/var/lib/vz")
    builder.storage("local-lvm", "lvmthin", "images,rootdir", total=per_node * 64 + 500, thinpool="data", vgname="pve")
    builder.storage("nas", "nfs", _NAS_CONTENT, total=guests * 16 + 10_000, used=900, shared=True, **_NAS)


def _add_guest(builder: Builder, vmid: int, node: str) -> None:
    chance = spread(builder.world.seed, vmid)
    role = _ROLES[vmid % len(_ROLES)]
    builder.guest(
        "lxc" if vmid % 3 == 0 else "qemu", vmid, f"{role}-{vmid}", node, cores=1 + vmid % 8,
        memory=1024 * (1 + vmid % 8), disk=8 + 8 * (vmid % 5), running=chance > 0.15, up_days=1.0 + 60.0 * chance,
        ip=f"10.{vmid >> 16 & 255}.{vmid >> 8 & 255}.{vmid & 255}", tags=_TAGS[vmid % len(_TAGS)],
    )  # fmt: skip
