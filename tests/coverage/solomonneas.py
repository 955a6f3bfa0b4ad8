"""solomonneas' rows."""

from quorate.sim.world import World
from tests.coverage import insides, lists, looks, preparing
from tests.coverage.brynnjocelyn import ISO, KEY, TEMPLATE
from tests.coverage.rows import Done, Turned, native, row

GET = native("guest_get", {"guest": "vmid"})
SNAPSHOTS = native("snapshot_list", {"guest": "vmid"})
STOP = native("guest_stop", {"guest": "vmid"})
SURE = {"confirm": True, "destructive": True}
FILE = {"guest": "vmid", "path": "path"}
SERVICE = {"guest": "vmid", "service": "service"}
CRON = {"vmid": 102, "service": "cron", "confirm": True}


def on(path: str):
    return {"vmid": 102, "path": path, "confirm": True}


def only(name: str):
    return lambda value: {name: value}


def version_and_node_are_told(done: Done) -> None:
    assert done.facts["pve"].split("/")[1] == done.world.version
    assert done.facts["kernel"] == done.world.nodes["pve1"].kernel


def is_fit_for_cloning(done: Done) -> None:
    """What the other server's preflight looks at stands in one answer: agent, addresses, pass-through, disks, state."""
    guest = done.guest()
    assert done.facts["hardware"]["agent"] == guest.config["agent"] == "1"
    assert done.facts["status"] == guest.status == "stopped"
    assert sum(int(disk.partition("size=")[2].rstrip("G")) for disk in done.facts["disks"].values()) == 8
    assert not [key for key in guest.config if key.startswith(("hostpci", "usb", "args"))]
    assert "args" not in str(done.facts)


async def rights_are_told(done: Done) -> None:
    held = (await done.get("/access/permissions", userid="alice@pve!ci", path="/vms/108"))["/vms/108"]
    assert "VM.PowerMgmt" in held
    assert "VM.Clone" not in held
    assert done.facts["who"] == "alice@pve!ci"
    assert done.facts["allowed"] is False
    lacking = {entry["path"]: entry["privileges"] for entry in done.facts["missing"]}
    assert "VM.Clone" in lacking["/vms/108"]
    assert "VM.PowerMgmt" not in lacking["/vms/108"]


async def both_kinds_of_template(done: Done) -> None:
    await done.call("template_list", node=done.given["node"], storage=done.given["storage"], show="present")
    lists.templates_are_listed(done)
    await done.call("guest_list", node=done.given["node"], template=True)


def vm_templates_are_listed(done: Done) -> None:
    assert done.given["kind"] == "all"
    looks.is_listed(template=True, node="pve1")(done)


def addresses_are_told(done: Done) -> None:
    address = done.guest().addresses[0]
    assert done.facts["usable"] == [address.ip]
    assert done.facts["interfaces"][address.interface].startswith(f"{address.ip}/{address.prefix}, ")


def two_smoke_guests(world: World) -> None:
    world.guests[107].config["name"] = "mcp-smoke-1"
    world.guests[206].config["hostname"] = "mcp-smoke-2"
    world.access.pools["lab"].vms |= {107, 206}
    world.access.changed()
    for vmid in (107, 206):
        world.guests[vmid].touch()


async def clean_up(done: Done) -> None:
    """First what would go, then each of it; there is no tool that deletes many guests at once."""
    given = done.given
    await done.call("guest_list", pool=given["pool"], name=f"{given['name_prefix']}*")
    for found in done.rows:
        await done.call("guest_delete", guest=found["vmid"], stop=given["force"], dry_run=given["dry_run"])


def smoke_guests_are_gone(done: Done) -> None:
    assert set(done.runs_before) - set(done.world.guests) == {107, 206}


