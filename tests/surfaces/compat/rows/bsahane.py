"""bsahane's rows. A guest is chosen by its name, which is as good as its id."""

from urllib.parse import unquote

from pve_simulator.access.directory import Pool
from pve_simulator.world import World
from tests.rigs.compat_session import Done, Row
from tests.surfaces.compat.rows import checks, setups
from tests.surfaces.compat.rows.brynnjocelyn import ISO, KEY, OLD_BACKUP, TEMPLATE

NAMES = {102: "docker01", 103: "docker02", 104: "k3s-server", 105: "k3s-agent", 107: "win11", 108: "test-vm",
         203: "postgres", 204: "grafana", 205: "jellyfin", 206: "dev-sandbox", 101: "homeassistant"}  # fmt: skip
RULE = {"type": "in", "action": "ACCEPT", "proto": "tcp", "dport": "22"}


def of(vmid: int, **more):
    return {"vmid": vmid, "name": NAMES[vmid], **more}


def cloud_init_is_set(done: Done) -> None:
    config = done.guest().effective_config()
    checks.has(config, ipconfig0="ip=10.9.0.8/24,gw=10.9.0.1", ciuser="me")
    assert unquote(str(config["sshkeys"])).strip() == KEY
    assert config["cipassword"]


async def firewall_is_on(done: Done) -> None:
    (rule,) = await done.get("/nodes/pve1/qemu/102/firewall/rules")
    assert RULE.items() <= rule.items()
    assert (await done.get("/nodes/pve1/qemu/102/firewall/options"))["enable"] == 1


def pool_is_made(done: Done) -> None:
    assert done.world.access.pools["media"].comment == "films"


def pool_is_gone(done: Done) -> None:
    assert "empty" not in done.world.access.pools


def empty_pool(world: World) -> None:
    world.access.pools["empty"] = Pool("empty")


def is_in_pool(done: Done) -> None:
    assert done.guest().vmid in done.world.access.pools[done.arguments["poolid"]].vms


def is_not_in_pool(done: Done) -> None:
    assert done.guest().vmid not in done.world.access.pools[done.arguments["poolid"]].vms


async def permission_is_there(done: Done) -> None:
    entries = [entry for entry in await done.get("/access/acl") if entry["path"] == "/vms/104"]
    assert {(entry["ugid"], entry["roleid"], entry["propagate"]) for entry in entries} == {
        ("bob@pve", "PVEVMUser", 0),
        ("family", "PVEVMUser", 0),
    }


