"""A cluster with something of everything, and the operator's rules about it.

Every guest is free to be changed, or protected by one of the rules, or hidden. Half of the running ones ignore a
request to shut down: if one of those is found stopped, it was stopped by force.
"""

from __future__ import annotations

import tomllib
from dataclasses import replace
from typing import Any, Final
from urllib.parse import urlencode

from pve_schema.schema import facts
from pve_simulator.access.directory import ROOT, Access, Pool, Token
from pve_simulator.api_client import Request
from pve_simulator.builder import Builder
from pve_simulator.clock import ManualClock
from pve_simulator.cluster.ha_manager import HaManager
from pve_simulator.demo_world import build_demo_world
from pve_simulator.faults import Faults
from pve_simulator.guests.guest import GIB, MIB, OperatingSystem, Snapshot
from pve_simulator.http.server import ApiServer
from pve_simulator.storage.storages import Volume
from pve_simulator.world import HaResource, World
from quorate.config.policy import read_policy
from quorate.config.sources import Rank, Source
from tests.rigs.in_memory_wire import Handler

TOKEN: Final = f"{ROOT}!oracle"
SECRET: Final = "0b5e55ed-0000-4000-8000-00000000cafe"

GUESTS_PER_CALL: Final = 3
POLICY: Final = read_policy(
    tomllib.loads(f"""
    [policy]
    guests_per_call = {GUESTS_PER_CALL}
    [[rules]]
    name = "by tag"
    deny = "change"
    tags = ["sacred"]
    [[rules]]
    name = "by name"
    deny = "change"
    names = ["ledger*"]
    [[rules]]
    name = "by number"
    deny = "change"
    vmids = ["310-319"]
    [[rules]]
    name = "by pool"
    deny = "change"
    pools = ["crown"]
    [[rules]]
    name = "by node"
    deny = "change"
    nodes = ["vault"]
    [[rules]]
    name = "hidden by name"
    deny = "read"
    names = ["obsidian*"]
    [[rules]]
    name = "hidden by tag"
    deny = "read"
    tags = ["unseen"]
    [[rules]]
    name = "kept"
    deny = "destroy"
    tags = ["kept"]
    """),
    Source(Rank.TOML),
)
PROTECTED: Final = frozenset({301, 302, 310, 311, 320, 321, 330, 331})
HIDDEN: Final = frozenset({7771, 7772})
UNTOUCHABLE: Final = PROTECTED | HIDDEN
PROTECTED_NODE: Final = "vault"
PROTECTED_POOL: Final = "crown"

SECRETS: Final = {
    7771: ("obsidian-archive", "10.77.1.71", "basalt under the floor", "7771", "marble-cut"),
    7772: ("quartz-escrow", "10.77.1.72", "granite in the cellar", "7772", "slate-cut"),
}
"""What nobody may learn of the hidden guests: name, address, notes, id, and the name of a snapshot."""

_STUBBORN = OperatingSystem(obeys_shutdown=False)


