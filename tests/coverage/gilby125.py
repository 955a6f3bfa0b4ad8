"""gilby125's rows."""

from tests.coverage import insides, lists, looks, preparing
from tests.coverage.brynnjocelyn import ISO, OLD_BACKUP, TEMPLATE
from tests.coverage.rows import Done, Turned, native, row

CT_BACKUP = "pbs:backup/ct/203/2026-01-14T01:00:05Z"


def power(action: str):
    return native("guest_power", {"guest": "vmid"}, action=action)


def on(vmid: int, **given):
    """The parameters that name a guest, as strings, and more."""
    return {"node": NODE_OF[vmid], "vmid": str(vmid), **given}


NODE_OF = {102: "pve1", 103: "pve2", 104: "pve2", 105: "pve3", 106: "pve3", 107: "pve2", 108: "pve1", 9000: "pve1",
           202: "pve2", 203: "pve2", 204: "pve3", 205: "pve3", 206: "pve3", 9001: "pve1"}  # fmt: skip

STOP = native("guest_stop", {"guest": "vmid"})
DELETE = native("guest_delete", {"guest": "vmid"})
RESIZE = native("guest_configure", {"guest": "vmid", "memory": "memory", "cores": "cores"})
SNAPSHOT = native("snapshot_create", {"guest": "vmid", "snapshot": "snapname"})
SNAPSHOTS = native("snapshot_list", {"guest": "vmid"})
ROLLBACK = native("snapshot_rollback", {"guest": "vmid", "snapshot": "snapname"})
DROP_SNAPSHOT = native("snapshot_delete", {"guest": "vmid", "snapshot": "snapname"})
BACKUP = native("backup_create", {"guest": "vmid", "storage": "storage", "mode": "mode", "compress": "compress"})
RESTORE = native("backup_restore", {"node": "node", "vmid": "vmid", "backup": "archive", "storage": "storage"})
GROW = native("disk_change", {"guest": "vmid", "disk": "disk", "size": "size"}, action="resize")
MOVE = native("disk_change", {"guest": "vmid", "disk": "disk", "storage": "storage", "delete": "delete"}, action="move")
VM_NIC = {
    "guest": "vmid",
    "bridge": "bridge",
    "model": "model",
    "mac": "macaddr",
    "vlan": "vlan",
    "firewall": "firewall",
}
CT_NIC = {"guest": "vmid", "bridge": "bridge", "ip": "ip", "gateway": "gw", "firewall": "firewall"}
NO_NIC = native("nic_remove", {"guest": "vmid", "nic": "net"})


def keeps_its_mac(done: Done) -> None:
    mac = str(done.guest().snapshots["clean"].config["net0"]).split(",")[0].partition("=")[2]
    looks.has(done.guest().config, net0=looks.holds(mac, "bridge=vmbr1", "tag=30"))