ROWS = [
    Row(
        "proxmox-clone-vm",
        {
            "source_vmid": 108,
            "new_vmid": 340,
            "source_node": "pve1",
            "target_node": "pve2",
            "name": "vm340",
            "storage": "nas",
            "full": True,
            "dry_run": False,
        },
        checks.is_cloned("qemu", source="source_vmid", new="new_vmid", name="vm340", scsi0=checks.holds("nas:")),
        prepare=setups.disk_on_nas(108),
    ),
    Row(
        "proxmox-create-vm",
        {
            "node": "pve1",
            "vmid": 341,
            "name": "vm341",
            "cores": 2,
            "memory_mb": 2048,
            "disk_gb": 20,
            "storage": "tank",
            "bridge": "vmbr1",
            "iso": ISO,
            "dry_run": False,
        },
        checks.is_made(
            "qemu", name="vm341", scsi0=checks.holds("tank:", "size=20G"), net0=checks.holds("bridge=vmbr1")
        ),
    ),
    Row("proxmox-delete-vm", of(107, purge=True, dry_run=False), checks.is_gone),
    Row("proxmox-start-vm", of(107), checks.is_running),
    Row("proxmox-stop-vm", of(104), checks.is_stopped),
    Row("proxmox-reboot-vm", of(105), checks.was_rebooted),
    Row("proxmox-shutdown-vm", of(105, timeout=60), checks.is_stopped),
    Row("proxmox-migrate-vm", of(101, target_node="pve3", live=True), checks.is_on("target_node")),
    Row("proxmox-resize-vm-disk", of(104, disk="scsi0", grow_gb=4, dry_run=False), checks.disk_is("scsi0", size="64G")),
    Row(
        "proxmox-configure-vm",
        of(107, params={"hotplug": "disk,network", "tablet": 0}, dry_run=False),
        checks.config_has(hotplug="disk,network", tablet=0),
    ),
    Row(
        "proxmox-create-lxc",
        {
            "node": "pve2",
            "vmid": 342,
            "hostname": "ct342",
            "ostemplate": TEMPLATE,
            "cores": 2,
            "memory_mb": 1024,
            "rootfs_gb": 9,
            "storage": "tank",
            "bridge": "vmbr0",
            "net_ip": "10.9.0.9/24",
            "dry_run": False,
        },
        checks.is_made(
            "lxc",
            hostname="ct342",
            cores=2,
            memory=1024,
            rootfs=checks.holds("tank:", "size=9G"),
            net0=checks.holds("bridge=vmbr0", "ip=10.9.0.9/24"),
        ),
    ),
    Row("proxmox-delete-lxc", of(206, purge=True, dry_run=False), checks.is_gone),
    Row("proxmox-start-lxc", of(206), checks.is_running),
    Row("proxmox-stop-lxc", of(204), checks.is_stopped),
    Row(
        "proxmox-configure-lxc",
        of(206, params={"cpuunits": 200, "timezone": "host"}, dry_run=False),
        checks.config_has(cpuunits=200, timezone="host"),
    ),
    Row(
        "proxmox-cloudinit-set",
        of(
            107,
            ipconfig0="ip=10.9.0.8/24,gw=10.9.0.1",
            sshkeys=KEY,
            ciuser="me",
            cipassword="long-enough",
            dry_run=False,
        ),
        cloud_init_is_set,
    ),
    Row(
        "proxmox-vm-nic-add",
        of(102, bridge="vmbr1", model="virtio", vlan=40, dry_run=False),
        checks.config_has(net1=checks.holds("virtio=", "bridge=vmbr1", "tag=40")),
    ),
    Row("proxmox-vm-nic-remove", of(107, slot=0, dry_run=False), checks.lacks("net0")),
    Row("proxmox-vm-firewall-set", of(102, enable=True, rules=[RULE], dry_run=False), firewall_is_on),
    Row(
        "proxmox-upload-iso",
        {"node": "pve2", "storage": "local", "file_path": "tiny.iso", "dry_run": False},
        checks.is_uploaded("local:iso/tiny.iso", 20),
    ),
    Row(
        "proxmox-upload-template",
        {"node": "pve2", "storage": "local", "file_path": "tiny.tar.zst", "dry_run": False},
        checks.is_uploaded("local:vztmpl/tiny.tar.zst", 20),
    ),
    Row("proxmox-template-vm", of(107, dry_run=False), checks.is_template),
    Row(
        "proxmox-create-snapshot",
        of(104, snapname="live", description="with memory", vmstate=True, dry_run=False),
        checks.both(checks.has_snapshot, checks.snapshot_holds_memory),
    ),
    Row("proxmox-delete-snapshot", of(203, snapname="pre-migration", dry_run=False), checks.lacks_snapshot),
    Row(
        "proxmox-rollback-snapshot",
        of(108, snapname="configured", dry_run=False),
        checks.is_rolled_back,
        prepare=setups.changed_since(108, "configured"),
    ),
    Row(
        "proxmox-backup-vm",
        of(105, mode="snapshot", compress="zstd", storage="nas", dry_run=False),
        checks.is_backed_up,
    ),
    Row(
        "proxmox-restore-vm",
        {"node": "pve1", "vmid": 108, "archive": OLD_BACKUP, "storage": "tank", "force": True, "dry_run": False},
        checks.is_restored("qemu", over_old=True),
    ),
    Row("proxmox-create-pool", {"poolid": "media", "comment": "films", "dry_run": False}, pool_is_made),
    Row("proxmox-delete-pool", {"poolid": "empty", "dry_run": False}, pool_is_gone, prepare=empty_pool),
    Row("proxmox-pool-add", of(205, poolid="lab", dry_run=False), is_in_pool),
    Row("proxmox-pool-remove", of(206, poolid="lab", dry_run=False), is_not_in_pool),
    Row(
        "proxmox-assign-permission",
        {
            "path": "/vms/104",
            "roles": "PVEVMUser",
            "users": "bob@pve",
            "groups": "family",
            "propagate": False,
            "dry_run": False,
        },
        permission_is_there,
    ),
]