def build_estate(world: World) -> None:
    """The demo's homelab, a fourth node, and guests that rules are about."""
    build_demo_world(world)
    builder = Builder(world)
    builder.node(PROTECTED_NODE, memory=64, cpus=16)
    for storage in ("local", "local-lvm"):
        places = world.storages[storage].spaces
        places[PROTECTED_NODE] = replace(places["pve1"], volumes={}, volumes_used=0)
    for storage in ("nas", "pbs"):  # what is not on the protected node may be used
        world.storages[storage].nodes = frozenset({"pve1", "pve2", "pve3"})
    world.storages["nas"].config["prune-backups"] = "keep-last=2"
    add = builder.guest
    add("qemu", 110, "spare", "pve1", disk=4, storage="tank", tags="free", system=_STUBBORN)
    add("qemu", 111, "scratch", "pve2", disk=4, running=False, tags="free;kept")
    add("lxc", 210, "toolbox", "pve1", disk=4, storage="tank", tags="free", system=_STUBBORN)
    add("qemu", 301, "shrine", "pve1", disk=8, tags="sacred", ip="10.9.0.1")
    add("lxc", 302, "ledger-main", "pve2", disk=8, ip="10.9.0.2")
    add("qemu", 310, "numbered", "pve2", disk=8, running=False)
    add("lxc", 311, "counted", "pve1", disk=8, storage="tank")
    add("qemu", 320, "jewel", "pve3", disk=8)
    add("lxc", 321, "sceptre", "pve3", disk=8, running=False)
    add("qemu", 330, "strongbox", PROTECTED_NODE, disk=8)
    add("lxc", 331, "locker", PROTECTED_NODE, disk=8, running=False)
    for vmid, kind, tags in ((7771, "qemu", "stone"), (7772, "lxc", "unseen")):
        name, ip, notes, _, _ = SECRETS[vmid]
        add(kind, vmid, name, "pve1", disk=8, ip=ip, description=notes, tags=tags)  # type: ignore[arg-type]
    for vmid in (102, 104, 106, 201, 203, 205):
        world.guests[vmid].system = replace(world.guests[vmid].system, obeys_shutdown=False)
    _add_disks(builder)
    _add_snapshots(world)
    _add_backups(builder)
    world.access.pools[PROTECTED_POOL] = Pool(PROTECTED_POOL, "not to be touched", {320, 321})
    world.access.grant(f"/pool/{PROTECTED_POOL}", "PVEVMUser", "alice@pve")
    world.access.invalidate_cache()
    _add_history(world)
    for vmid in (102, 103, 301, 7771):
        world.ha[f"vm:{vmid}"] = HaResource(f"vm:{vmid}")


def _add_disks(builder: Builder) -> None:
    """Second disks, unused ones, linked clones, and volumes that belong to nobody any more."""
    world = builder.world
    for vmid in (100, 104, 108, 110, 111, 301, 310, 320, 330, 7771):
        _disk(world, vmid, "scsi1", 1)
        _disk(world, vmid, "unused0", 2)
    _disk(world, 104, "ide2", 3)
    for vmid in (206, 210, 302, 311, 331, 7772):
        _disk(world, vmid, "mp0", 1, ",mp=/srv")
        _disk(world, vmid, "unused0", 2)
    base = next(str(value).partition(",")[0] for key, value in world.guests[9000].config.items() if key == "scsi0")
    clone = builder.guest("qemu", 120, "linked", "pve1", disk=3, running=False, tags="free")
    own = str(clone.config["scsi0"]).partition(",")[0]
    storage = world.storages["local-lvm"]
    volume = storage.volume("pve1", own)
    assert volume is not None
    volume.parent = base.partition(":")[2]
    _store(world, "local-lvm", "pve1", "vm-888-disk-0", 888)


def _disk(world: World, vmid: int, key: str, number: int, options: str = "") -> None:
    guest = world.guests[vmid]
    storage = world.storages["tank" if vmid in (110, 210, 311) else "local-lvm"]
    volid = _store(world, storage.id, guest.node, storage.disk_name(vmid, number, guest.kind).partition(":")[2], vmid)
    guest.config[key] = volid if key.startswith("unused") else f"{volid}{options},size=2G"


def _store(world: World, storage: str, node: str, name: str, vmid: int) -> str:
    volid = f"{storage}:{name}"
    kind = "images" if vmid == 888 or world.guests[vmid].kind == "qemu" else "rootdir"
    volume = Volume(volid, kind, "raw", 2 * GIB, 64 * MIB, int(world.clock.now()), vmid=vmid)
    world.storages[storage].add(node, volume)
    return volid


