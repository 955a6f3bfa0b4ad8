"""The PVE of the scenarios: its initial state, and unrecorded events of each scenario."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pve_simulator.access.directory import Token
from pve_simulator.clock import ManualClock
from pve_simulator.guests.guest import GIB, Guest, OperatingSystem
from pve_simulator.nodes.disks import Disks
from pve_simulator.routes.nodes.network import Networks
from pve_simulator.routes.nodes.settings import Settings
from pve_simulator.simulator import SimulatedCluster
from pve_simulator.storage.storages import Storage, StorageSpace, Volume
from pve_simulator.world import Node, World
from simulator.recorded_world import interfaces

NODE = "pve1"
TOKEN_NAME = "rig"
TOKEN_SECRET = "11111111-2222-4333-8444-555555555555"
BASE_ID = 72300
TEMPLATE = "local:vztmpl/alpine-3.22-default_20250617_amd64.tar.xz"
ISO = "local:iso/tiny.iso"
STORAGES = {"<st>": "difa", "<st2>": "difb", "<btrfs>": "difbt"}
NAMES = STORAGES | {"<bridge>": "vmbr0", "<template>": TEMPLATE, "<iso>": ISO, "<token>": TOKEN_NAME, "<node>": NODE}

_EVERYTHING = ("backup", "images", "import", "iso", "rootdir", "snippets", "vztmpl")
_TOTAL, _USED = 250 * GIB, 36 * GIB
_STARTED_AT = 1794773880.0

Step = tuple[str, str, Mapping[str, Any]]
Key = tuple[str, str]


def scenario_cluster(clock: ManualClock) -> SimulatedCluster:
    """One node with two directory storages and a btrfs one, the start of every scenario."""
    cluster = SimulatedCluster(clock=clock, auth_delay=0.0, build=_build)
    del cluster.world.access.users["root@pam"].tokens["simulator"]
    return cluster


def scenario_clock() -> ManualClock:
    return ManualClock(_STARTED_AT)


def _build(world: World) -> None:
    node = Node(NODE, 1, "192.168.77.1", world.clock.now() - 3500)
    node.has_skopeo = False
    node.cpus, node.memory, node.swap, node.disk, node.disk_used = 2, 25274793984, 0, _TOTAL, _USED
    world.nodes[NODE] = node
    for name, kind in (("local", "dir"), ("difa", "dir"), ("difb", "dir"), ("difbt", "btrfs")):
        path = {"local": "/var/lib/vz", "difbt": "/mnt/difbt"}.get(name, f"/var/lib/{name}")
        storage = Storage(name, kind, _EVERYTHING, config={"path": path}, defined_at=world.clock.now() - 1000)
        storage.spaces = {NODE: StorageSpace(_TOTAL, _USED)}
        world.storages[name] = storage
    created = int(world.clock.now()) - 1000
    local = world.storages["local"]
    local.add(NODE, Volume(ISO, "iso", "iso", 1404928, 1404928, created))
    local.add(NODE, Volume(TEMPLATE, "vztmpl", "txz", 3201600, 3201600, created))
    base = "local:9000/base-9000-disk-0.qcow2"
    local.add(NODE, Volume(base, "images", "qcow2", GIB, GIB // 4, created, vmid=9000))
    config: dict[str, Any] = {
        "name": "rig-guest", "memory": "256", "scsihw": "virtio-scsi-single", "scsi0": f"{base},size=1G", "agent": "1",
        "net0": "virtio=BC:24:11:AA:BB:CC,bridge=vmbr0", "boot": "order=scsi0", "template": 1, "kvm": 0, "tags": "rig",
        "serial0": "socket",
    }  # fmt: skip
    world.guests[9000] = Guest(9000, "qemu", NODE, config, system=OperatingSystem())
    world.guests[9001] = Guest(9001, "qemu", NODE, {"name": "plain", "memory": "64", "kvm": 0})
    world.tasks.add_finished(NODE, "startall", "", "root@pam", started=world.clock.now() - 3400, lasted=1)
    root = world.access.users["root@pam"]
    root.tokens[TOKEN_NAME] = Token(TOKEN_SECRET, privsep=False)
    world.access.invalidate_cache()
    world.part(Disks).of(NODE).disks.clear()
    world.part(Settings).of(NODE).dns = {}
    world.part(Networks).of(NODE)._active = interfaces()


def vm(number: int, **options: Any) -> Step:
    """A small VM that exists when a scenario starts."""
    return "POST", "~/qemu", {"vmid": f"<id{number}>", "kvm": 0, "memory": 64, **options}


def ct(number: int, **options: Any) -> Step:
    params = {"cores": 1, "memory": 64, "swap": 0, "rootfs": "<st>:1", "hostname": f"dif-ct-<id{number}>", **options}
    return "POST", "~/lxc", {"vmid": f"<id{number}>", "ostemplate": "<template>", "unprivileged": 0, **params}


def power(number: int, verb: str, kind: str = "qemu") -> Step:
    return "POST", f"~/{kind}/<id{number}>/status/{verb}", {}


def snapshot(number: int, name: str, **options: Any) -> Step:
    return "POST", f"~/qemu/<id{number}>/snapshot", {"snapname": name, **options}


def grant(path: str, privileges: str, role: str) -> tuple[Step, ...]:
    """Grant the user of the privileges scenario exactly these privileges on a path."""
    return (
        ("POST?", "/access/roles", {"roleid": role}),
        ("PUT", f"/access/roles/{role}", {"privs": privileges}),
        ("PUT", "/access/acl", {"path": path, "roles": role, "users": "difu9@pve"}),
    )


_DISK = {"scsihw": "virtio-scsi-single", "scsi0": "<st>:1,format=qcow2"}
_CARD = {"net0": "virtio,bridge=<bridge>"}
_RAW = {"scsihw": "virtio-scsi-single", "scsi0": "<st>:1,format=raw"}
_RIGHTS: Key = ("permissions", "rights piece by piece")


BACKGROUNDS: dict[Key, dict[int, tuple[Step, ...]]] = {
    ("qemu-config", "changes while stopped"): {0: (vm(0, **_DISK, **_CARD),)},
    ("qemu-config", "plugging while running"): {0: (vm(0, **_DISK), power(0, "start"))},
    ("qemu-config", "odd values"): {0: (vm(0, **_DISK, **_CARD),)},
    ("qemu-power", "verbs on a stopped machine"): {0: (vm(0, name="off-dif", **_DISK),)},
    ("qemu-power", "what a running machine tells"): {
        0: (
            vm(0, agent="1", balloon=32, shares=1000, **_DISK, **_CARD),
            vm(1),
            power(0, "start"),
            power(1, "start"),
        ),
    },
    ("qemu-power", "many at once"): {0: (vm(0, **_DISK), vm(1, **_DISK))},
    ("qemu-agent", "no agent configured"): {0: (vm(0),), 10: (power(0, "start"),)},
    ("qemu-agent", "a guest that answers"): {
        0: (
            ("POST", "~/qemu/9000/clone", {"newid": "<id0>", "name": "agent-dif", "full": 0}),
            power(0, "start"),
            ("WAIT", "", {"seconds": 60}),
        ),
    },
    ("qemu-snapshot", "a tree"): {0: (vm(0, name="tree-dif", **_DISK),)},
    ("qemu-snapshot", "refused"): {0: (vm(0, **_DISK), vm(1, **_RAW), vm(2))},
    ("qemu-clone", "full clones"): {
        0: (
            vm(
                0,
                name="mother",
                onboot=1,
                protection=1,
                description="mine",
                tags="x;y",
                ide2="none,media=cdrom",
                **_DISK,
                **_CARD,
            ),
        ),
        18: (snapshot(0, "before"),),
        21: (power(0, "start"),),
    },
    ("qemu-delete", "running, protected, purged"): {
        0: (vm(0, name="doomed", protection=1, scsi1="<st>:1,format=raw", **_DISK), vm(1, **_DISK), vm(2, **_DISK)),
        8: (power(0, "start"),),
        9: (power(0, "stop"),),
        22: (
            ("PUT", "~/qemu/<id1>/config", {"scsi1": "<st>:1,format=raw"}),
            ("PUT", "~/qemu/<id1>/config", {"delete": "scsi1"}),
        ),
    },
    ("qemu-disk", "resize"): {
        0: (vm(0, ide2="none,media=cdrom", scsi1="<st>:1,format=raw", **_DISK),),
        19: (power(0, "start"),),
        22: (power(0, "stop"),),
        24: (snapshot(0, "base"),),
    },
    ("qemu-disk", "move to another machine"): {
        0: (vm(0, scsi1="<st>:1,format=qcow2", **_DISK), vm(1, **_DISK)),
    },
    ("qemu-disk", "volumes by hand"): {0: (vm(0, **_DISK),)},
    ("lxc-create", "refused"): {68: (("DELETE", "~/lxc/<id0>", {}),)},
    ("lxc-power", "verbs on a stopped container"): {0: (ct(0),)},
    ("lxc-config", "changes while stopped"): {0: (ct(0),)},
    ("lxc-disk", "resize and mount points"): {0: (ct(0),)},
    ("lxc-snapshot", "on a storage that cannot"): {0: (ct(0),)},
    ("lxc-snapshot", "a tree"): {0: (ct(0, rootfs="<btrfs>:1"),)},
    ("lxc-clone", "clones and templates"): {
        0: (ct(0, hostname="mother-dif", tags="z", description="m", net0="name=eth0,bridge=<bridge>,ip=dhcp"),),
    },
    ("backup", "a machine, saved and cared for"): {
        0: (
            vm(
                0,
                name="save-dif",
                tags="t1",
                description="d",
                scsihw="virtio-scsi-single",
                scsi0="<st>:0.1,format=qcow2",
            ),
        ),
    },
    ("backup", "refused"): {0: (vm(0, scsihw="virtio-scsi-single", scsi0="<st>:0.1,format=qcow2"),)},
    ("backup", "a container, saved and restored"): {
        0: (ct(0, hostname="ctsave-dif", mp0="<st>:0.1,mp=/data,backup=0"),),
        13: (power(1, "start", "lxc"),),
    },
    ("backup", "scheduled jobs"): {0: (vm(0, **_DISK),)},
    ("storage", "content and its filters"): {
        0: (vm(0, scsi0="<st>:1,format=raw", scsi1="<st>:1,format=qcow2"),),
    },
    ("access", "access control list"): {
        0: (
            ("POST", "/access/groups", {"groupid": "difg5"}),
            ("POST", "/access/users", {"userid": "difu5@pve", "groups": "difg5"}),
        ),
    },
    ("permissions", "a token without any right"): {
        0: (vm(0, **_DISK), ("POST", "/access/users", {"userid": "difu7@pve"})),
    },
    _RIGHTS: {
        0: (
            vm(0, **_DISK, **_CARD),
            ("POST", "/access/users", {"userid": "difu9@pve"}),
            ("POST", "/pools", {"poolid": "difpoolp"}),
        ),
        93: grant("/vms/<id0>", "VM.Snapshot", "difrole"),
        95: grant("/vms/<id0>", "VM.Snapshot,VM.PowerMgmt", "difrole"),
        96: grant("/vms/<id0>", "VM.Snapshot.Rollback", "difrole"),
        98: (*grant("/vms/<id0>", "VM.Clone,VM.Audit", "difrole"), power(0, "stop")),
        99: grant(
            "/pool/difpoolp",
            "VM.Allocate,Pool.Audit,VM.PowerMgmt,VM.Config.Network,VM.Config.Disk,"
            "VM.Config.HWType,VM.Config.Options,VM.Config.Memory,VM.Audit",
            "difpoolrole",
        ),
        100: grant("/storage/<st>", "Datastore.AllocateSpace,Datastore.Audit", "difstorage"),
        101: grant("/sdn/zones/localnetwork", "SDN.Use", "difnet"),
    },
    ("firewall", "rules of a machine"): {0: (vm(0, **_CARD),)},
    ("pools", "life of a pool"): {0: (vm(0, name="inpool"), vm(1))},
    ("ha", "resources"): {0: (vm(0),)},
    ("cluster", "options and ids"): {0: (vm(0),)},
    ("tasks", "list, log, stop"): {0: (vm(0, **_DISK),), 39: (), 43: (power(0, "start"),)},
    ("http", "odd parameters of reads"): {0: (vm(0, **_DISK),)},
}
"""By scenario and step: the requests that went unrecorded before it. `POST?` may be refused, `WAIT` lets time pass."""


def rights_before(key: Key, label: str | None) -> tuple[Step, ...]:
    """The grants of the privileges scenario, from its labels."""
    if key != _RIGHTS or label is None or " {" not in label:
        return ()
    return grant("/vms/<id0>", label.partition(" {")[0], "difrole")