ROWS = [
    row("proxmox_get_nodes", {}, native("node_list"), lists.nodes_are_listed),
    row("proxmox_get_node_status", {"node": "pve3"}, native("node_get", {"node": "node"}), lists.node_is_told),
    row(
        "proxmox_get_vms",
        {"node": "pve2", "type": "qemu"},
        native("guest_list", {"node": "node", "type": Turned("type", {"qemu": "vm", "lxc": "ct"}.get)}),
        looks.is_listed(kind="qemu", node="pve2"),
    ),
    row("proxmox_get_vm_status", on(204, type="lxc"), native("guest_get", {"guest": "vmid"}), looks.is_described),
    row("proxmox_get_storage", {"node": "pve3"}, native("storage_list", {"node": "node"}), lists.storages_are_listed),
    row("proxmox_get_cluster_status", {}, native("cluster_status"), lists.cluster_is_told),
    row(
        "proxmox_list_templates",
        {"node": "pve1", "storage": "local"},
        native("template_list", {"node": "node", "storage": "storage"}, show="present"),
        lists.templates_are_listed,
    ),
    row(
        "proxmox_create_lxc",
        {
            "node": "pve3", "vmid": "310", "ostemplate": TEMPLATE, "hostname": "ct310", "password": "long-enough",
            "memory": 768, "storage": "local-lvm", "rootfs": "12",
        },
        native(
            "container_create",
            {
                "node": "node", "vmid": "vmid", "template": "ostemplate", "hostname": "hostname",
                "password": "password", "memory": "memory", "storage": "storage",
                "rootfs": Turned("rootfs", "{}G".format),
            },
        ),
        looks.is_made("lxc", hostname="ct310", memory=768, rootfs=looks.holds("local-lvm:", "size=12G")),
    ),
    row(
        "proxmox_create_vm",
        {
            "node": "pve1", "vmid": "311", "name": "vm311", "memory": 1024, "cores": 2, "sockets": 1,
            "disk_size": "10G", "storage": "tank", "iso": ISO, "ostype": "l26", "net0": "virtio,bridge=vmbr1",
        },
        native(
            "vm_create",
            {
                "node": "node", "vmid": "vmid", "name": "name", "memory": "memory", "cores": "cores",
                "sockets": "sockets", "storage": "storage", "iso": "iso", "ostype": "ostype",
                "disks": Turned("disk_size", lambda size: [size]), "networks": Turned("net0", lambda net: [net]),
            },
        ),
        looks.is_made(
            "qemu", name="vm311", memory="1024", cores=2, scsi0=looks.holds("tank:vm-311", "size=10G"),
            net0=looks.holds("virtio=", "bridge=vmbr1"), ide2=looks.holds(ISO),
        ),
    ),
    row("proxmox_get_next_vmid", {}, native("api_call", method="GET", path="/cluster/nextid"), lists.next_id_is_free),
    row("proxmox_start_lxc", on(206), power("start"), looks.is_running),
    row("proxmox_start_vm", on(107), power("start"), looks.is_running),
    row("proxmox_stop_lxc", on(204), STOP, looks.is_stopped),
    row("proxmox_stop_vm", on(104), STOP, looks.is_stopped),
    row("proxmox_delete_lxc", on(206), DELETE, looks.is_gone),
    row("proxmox_delete_vm", on(107), DELETE, looks.is_gone),
    row("proxmox_reboot_lxc", on(205), power("reboot"), looks.was_rebooted),
    row("proxmox_reboot_vm", on(105), power("reboot"), looks.was_rebooted),
    row("proxmox_shutdown_lxc", on(205), power("shutdown"), looks.is_stopped),
    row("proxmox_shutdown_vm", on(105), power("shutdown"), looks.is_stopped),
    row("proxmox_pause_vm", on(104), power("suspend"), looks.is_paused),
    row("proxmox_resume_vm", on(106), power("resume"), looks.goes_on),
    row(
        "proxmox_clone_lxc",
        on(9001, newid="312", hostname="ct312"),
        native("guest_clone", {"guest": "vmid", "vmid": "newid", "name": "hostname"}),
        looks.is_cloned("lxc", linked=True, hostname="ct312"),
    ),
    row(
        "proxmox_clone_vm",
        on(9000, newid="313", name="vm313"),
        native("guest_clone", {"guest": "vmid", "vmid": "newid", "name": "name"}),
        looks.is_cloned("qemu", linked=True, name="vm313"),
    ),
    row("proxmox_resize_lxc", on(204, memory=2048, cores=3), RESIZE, looks.config_has(memory=2048, cores=3)),
    row("proxmox_resize_vm", on(107, memory=4096, cores=2), RESIZE, looks.config_has(memory="4096", cores=2)),
    row("proxmox_create_snapshot_lxc", on(204, snapname="s1"), SNAPSHOT, looks.has_snapshot),
    row("proxmox_create_snapshot_vm", on(107, snapname="s1"), SNAPSHOT, looks.has_snapshot),
    row("proxmox_list_snapshots_lxc", on(203), SNAPSHOTS, looks.snapshots_are_listed),
    row("proxmox_list_snapshots_vm", on(108), SNAPSHOTS, looks.snapshots_are_listed),
    row(
        "proxmox_rollback_snapshot_lxc",
        on(206, snapname="s1"),
        ROLLBACK,
        looks.is_rolled_back,
        prepare=preparing.changed_since(206, "s1"),
    ),
    row(
        "proxmox_rollback_snapshot_vm",
        on(108, snapname="configured"),
        ROLLBACK,
        looks.is_rolled_back,
        prepare=preparing.changed_since(108, "configured"),
    ),
    row("proxmox_delete_snapshot_lxc", on(203, snapname="pre-migration"), DROP_SNAPSHOT, looks.lacks_snapshot),
    row("proxmox_delete_snapshot_vm", on(108, snapname="clean"), DROP_SNAPSHOT, looks.lacks_snapshot),
    row(
        "proxmox_create_backup_lxc",
        on(204, storage="nas", mode="suspend", compress="gzip"),
        BACKUP,
        looks.is_backed_up,
    ),
    row(
        "proxmox_create_backup_vm",
        on(105, storage="local", mode="snapshot", compress="zstd"),
        BACKUP,
        looks.is_backed_up,
    ),
    row(
        "proxmox_list_backups",
        {"node": "pve1", "storage": "pbs"},
        native("backup_list", {"node": "node", "storage": "storage"}),
        lists.backups_are_listed,
    ),
    row(
        "proxmox_restore_backup_lxc",
        {"node": "pve2", "vmid": "314", "archive": CT_BACKUP, "storage": "tank"},
        RESTORE,
        looks.is_restored("lxc"),
    ),
    row(
        "proxmox_restore_backup_vm",
        {"node": "pve3", "vmid": "315", "archive": OLD_BACKUP, "storage": "local-lvm"},
        RESTORE,
        looks.is_restored("qemu"),
    ),
    row(
        "proxmox_delete_backup",
        {"node": "pve1", "storage": "pbs", "volume": CT_BACKUP},
        native("volume_delete", {"node": "node", "volume": "volume"}),
        looks.volume_is_gone(CT_BACKUP),
        without={"storage": "the volume's name tells its storage"},
    ),
    row(
        "proxmox_add_disk_vm",
        on(104, disk="scsi1", storage="local-lvm", size="10G"),
        native("disk_add", {"guest": "vmid", "disk": "disk", "storage": "storage", "size": "size"}),
        looks.disk_is("scsi1", storage="local-lvm", size="10G"),
    ),
    row(
        "proxmox_add_mountpoint_lxc",
        on(204, mp="mp0", storage="local-lvm", size="6"),
        native("disk_add", {"guest": "vmid", "disk": "mp", "storage": "storage", "size": "size"}, path="/mnt/mp0"),
        looks.disk_is("mp0", storage="local-lvm", size="6G"),
    ),
    row("proxmox_resize_disk_vm", on(104, disk="scsi0", size="+5G"), GROW, looks.disk_is("scsi0", size="65G")),
    row("proxmox_resize_disk_lxc", on(204, disk="rootfs", size="20G"), GROW, looks.disk_is("rootfs", size="20G")),
    row(
        "proxmox_remove_disk_vm",
        on(107, disk="scsi1"),
        native("disk_change", {"guest": "vmid", "disk": "disk"}, action="detach"),
        looks.is_detached("scsi1"),
        prepare=preparing.with_second_disk(107),
    ),
    row(
        "proxmox_remove_mountpoint_lxc",
        on(206, mp="mp0"),
        native("disk_change", {"guest": "vmid", "disk": "mp"}, action="detach"),
        looks.is_detached("mp0"),
        prepare=preparing.with_second_disk(206),
    ),
    row(
        "proxmox_move_disk_vm",
        on(104, disk="scsi0", storage="tank", delete=True),
        MOVE,
        looks.disk_was_moved("scsi0"),
    ),
    row(
        "proxmox_move_disk_lxc",
        on(206, disk="rootfs", storage="nas", delete=True),
        MOVE,
        looks.disk_was_moved("rootfs"),
        prepare=preparing.nas_takes_containers,
    ),
    row(
        "proxmox_add_network_vm",
        on(102, net="net1", bridge="vmbr1", model="e1000", macaddr="BC:24:11:00:00:07", vlan=20, firewall=True),
        native("nic_set", {**VM_NIC, "nic": "net"}),
        looks.config_has(net1=looks.holds("e1000=BC:24:11:00:00:07", "bridge=vmbr1", "tag=20", "firewall=1")),
    ),
    row(
        "proxmox_add_network_lxc",
        on(204, net="net1", bridge="vmbr0", ip="10.9.0.5/24", gw="10.9.0.1", firewall=True),
        native("nic_set", {**CT_NIC, "nic": "net"}),
        looks.config_has(net1=looks.holds("bridge=vmbr0", "ip=10.9.0.5/24", "gw=10.9.0.1", "firewall=1")),
    ),
    row(
        "proxmox_update_network_vm",
        on(108, net="net0", bridge="vmbr1", vlan=30),
        native("nic_set", {**VM_NIC, "nic": "net"}),
        keeps_its_mac,
    ),
    row(
        "proxmox_update_network_lxc",
        on(206, net="net0", ip="10.9.0.6/24", gw="10.9.0.1"),
        native("nic_set", {**CT_NIC, "nic": "net"}),
        looks.config_has(net0=looks.holds("bridge=vmbr0", "hwaddr=", "ip=10.9.0.6/24", "gw=10.9.0.1")),
    ),
    row("proxmox_remove_network_vm", on(107, net="net0"), NO_NIC, looks.lacks("net0")),
    row("proxmox_remove_network_lxc", on(206, net="net0"), NO_NIC, looks.lacks("net0")),
    row(
        "proxmox_execute_vm_command",
        {
            "node": "pve1", "vmid": "102", "type": "qemu", "wait": True,
            "command": "echo made > /srv/mark; hostname; echo oh >&2; exit 3",
        },
        native("guest_exec", {"guest": "vmid", "command": "command"}),
        insides.has_run,
    ),
]  # fmt: skip