def _add_snapshots(world: World) -> None:
    for vmid, name in [(104, "tested"), (204, "quiet"), (210, "fresh"), (301, "vow"), (302, "audited")] + [
        (vmid, told[4]) for vmid, told in SECRETS.items()
    ]:
        guest = world.guests[vmid]
        config = {key: value for key, value in guest.config.items() if not key.startswith("unused")}
        guest.snapshots[name] = Snapshot(name, int(world.clock.now()) - 86400, config, f"{name}, by hand")
        guest.config["parent"] = name


def _add_backups(builder: Builder) -> None:
    for vmid in (100, 108, 111, 301, 310, 320, 330, 7771):
        for day in ("10", "11", "12"):
            name = f"backup/vzdump-qemu-{vmid}-2026_01_{day}-02_00_01.vma.zst"
            builder.file("nas", "pve1", name, "backup", "vma.zst", 900 * MIB, vmid=vmid)
    for vmid in (204, 210, 302, 311, 7772):
        for day in ("10", "11", "12"):
            name = f"backup/vzdump-lxc-{vmid}-2026_01_{day}-02_00_01.tar.zst"
            builder.file("local", builder.world.guests[vmid].node, name, "backup", "tar.zst", 90 * MIB, vmid=vmid)
    builder.file("local", "pve1", "snippets/first-boot.yml", "snippets", "snippet", 800)
    builder.file("local", "pve1", "import/appliance.qcow2", "import", "qcow2", 300 * MIB)


def _add_history(world: World) -> None:
    """Tasks of the hidden guests, and one that names them among others."""
    for hours, (kind, target) in enumerate(
        (("qmstart", "7771"), ("vzstart", "7772"), ("vzdump", "7771"), ("vzdump", ""))
    ):
        task = world.tasks.add_finished(
            "pve1", kind, target, "root@pam", started=world.clock.now() - 3600 * (hours + 1), lasted=9.0
        )
        task.log[:0] = [f"INFO: Starting Backup of VM {vmid} ({told[0]})" for vmid, told in SECRETS.items()]


