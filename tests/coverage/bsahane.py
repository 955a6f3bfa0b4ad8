"""bsahane's rows. A guest is chosen by its name, which is as good as its id."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import unquote

from quorate.sim.access import Pool
from quorate.sim.guests import Address
from quorate.sim.world import World
from tests.coverage import insides, lists, looks, preparing
from tests.coverage.brynnjocelyn import ISO, KEY, OLD_BACKUP, TEMPLATE
from tests.coverage.rows import AnyOf, Done, Turned, native, row

GUEST = AnyOf(("name", "vmid"))
NAMES = {102: "docker01", 103: "docker02", 104: "k3s-server", 105: "k3s-agent", 107: "win11", 108: "test-vm",
         203: "postgres", 204: "grafana", 205: "jellyfin", 206: "dev-sandbox", 101: "homeassistant"}  # fmt: skip
PATIENCE = {"timeout": "what outlasts the wait is handed back and can be followed with task_wait"}
DRY = {"dry_run": "dry_run"}
ON = {"guest": GUEST}
RULE = {"type": "in", "action": "ACCEPT", "proto": "tcp", "dport": "22"}


def of(vmid: int, **more):
    return {"vmid": vmid, "name": NAMES[vmid], **more}


def power(action: str, **parameters: str):
    return native("guest_power", {**ON, **parameters}, action=action)


def bridges_are_listed(done: Done) -> None:
    bridges = done.world.nodes[done.given["node"]].bridges
    assert {row["name"] for row in done.rows if row["type"] == "bridge"} == set(bridges)


def definitions_are_listed(done: Done) -> None:
    found = {row["storage"]: (row["type"], set(row["content"].split(","))) for row in done.rows}
    assert found == {storage.id: (storage.type, set(storage.content)) for storage in done.world.storages.values()}


def cloud_init_is_set(done: Done) -> None:
    config = done.guest().effective_config()
    looks.has(config, ipconfig0="ip=10.9.0.8/24,gw=10.9.0.1", ciuser="me")
    assert unquote(str(config["sshkeys"])).strip() == KEY
    assert config["cipassword"]


async def firewall_is_told(done: Done) -> None:
    options = await done.get("/nodes/pve1/qemu/102/firewall/options")
    assert bool(done.facts["options"]["enable"]) == bool(options.get("enable"))
    assert done.facts["total"] == len(await done.get("/nodes/pve1/qemu/102/firewall/rules"))


async def set_firewall(done: Done) -> None:
    """The rules first, so that nothing is shut out between the two."""
    guest = done.given["name"]
    for rule in done.given["rules"]:
        await done.call("firewall_rule_set", scope="guest", of=guest, dry_run=done.given["dry_run"], **rule)
    await done.call(
        "firewall_options_set", scope="guest", of=guest, enable=done.given["enable"], dry_run=done.given["dry_run"]
    )


async def firewall_is_on(done: Done) -> None:
    (rule,) = await done.get("/nodes/pve1/qemu/102/firewall/rules")
    assert RULE.items() <= rule.items()
    assert (await done.get("/nodes/pve1/qemu/102/firewall/options"))["enable"] == 1


@contextlib.contextmanager
def local_file(name: str) -> Iterator[Path]:
    with TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(b"not much of an image")
        yield path


async def upload(done: Done) -> None:
    given = done.given
    with local_file(given["file_path"]) as path:
        await done.call(
            "image_upload", file=str(path), node=given["node"], storage=given["storage"], dry_run=given["dry_run"]
        )


def pools_are_listed(done: Done) -> None:
    assert {row["pool"] for row in done.rows} == set(done.world.access.pools)


def pool_is_made(done: Done) -> None:
    assert done.world.access.pools["media"].comment == "films"


def pool_is_gone(done: Done) -> None:
    assert "empty" not in done.world.access.pools


def empty_pool(world: World) -> None:
    world.access.pools["empty"] = Pool("empty")


def is_in_pool(done: Done) -> None:
    assert done.guest().vmid in done.world.access.pools[done.given["poolid"]].vms


def is_not_in_pool(done: Done) -> None:
    assert done.guest().vmid not in done.world.access.pools[done.given["poolid"]].vms


def users_are_listed(done: Done) -> None:
    assert {row["user"] for row in done.rows} == set(done.world.access.users)


async def roles_are_listed(done: Done) -> None:
    assert {row["role"] for row in done.rows} == {role["roleid"] for role in await done.get("/access/roles")}


async def assign(done: Done) -> None:
    given = done.given
    holders = [*given["users"].split(","), *(f"@{group}" for group in given["groups"].split(","))]
    await done.call(
        "acl_set",
        action="grant",
        path=given["path"],
        roles=given["roles"].split(","),
        holders=holders,
        propagate=given["propagate"],
        dry_run=given["dry_run"],
    )


async def permission_is_there(done: Done) -> None:
    entries = [entry for entry in await done.get("/access/acl") if entry["path"] == "/vms/104"]
    assert {(entry["ugid"], entry["roleid"], entry["propagate"]) for entry in entries} == {
        ("bob@pve", "PVEVMUser", 0),
        ("family", "PVEVMUser", 0),
    }


POOL = {"pool": "poolid", **DRY}
ADDRESSES = {"ip": Turned("ipconfig0", lambda text: text.split(",")[0].removeprefix("ip=")),
             "gateway": Turned("ipconfig0", lambda text: text.split("gw=")[1])}  # fmt: skip


async def run_with_arguments(done: Done) -> None:
    """The program and its arguments are one list, which no shell ever sees."""
    given = done.given
    await done.call(
        "guest_exec", guest=given["vmid"], command=[given["command"], *given["args"]], stdin=given["input_data"]
    )


def with_a_tunnel(world: World) -> None:
    world.guests[102].addresses.append(Address("wg0", "02:00:00:00:00:01", "10.9.0.2"))


ROWS = [
    row("proxmox-list-nodes", {}, native("node_list"), lists.nodes_are_listed),
    row("proxmox-node-status", {"node": "pve2"}, native("node_get", {"node": "node"}), lists.node_is_told),
    row(
        "proxmox-list-vms",
        {"node": "pve1", "status": "running", "search": "docker"},
        native("guest_list", {"node": "node", "status": "status", "name": "search"}, type="vm"),
        looks.is_listed(kind="qemu", node="pve1", name="docker01"),
    ),
    row("proxmox-vm-info", of(104, node="pve2"), native("guest_get", ON), looks.is_described),
    row(
        "proxmox-list-lxc",
        {"node": "pve3", "status": "stopped", "search": "dev"},
        native("guest_list", {"node": "node", "status": "status", "name": "search"}, type="ct"),
        looks.is_listed(kind="lxc", node="pve3", running=False),
    ),
    row("proxmox-lxc-info", of(204, node="pve3"), native("guest_get", ON), looks.is_described),
    row("proxmox-list-storage", {}, native("storage_list"), definitions_are_listed),
    row(
        "proxmox-storage-content",
        {"node": "pve1", "storage": "nas"},
        native("volume_list", {"node": "node", "storage": "storage"}),
        lists.content_is_listed,
    ),
    row("proxmox-list-bridges", {"node": "pve1"}, native("network_list", {"node": "node"}), bridges_are_listed),
    row(
        "proxmox-list-tasks",
        {"node": "pve3", "user": "carol@pve", "limit": 5},
        native("task_list", {"node": "node", "user": "user", "limit": "limit"}),
        lists.tasks_are_listed,
    ),
    row("proxmox-task-status", {"upid": lists.PAST_TASK}, native("task_get", {"task": "upid"}), lists.task_is_told),
    row(
        "proxmox-clone-vm",
        {
            "source_vmid": 108, "new_vmid": 340, "source_node": "pve1", "target_node": "pve2", "name": "vm340",
            "storage": "nas", "full": True, "dry_run": False,
        },
        native(
            "guest_clone",
            {
                "guest": "source_vmid", "vmid": "new_vmid", "node": "target_node", "name": "name",
                "storage": "storage", "full": "full", **DRY,
            },
        ),
        looks.is_cloned("qemu", source="source_vmid", new="new_vmid", name="vm340", scsi0=looks.holds("nas:")),
        prepare=preparing.disk_on_nas(108),
        without={**PATIENCE, "source_node": "the guest tells its node"},
    ),
    row(
        "proxmox-create-vm",
        {
            "node": "pve1", "vmid": 341, "name": "vm341", "cores": 2, "memory_mb": 2048, "disk_gb": 20,
            "storage": "tank", "bridge": "vmbr1", "iso": ISO, "dry_run": False,
        },
        native(
            "vm_create",
            {
                "node": "node", "vmid": "vmid", "name": "name", "cores": "cores", "memory": "memory_mb",
                "disks": Turned("disk_gb", lambda size: [f"{size}G"]), "storage": "storage", "iso": "iso",
                "networks": Turned("bridge", lambda bridge: [bridge]), **DRY,
            },
        ),
        looks.is_made("qemu", name="vm341", scsi0=looks.holds("tank:", "size=20G"), net0=looks.holds("bridge=vmbr1")),
        without=PATIENCE,
    ),
    row(
        "proxmox-delete-vm",
        of(107, purge=True, dry_run=False),
        native("guest_delete", {**ON, "purge": "purge", **DRY}),
        looks.is_gone,
        without=PATIENCE,
    ),
    row("proxmox-start-vm", of(107), power("start"), looks.is_running, without=PATIENCE),
    row(
        "proxmox-stop-vm",
        of(104),
        native("guest_stop", ON),
        looks.is_stopped,
        without={**PATIENCE, "hard": "guest_stop is hard, guest_power action=shutdown is not"},
    ),
    row("proxmox-reboot-vm", of(105), power("reboot"), looks.was_rebooted),
    row("proxmox-shutdown-vm", of(105, timeout=60), power("shutdown", timeout="timeout"), looks.is_stopped),
    row(
        "proxmox-migrate-vm",
        of(101, target_node="pve3", live=True),
        native(
            "guest_migrate",
            {**ON, "node": "target_node", "mode": Turned("live", lambda live: "live" if live else "offline")},
        ),
        looks.is_on("target_node"),
        without=PATIENCE,
    ),
    row(
        "proxmox-resize-vm-disk",
        of(104, disk="scsi0", grow_gb=4, dry_run=False),
        native(
            "disk_change", {**ON, "disk": "disk", "size": Turned("grow_gb", "+{}G".format), **DRY}, action="resize"
        ),
        looks.disk_is("scsi0", size="64G"),
        without=PATIENCE,
    ),
    row(
        "proxmox-configure-vm",
        of(107, params={"hotplug": "disk,network", "tablet": 0}, dry_run=False),
        native("guest_configure", {**ON, "options": "params", **DRY}),
        looks.config_has(hotplug="disk,network", tablet=0),
        without=PATIENCE,
    ),
    row(
        "proxmox-create-lxc",
        {
            "node": "pve2", "vmid": 342, "hostname": "ct342", "ostemplate": TEMPLATE, "cores": 2, "memory_mb": 1024,
            "rootfs_gb": 9, "storage": "tank", "bridge": "vmbr0", "net_ip": "10.9.0.9/24", "dry_run": False,
        },
        preparing.made_with_address,
        looks.is_made(
            "lxc", hostname="ct342", cores=2, memory=1024, rootfs=looks.holds("tank:", "size=9G"),
            net0=looks.holds("bridge=vmbr0", "ip=10.9.0.9/24"),
        ),
        uses=(
            "node", "vmid", "hostname", "ostemplate", "cores", "memory_mb", "rootfs_gb", "storage", "bridge",
            "net_ip", "dry_run",
        ),
        without=PATIENCE,
    ),
    row(
        "proxmox-delete-lxc",
        of(206, purge=True, dry_run=False),
        native("guest_delete", {**ON, "purge": "purge", **DRY}),
        looks.is_gone,
        without=PATIENCE,
    ),
    row("proxmox-start-lxc", of(206), power("start"), looks.is_running, without=PATIENCE),
    row("proxmox-stop-lxc", of(204), native("guest_stop", ON), looks.is_stopped, without=PATIENCE),
    row(
        "proxmox-configure-lxc",
        of(206, params={"cpuunits": 200, "timezone": "host"}, dry_run=False),
        native("guest_configure", {**ON, "options": "params", **DRY}),
        looks.config_has(cpuunits=200, timezone="host"),
        without=PATIENCE,
    ),
    row(
        "proxmox-cloudinit-set",
        of(107, ipconfig0="ip=10.9.0.8/24,gw=10.9.0.1", sshkeys=KEY, ciuser="me", cipassword="long-enough",
           dry_run=False),
        native("cloudinit_set", {**ON, **ADDRESSES, "ssh_keys": "sshkeys", "user": "ciuser",
                                 "password": "cipassword", **DRY}),
        cloud_init_is_set,
    ),
    row(
        "proxmox-vm-nic-add",
        of(102, bridge="vmbr1", model="virtio", vlan=40, dry_run=False),
        native("nic_set", {**ON, "bridge": "bridge", "model": "model", "vlan": "vlan", **DRY}),
        looks.config_has(net1=looks.holds("virtio=", "bridge=vmbr1", "tag=40")),
    ),
    row(
        "proxmox-vm-nic-remove",
        of(107, slot=0, dry_run=False),
        native("nic_remove", {**ON, "nic": "slot", **DRY}),
        looks.lacks("net0"),
    ),
    row("proxmox-vm-firewall-get", of(102), native("firewall_get", {"of": GUEST}, scope="guest"), firewall_is_told),
    row(
        "proxmox-vm-firewall-set",
        of(102, enable=True, rules=[RULE], dry_run=False),
        set_firewall,
        firewall_is_on,
        uses=("vmid", "name", "enable", "rules", "dry_run"),
    ),
    row(
        "proxmox-upload-iso",
        {"node": "pve2", "storage": "local", "file_path": "tiny.iso", "dry_run": False},
        upload,
        looks.is_uploaded("local:iso/tiny.iso", 20),
        uses=("node", "storage", "file_path", "dry_run"),
    ),
    row(
        "proxmox-upload-template",
        {"node": "pve2", "storage": "local", "file_path": "tiny.tar.zst", "dry_run": False},
        upload,
        looks.is_uploaded("local:vztmpl/tiny.tar.zst", 20),
        uses=("node", "storage", "file_path", "dry_run"),
    ),
    row("proxmox-template-vm", of(107, dry_run=False), native("guest_template", {**ON, **DRY}), looks.is_template),
    row("proxmox-list-snapshots", of(108), native("snapshot_list", ON), looks.snapshots_are_listed),
    row(
        "proxmox-create-snapshot",
        of(104, snapname="live", description="with memory", vmstate=True, dry_run=False),
        native(
            "snapshot_create",
            {**ON, "snapshot": "snapname", "description": "description", "ram": "vmstate", **DRY},
        ),
        looks.both(looks.has_snapshot, looks.snapshot_holds_memory),
    ),
    row(
        "proxmox-delete-snapshot",
        of(203, snapname="pre-migration", dry_run=False),
        native("snapshot_delete", {**ON, "snapshot": "snapname", **DRY}),
        looks.lacks_snapshot,
    ),
    row(
        "proxmox-rollback-snapshot",
        of(108, snapname="configured", dry_run=False),
        native("snapshot_rollback", {**ON, "snapshot": "snapname", **DRY}),
        looks.is_rolled_back,
        prepare=preparing.changed_since(108, "configured"),
        without=PATIENCE,
    ),
    row(
        "proxmox-backup-vm",
        of(105, mode="snapshot", compress="zstd", storage="nas", dry_run=False),
        native("backup_create", {**ON, "mode": "mode", "compress": "compress", "storage": "storage", **DRY}),
        looks.is_backed_up,
        without=PATIENCE,
    ),
    row(
        "proxmox-restore-vm",
        {"node": "pve1", "vmid": 108, "archive": OLD_BACKUP, "storage": "tank", "force": True, "dry_run": False},
        native(
            "backup_restore",
            {
                "node": "node", "vmid": "vmid", "backup": "archive", "storage": "storage", "overwrite": "force", **DRY,
            },
        ),
        looks.is_restored("qemu", over_old=True),
        without=PATIENCE,
    ),
    row(
        "proxmox-vm-metrics",
        of(102, timeframe="hour", cf="MAX"),
        native("metrics_get", {**ON, "timeframe": "timeframe", "cf": "cf"}),
        lists.usage_is_told,
    ),
    row(
        "proxmox-node-metrics",
        {"node": "pve1", "timeframe": "week", "cf": "AVERAGE"},
        native("metrics_get", {"node": "node", "timeframe": "timeframe", "cf": "cf"}),
        lists.usage_is_told,
    ),
    row("proxmox-list-pools", {}, native("access_list", kind="pools"), pools_are_listed),
    row(
        "proxmox-create-pool",
        {"poolid": "media", "comment": "films", "dry_run": False},
        native("pool_set", {**POOL, "comment": "comment"}),
        pool_is_made,
    ),
    row(
        "proxmox-delete-pool",
        {"poolid": "empty", "dry_run": False},
        native("access_delete", {"name": "poolid", **DRY}, kind="pool"),
        pool_is_gone,
        prepare=empty_pool,
    ),
    row(
        "proxmox-pool-add",
        of(205, poolid="lab", dry_run=False),
        native("pool_set", {**POOL, "add_guests": Turned("name", lambda name: [name])}),
        is_in_pool,
        without={"vmid": "the name does"},
    ),
    row(
        "proxmox-pool-remove",
        of(206, poolid="lab", dry_run=False),
        native("pool_set", {**POOL, "remove_guests": Turned("vmid", lambda vmid: [vmid])}),
        is_not_in_pool,
        without={"name": "the id does"},
    ),
    row("proxmox-list-users", {}, native("access_list", kind="users"), users_are_listed),
    row("proxmox-list-roles", {}, native("access_list", kind="roles"), roles_are_listed),
    row(
        "proxmox-assign-permission",
        {
            "path": "/vms/104", "roles": "PVEVMUser", "users": "bob@pve", "groups": "family", "propagate": False,
            "dry_run": False,
        },
        assign,
        permission_is_there,
        uses=("path", "roles", "users", "groups", "propagate", "dry_run"),
    ),
    row(
        "proxmox-wait-task",
        {"upid": lists.PAST_TASK},
        native("task_wait", {"task": "upid"}),
        lists.task_is_told,
        without=PATIENCE,
    ),
    row(
        "proxmox-guest-exec",
        {"vmid": 102, "node": "pve1", "command": "tee", "args": ["/srv/a b"], "input_data": "$(id) 'x'\n"},
        run_with_arguments,
        insides.echoed_its_input,
        uses=("vmid", "name", "command", "args", "input_data"),
    ),
    row(
        "proxmox-register-vm-as-host",
        {
            "vmid": 102, "node": "pve1", "ssh_user": "deploy", "ssh_private_key_path": "/home/me/.ssh/my key",
            "prefer_interface": "wg0",
        },
        native(
            "inventory_export",
            {
                "guest": GUEST, "user": "ssh_user", "key_file": "ssh_private_key_path",
                "interface": "prefer_interface",
            },
            format="ini",
        ),
        insides.is_a_host,
        prepare=with_a_tunnel,
    ),
]  # fmt: skip