ROWS = [
    row("proxmox_status", {}, native("node_get", node="pve1"), version_and_node_are_told),
    row("proxmox_list_containers", {}, native("guest_list", type="ct"), looks.is_listed(kind="lxc")),
    row("proxmox_list_vms", {}, native("guest_list", type="vm"), looks.is_listed(kind="qemu")),
    row("proxmox_get_resource", {"vmid": 103}, GET, looks.is_described),
    row("proxmox_get_vm_config", {"vmid": 104}, GET, looks.is_described),
    row("proxmox_get_container_config", {"vmid": 203}, GET, looks.is_described),
    row(
        "proxmox_validate_qemu_smoke_source",
        {"vmid": 108},
        native("guest_get", {"guest": "vmid"}, detail=True),
        is_fit_for_cloning,
        without={
            "max_disk_gb": "the sizes are in the answer",
            "allow_running": "the state is in the answer, and guest_clone takes running guests, too",
        },
    ),
    row(
        "proxmox_audit_permissions",
        {
            "userid": "alice@pve!ci", "paths": ["/nodes/pve1"], "source_vmid": 108,
            "required_privileges": ["VM.Clone", "VM.PowerMgmt"],
        },
        native(
            "permission_audit",
            {
                "who": "userid", "paths": "paths", "guests": Turned("source_vmid", lambda vmid: [vmid]),
                "privileges": "required_privileges",
            },
        ),
        rights_are_told,
        without={
            "pool": "is one of the paths", "template_storage": "is one of the paths",
            "root_storage": "is one of the paths", "target_vmid": "is one of the guests or paths",
        },
    ),
    row(
        "proxmox_recent_tasks",
        {"limit": 3, "vmid": 102},
        native("task_list", {"limit": "limit", "guest": "vmid"}),
        lists.tasks_are_listed,
    ),
    row(
        "proxmox_list_backups",
        {"node": "pve1", "vmid": 102},
        native("backup_list", {"node": "node", "guest": "vmid"}),
        lists.backups_are_listed,
    ),
    row(
        "proxmox_resource_usage",
        {"vmid": 104, "timeframe": "day"},
        native("metrics_get", {"guest": "vmid", "timeframe": "timeframe"}),
        lists.usage_is_told,
    ),
    row(
        "proxmox_list_templates",
        {"node": "pve1", "storage": "local", "kind": "all"},
        both_kinds_of_template,
        vm_templates_are_listed,
        uses=("node", "storage", "kind"),
    ),
    row("proxmox_list_storage", {"node": "pve3"}, native("storage_list", {"node": "node"}), lists.storages_are_listed),
    row("proxmox_list_snapshots", {"vmid": 108}, SNAPSHOTS, looks.snapshots_are_listed),
    row("proxmox_guest_network", {"vmid": 102}, native("guest_network", {"guest": "vmid"}), addresses_are_told),
    row("proxmox_wait_task", {"upid": lists.PAST_TASK}, native("task_wait", {"task": "upid"}), lists.task_is_told),
    row("proxmox_next_vmid", {}, native("api_call", method="GET", path="/cluster/nextid"), lists.next_id_is_free),
    row(
        "proxmox_list_pool_resources",
        {"pool": "lab"},
        native("access_list", {"name": "pool"}, kind="pools"),
        lists.pool_is_listed,
    ),
    row(
        "proxmox_start_resource",
        {"vmid": 206, "confirm": True},
        native("guest_power", {"guest": "vmid"}, action="start"),
        looks.is_running,
    ),
    row(
        "proxmox_stop_resource",
        {"vmid": 204, "confirm": True, "timeoutSeconds": 40},
        native("guest_power", {"guest": "vmid", "timeout": "timeoutSeconds"}, action="shutdown"),
        looks.is_stopped,
    ),
    row(
        "proxmox_reboot_resource",
        {"vmid": 105, "confirm": True},
        native("guest_power", {"guest": "vmid"}, action="reboot"),
        looks.was_rebooted,
    ),
    row(
        "proxmox_snapshot_resource",
        {"vmid": 107, "snapname": "before", "description": "as it was", "confirm": True},
        native("snapshot_create", {"guest": "vmid", "snapshot": "snapname", "description": "description"}),
        looks.has_snapshot,
    ),
    row(
        "proxmox_rollback_snapshot",
        {"vmid": 108, "snapname": "configured", "start": True, **SURE},
        native("snapshot_rollback", {"guest": "vmid", "snapshot": "snapname", "start": "start"}),
        looks.both(looks.is_rolled_back, looks.is_running),
        prepare=preparing.changed_since(108, "configured"),
    ),
    row(
        "proxmox_run_backup",
        {"vmid": 204, "storage": "nas", "mode": "stop", "confirm": True},
        native("backup_create", {"guest": "vmid", "storage": "storage", "mode": "mode"}),
        looks.is_backed_up,
    ),
    row(
        "proxmox_create_container",
        {
            "vmid": 330, "hostname": "ct330", "ostemplate": TEMPLATE, "node": "pve2", "storage": "tank",
            "memory": 1024, "cores": 2, "rootfs_size": "10", "net": "name=eth0,bridge=vmbr0,ip=dhcp", "start": True,
            "pool": "lab", "onboot": True, "unprivileged": True, "protection": True, "features": "nesting=1",
            "description": "a try", "tags": "lab;try", "password": "long-enough", "ssh_public_keys": KEY,
            "confirm": True,
        },
        native(
            "container_create",
            {
                "vmid": "vmid", "hostname": "hostname", "template": "ostemplate", "node": "node",
                "storage": "storage", "memory": "memory", "cores": "cores",
                "rootfs": Turned("rootfs_size", "{}G".format), "networks": Turned("net", lambda net: [net]),
                "start": "start", "pool": "pool", "onboot": "onboot", "unprivileged": "unprivileged",
                "options": Turned("protection", only("protection")), "features": "features",
                "description": "description", "tags": Turned("tags", lambda tags: tags.split(";")),
                "password": "password", "ssh_keys": Turned("ssh_public_keys", str.splitlines),
            },
        ),
        looks.both(
            looks.is_made(
                "lxc", hostname="ct330", memory=1024, cores=2, rootfs=looks.holds("tank:", "size=10G"),
                net0=looks.holds("name=eth0", "bridge=vmbr0", "ip=dhcp"), onboot=1, unprivileged=1, protection=1,
                features="nesting=1", tags="lab;try",
            ),
            looks.runs_in_pool,
        ),
    ),
    row(
        "proxmox_create_vm",
        {
            "vmid": 331, "name": "vm331", "node": "pve1", "memory": 2048, "cores": 2, "iso": ISO, "disk_size": "12G",
            "storage": "local-lvm", "net": "virtio,bridge=vmbr0", "start": True, "pool": "lab", "onboot": True,
            "protection": True, "agent": True, "bios": "ovmf", "machine": "q35", "cpu": "host", "sockets": 1,
            "description": "a try", "tags": "lab;try", "ciuser": "me", "cipassword": "long-enough", "sshkeys": KEY,
            "ipconfig0": "ip=10.9.0.7/24,gw=10.9.0.1", "nameserver": "1.1.1.1", "searchdomain": "home.lan",
            "scsihw": "virtio-scsi-pci", "boot": "order=scsi0", "confirm": True,
        },
        preparing.made_with_cloud_init,
        looks.both(
            looks.is_made(
                "qemu", name="vm331", memory="2048", cores=2, scsi0=looks.holds("local-lvm:", "size=12G"),
                net0=looks.holds("bridge=vmbr0"), onboot=1, protection=1, bios="ovmf", machine=looks.holds("q35"),
                cpu=looks.holds("host"), tags="lab;try", ciuser="me", ipconfig0="ip=10.9.0.7/24,gw=10.9.0.1",
                nameserver="1.1.1.1", searchdomain="home.lan", scsihw="virtio-scsi-pci", boot="order=scsi0",
                efidisk0=looks.holds("local-lvm:"),
            ),
            looks.runs_in_pool,
        ),
        uses=preparing.CLOUD_INIT_VM,
    ),
    row(
        "proxmox_clone_resource",
        {
            "source_vmid": 108, "new_vmid": 332, "name": "vm332", "full": True, "storage": "tank",
            "target_node": "pve1", "pool": "lab", "snapname": "clean", "description": "from clean", "confirm": True,
        },
        native(
            "guest_clone",
            {
                "guest": "source_vmid", "vmid": "new_vmid", "name": "name", "full": "full", "storage": "storage",
                "node": "target_node", "pool": "pool", "snapshot": "snapname", "description": "description",
            },
        ),
        looks.is_cloned("qemu", source="source_vmid", new="new_vmid", name="vm332", scsi0=looks.holds("tank:")),
    ),
    row(
        "proxmox_destroy_resource",
        {"vmid": 205, "purge": True, "force": True, **SURE},
        native("guest_delete", {"guest": "vmid", "purge": "purge", "stop": "force"}),
        looks.is_gone,
    ),
    row(
        "proxmox_cleanup_smoke_resources",
        {"pool": "lab", "name_prefix": "mcp-smoke-", "force": True, "dry_run": False, **SURE},
        clean_up,
        smoke_guests_are_gone,
        prepare=two_smoke_guests,
        uses=("pool", "name_prefix", "force", "dry_run"),
    ),
    row(
        "proxmox_delete_snapshot",
        {"vmid": 203, "snapname": "pre-migration", **SURE},
        native("snapshot_delete", {"guest": "vmid", "snapshot": "snapname"}),
        looks.lacks_snapshot,
    ),
    row("proxmox_force_stop_resource", {"vmid": 104, **SURE}, STOP, looks.is_stopped),
    row("proxmox_get_task_status", {"upid": lists.PAST_TASK}, native("task_get", {"task": "upid"}), lists.task_is_told),
    row(
        "proxmox_get_task_log",
        {"upid": lists.PAST_TASK, "limit": 5},
        native("task_get", {"task": "upid", "log_lines": "limit"}),
        lists.task_log_is_told,
        without={"start": "the last lines are what one wants to see"},
    ),
    row("proxmox_read_file", on("/etc/hosts"), native("guest_file_read", FILE), insides.is_read),
    row(
        "proxmox_exec",
        {
            "vmid": 102, "timeout": 20, "confirm": True,
            "command": "echo made > /srv/mark; hostname; echo oh >&2; exit 3",
        },
        native("guest_exec", {"guest": "vmid", "command": "command", "timeout": "timeout"}),
        insides.has_run,
    ),
    row(
        "proxmox_write_file",
        {**on("/srv/new/app.conf"), "content": "a = 'b'\n"},
        native("guest_file_write", {**FILE, "content": "content"}, parents=True),
        insides.is_written,
    ),
    row("proxmox_stat_path", on("/etc/passwd"), native("guest_path_stat", FILE), insides.is_described),
    row("proxmox_list_directory", on("/etc"), native("guest_dir_list", FILE), insides.is_listed),
    row("proxmox_service_status", CRON, native("guest_service", SERVICE), insides.service_is_told),
    row(
        "proxmox_service_start",
        CRON,
        native("guest_service_control", SERVICE, action="start"),
        insides.service_runs,
        prepare=insides.stopped_service(102, "cron"),
    ),
    row(
        "proxmox_service_stop",
        CRON,
        native("guest_service_control", SERVICE, action="stop"),
        insides.service_is_stopped,
    ),
    row(
        "proxmox_service_restart",
        CRON,
        native("guest_service_control", SERVICE, action="restart"),
        insides.service_was_restarted,
    ),
]  # fmt: skip