_LAN = {"name": "lan", "cidr": "192.168.10.0/24"}
_WEB = {"type": "in", "action": "ACCEPT", "dport": "80", "proto": "tcp", "enable": 1}
FURNITURE: Final[tuple[tuple[str, str, dict[str, Any]], ...]] = (
    ("POST", "/cluster/backup", {"id": "nightly", "schedule": "21:00", "vmid": "100,204", "storage": "nas",
        "prune-backups": "keep-last=9"}),
    ("POST", "/cluster/backup", {"id": "weekly", "schedule": "sat 03:00", "all": 1, "storage": "local",
        "prune-backups": "keep-all=1"}),
    ("POST", "/cluster/backup", {"id": "jewels", "schedule": "sun 03:00", "pool": "crown", "storage": "nas",
        "prune-backups": "keep-all=1"}),
    ("POST", "/cluster/replication", {"id": "102-0", "type": "local", "target": "pve2"}),
    ("POST", "/cluster/replication", {"id": "311-0", "type": "local", "target": "pve2"}),
    ("POST", "/cluster/firewall/aliases", _LAN),
    ("POST", "/cluster/firewall/ipset", {"name": "admins"}),
    ("POST", "/cluster/firewall/ipset/admins", {"cidr": "192.168.10.9"}),
    ("POST", "/cluster/firewall/groups", {"group": "web"}),
    ("POST", "/cluster/firewall/groups/web", _WEB),
    ("POST", "/cluster/firewall/rules", _WEB),
    ("POST", "/nodes/pve1/firewall/rules", _WEB),
    *(("POST", f"/nodes/{node}/{kind}/{vmid}/firewall/{part}", params)
        for node, kind, vmid in (("pve1", "qemu", 102), ("pve1", "qemu", 301), ("pve1", "lxc", 210))
        for part, params in (("rules", _WEB), ("aliases", _LAN), ("ipset", {"name": "own"}))),
    ("PUT", "/nodes/pve1/qemu/301/firewall/options", {"enable": 1, "policy_in": "DROP"}),
    ("POST", "/cluster/sdn/zones", {"zone": "z1", "type": "simple"}),
    ("POST", "/cluster/sdn/vnets", {"vnet": "v1", "zone": "z1"}),
    ("POST", "/cluster/sdn/vnets/v1/subnets", {"subnet": "10.7.0.0/24", "type": "subnet"}),
    ("PUT", "/cluster/sdn", {}),
    ("POST", "/cluster/mapping/dir", {"id": "share", "map": ["node=pve1,path=/srv"]}),
    ("POST", "/cluster/mapping/usb", {"id": "stick", "map": ["node=pve1,id=1234:5678"]}),
    ("POST", "/cluster/metrics/server/influx", {"type": "influxdb", "server": "192.168.10.8", "port": 8089}),
    ("POST", "/cluster/notifications/endpoints/gotify", {"name": "phone", "server": "https://push.home.lan",
        "token": "abc"}),
    ("POST", "/cluster/notifications/matchers", {"name": "urgent", "target": "phone"}),
    ("POST", "/cluster/acme/plugins", {"id": "dns1", "type": "dns", "api": "cf"}),
    ("POST", "/access/roles", {"roleid": "Helper", "privs": "VM.Audit"}),
    ("POST", "/access/domains", {"realm": "corp", "type": "ldap", "base_dn": "dc=corp", "user_attr": "uid",
        "server1": "192.168.10.7"}),
)  # fmt: skip
UNAPPLIED: Final = (
    ("POST", "/nodes/pve2/network", {"iface": "vmbr9", "type": "bridge"}),
    ("POST", "/cluster/sdn/vnets", {"vnet": "v2", "zone": "z1"}),
)
ONLY_SINCE_9: Final = (
    ("POST", "/cluster/ha/rules", {"rule": "near", "type": "node-affinity", "resources": "vm:103",
        "nodes": "pve1,pve2"}),
    ("POST", "/cluster/ha/rules", {"rule": "apart", "type": "resource-affinity", "resources": "vm:102,vm:301",
        "affinity": "negative"}),
)  # fmt: skip
ONLY_BEFORE_9: Final = (("POST", "/cluster/ha/groups", {"group": "g1", "nodes": "pve1"}),)


class Estate:
    """The simulated cluster without its sockets."""

    def __init__(self, version: str, seed: int = 0) -> None:
        self.clock = ManualClock()
        table = facts(version)
        self.world = World(clock=self.clock, access=Access(table.roles), name="estate", seed=seed, version=version)
        build_estate(self.world)
        self.world.access.users[ROOT].tokens["oracle"] = Token(SECRET, privsep=False)
        server = ApiServer(self.world, table, Faults(self.world, seed), auth_delay=0.0, requests=[])
        self.handler: Handler = server.for_node(self.world.nodes["pve1"])
        self.world.part(HaManager).wake()

    async def furnish(self) -> None:
        """What is easier to ask for than to build."""
        nine = self.world.version_at_least(9)
        for method, path, params in (*FURNITURE, *(ONLY_SINCE_9 if nine else ONLY_BEFORE_9)):
            await self.send(method, path, params)
        for node in self.world.nodes:  # what the simulator makes up when it is first looked at
            for part in ("services", "dns", "hosts", "disks/list", "apt/repositories", "network"):
                await self.send("GET", f"/nodes/{node}/{part}", {})
        await self.clock.advance(120)
        for method, path, params in UNAPPLIED:
            await self.send(method, path, params)

    async def send(self, method: str, path: str, params: dict[str, Any]) -> None:
        headers = {
            "Authorization": f"PVEAPIToken={TOKEN}={SECRET}",
            "Content-Type": "application/x-www-form-urlencoded",
        }
        body = urlencode(params, doseq=True).encode()
        answer = await self.handler(Request(method, f"/api2/json{path}", headers, body))
        assert answer.status == 200, f"{method} {path}: {answer.status} {answer.reason}"

    async def close(self) -> None:
        await self.world.tasks.close()
