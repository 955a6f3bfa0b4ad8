"""The cluster that the demo and most tests meet: a homelab of three nodes and some twenty guests."""

from __future__ import annotations

import random
import uuid

from quorate.sim.access import Pool, Token, User
from quorate.sim.building import DAY, Builder
from quorate.sim.guests import MIB, OperatingSystem, Snapshot
from quorate.sim.world import HaResource, World

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
    builder.storage(
        "nas",
        "nfs",
        "images,iso,vztmpl,backup",
        total=7400,
        used=2950,
        shared=True,
        server="192.168.10.5",
        export="/volume1/proxmox",
        path="/mnt/pve/nas",
        options="vers=4.2",
    )
    builder.storage(
        "pbs",
        "pbs",
        "backup",
        total=5500,
        used=1430,
        shared=True,
        server="192.168.10.6",
        datastore="homelab",
        username="backup@pbs",
        fingerprint=":".join(["4f"] * 32),
    )


def _add_machines(builder: Builder) -> None:
    add = builder.guest
    add(
        "qemu", 100, "router", "pve1", cores=2, memory=2048, disk=20, ip="192.168.10.1", up_days=41.1,
        tags="critical;network", startup="order=1,up=30", system=_APPLIANCE,
        net1="virtio=BC:24:11:0A:00:01,bridge=vmbr1",
        description="The way to the internet. Everything stands still without it.\n",
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
        "qemu", 104, "k3s-server", "pve2", cores=4, memory=6144, disk=60, ip="192.168.10.41", up_days=3.2,
        tags="k3s;lab", system=_UBUNTU,
    )  # fmt: skip
    add(
        "qemu", 105, "k3s-agent", "pve3", cores=4, memory=6144, disk=60, ip="192.168.10.42", up_days=3.2,
        tags="k3s;lab", system=_UBUNTU,
    )  # fmt: skip
    paused = add(
        "qemu", 106, "build-runner", "pve3", cores=4, memory=4096, disk=80, ip="192.168.10.51", up_days=1.1,
        tags="ci", system=_UBUNTU,
    )  # fmt: skip
    paused.paused = True
    add(
        "qemu", 107, "win11", "pve2", cores=4, memory=8192, disk=120, running=False, ostype="win11", onboot=0,
        bios="ovmf", machine="q35", tags="desktop", system=_WINDOWS,
    )  # fmt: skip
    add(
        "qemu", 108, "test-vm", "pve1", cores=1, memory=1024, disk=8, running=False, onboot=0, tags="lab",
        ip="192.168.10.99",
    )  # fmt: skip
    noagent = add(
        "qemu", 109, "legacy-db", "pve3", cores=2, memory=4096, disk=50, up_days=200.0, tags="legacy", protection=1,
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
        description="Files of the family. Backed up to pbs every night.\n",
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
        for day in ("2026-01-13T01:00:04Z", "2026-01-14T01:00:05Z"):
            builder.file(
                "pbs", "pve1", f"backup/{group}/{vmid}/{day}", "backup", f"pbs-{group}", megabytes * MIB,
                vmid=vmid, notes=name, verified=True,
            )  # fmt: skip
    builder.file(
        "nas", "pve1", "backup/vzdump-qemu-109-2025_12_31-02_00_01.vma.zst", "backup", "vma.zst", 21_000 * MIB,
        vmid=109, notes="legacy-db, before the move", protected=True,
    )  # fmt: skip
    builder.file("nas", "pve1", "202/vm-202-disk-0.raw", "rootdir", "raw", 500 * 1024 * MIB, vmid=202)
    builder.file("local-lvm", "pve1", "vm-9000-cloudinit", "images", "raw", 4 * MIB, vmid=9000)


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
    access.changed()


def _add_history(world: World) -> None:
    """Some tasks of the last days, among them one with warnings and one that failed."""
    now, add = world.clock.now(), world.tasks.add_finished
    for days in (2, 1):
        for node, vmid in (("pve1", "102"), ("pve2", "202"), ("pve2", "203")):
            add(node, "vzdump", vmid, "root@pam", started=now - days * DAY - 25_000, lasted=260.0)
    add("pve2", "qmstart", "104", "root@pam", started=now - 3.2 * DAY, lasted=2.0)
    add("pve3", "qmstart", "105", "root@pam", started=now - 3.2 * DAY + 9, lasted=2.0)
    add("pve1", "qmsnapshot", "102", "carol@pve", started=now - 6 * DAY, lasted=14.0)
    add("pve3", "vzstop", "206", "alice@pve!cli", started=now - 4 * DAY, lasted=1.0)
    add(
        "pve3", "qmshutdown", "109", "carol@pve", started=now - 8 * DAY, lasted=60.0,
        exitstatus="VM quit/powerdown failed - got timeout",
    )  # fmt: skip
    add("pve1", "aptupdate", "", "root@pam", started=now - 0.4 * DAY, lasted=8.0, exitstatus="WARNINGS: 1")
