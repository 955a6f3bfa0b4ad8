"""gilby125's rows."""

from tests.rigs.compat_session import Done, Row
from tests.surfaces.compat.rows import checks, setups
from tests.surfaces.compat.rows.brynnjocelyn import ISO, OLD_BACKUP, TEMPLATE

CT_BACKUP = "pbs:backup/ct/203/2026-01-14T01:00:05Z"


def on(vmid: int, **arguments):
    """The parameters that name a guest, as strings, and more."""
    return {"node": NODE_OF[vmid], "vmid": str(vmid), **arguments}


NODE_OF = {102: "pve1", 103: "pve2", 104: "pve2", 105: "pve3", 106: "pve3", 107: "pve2", 108: "pve1", 9000: "pve1",
           202: "pve2", 203: "pve2", 204: "pve3", 205: "pve3", 206: "pve3", 9001: "pve1"}  # fmt: skip


def keeps_its_mac(done: Done) -> None:
    mac = str(done.guest().snapshots["clean"].config["net0"]).split(",")[0].partition("=")[2]
    checks.has(done.guest().config, net0=checks.holds(mac, "bridge=vmbr1", "tag=30"))


ROWS = [
    Row(
        "proxmox_create_lxc",
        {
            "node": "pve3",
            "vmid": "310",
            "ostemplate": TEMPLATE,
            "hostname": "ct310",
            "password": "long-enough",
            "memory": 768,
            "storage": "local-lvm",
            "rootfs": "12",
        },
        checks.is_made("lxc", hostname="ct310", memory=768, rootfs=checks.holds("local-lvm:", "size=12G")),
    ),
    Row(
        "proxmox_create_vm",
        {
            "node": "pve1",
            "vmid": "311",
            "name": "vm311",
            "memory": 1024,
            "cores": 2,
            "sockets": 1,
            "disk_size": "10G",
            "storage": "tank",
            "iso": ISO,
            "ostype": "l26",
            "net0": "virtio,bridge=vmbr1",
        },
        checks.is_made(
            "qemu",
            name="vm311",
            memory="1024",
            cores=2,
            scsi0=checks.holds("tank:vm-311", "size=10G"),
            net0=checks.holds("virtio=", "bridge=vmbr1"),
            ide2=checks.holds(ISO),
        ),
    ),
    Row("proxmox_start_lxc", on(206), checks.is_running),
    Row("proxmox_start_vm", on(107), checks.is_running),
    Row("proxmox_stop_lxc", on(204), checks.is_stopped),
    Row("proxmox_stop_vm", on(104), checks.is_stopped),
    Row("proxmox_delete_lxc", on(206), checks.is_gone),
    Row("proxmox_delete_vm", on(107), checks.is_gone),
    Row("proxmox_reboot_lxc", on(205), checks.was_rebooted),
    Row("proxmox_reboot_vm", on(105), checks.was_rebooted),
    Row("proxmox_shutdown_lxc", on(205), checks.is_stopped),
    Row("proxmox_shutdown_vm", on(105), checks.is_stopped),
    Row("proxmox_pause_vm", on(104), checks.is_paused),
    Row("proxmox_resume_vm", on(106), checks.goes_on),
    Row(
        "proxmox_clone_lxc",
        on(9001, newid="312", hostname="ct312"),
        checks.is_cloned("lxc", linked=True, hostname="ct312"),
    ),
    Row("proxmox_clone_vm", on(9000, newid="313", name="vm313"), checks.is_cloned("qemu", linked=True, name="vm313")),
    Row("proxmox_resize_lxc", on(204, memory=2048, cores=3), checks.config_has(memory=2048, cores=3)),
    Row("proxmox_resize_vm", on(107, memory=4096, cores=2), checks.config_has(memory="4096", cores=2)),
    Row("proxmox_create_snapshot_lxc", on(204, snapname="s1"), checks.has_snapshot),
    Row("proxmox_create_snapshot_vm", on(107, snapname="s1"), checks.has_snapshot),
    Row(
        "proxmox_rollback_snapshot_lxc",
        on(206, snapname="s1"),
        checks.is_rolled_back,
        prepare=setups.changed_since(206, "s1"),
    ),
    Row(
        "proxmox_rollback_snapshot_vm",
        on(108, snapname="configured"),
        checks.is_rolled_back,
        prepare=setups.changed_since(108, "configured"),
    ),
    Row("proxmox_delete_snapshot_lxc", on(203, snapname="pre-migration"), checks.lacks_snapshot),
    Row("proxmox_delete_snapshot_vm", on(108, snapname="clean"), checks.lacks_snapshot),
    Row("proxmox_create_backup_lxc", on(204, storage="nas", mode="suspend", compress="gzip"), checks.is_backed_up),
    Row("proxmox_create_backup_vm", on(105, storage="local", mode="snapshot", compress="zstd"), checks.is_backed_up),
    Row(
        "proxmox_restore_backup_lxc",
        {"node": "pve2", "vmid": "314", "archive": CT_BACKUP, "storage": "tank"},
        checks.is_restored("lxc"),
    ),
    Row(
        "proxmox_restore_backup_vm",
        {"node": "pve3", "vmid": "315", "archive": OLD_BACKUP, "storage": "local-lvm"},
        checks.is_restored("qemu"),
    ),
    Row(
        "proxmox_delete_backup",
        {"node": "pve1", "storage": "pbs", "volume": CT_BACKUP},
        checks.volume_is_gone(CT_BACKUP),
    ),
    Row(
        "proxmox_add_disk_vm",
        on(104, disk="scsi1", storage="local-lvm", size="10G"),
        checks.disk_is("scsi1", storage="local-lvm", size="10G"),
    ),
    Row(
        "proxmox_add_mountpoint_lxc",
        on(204, mp="mp0", storage="local-lvm", size="6"),
        checks.disk_is("mp0", storage="local-lvm", size="6G"),
    ),
    Row("proxmox_resize_disk_vm", on(104, disk="scsi0", size="+5G"), checks.disk_is("scsi0", size="65G")),
    Row("proxmox_resize_disk_lxc", on(204, disk="rootfs", size="20G"), checks.disk_is("rootfs", size="20G")),
    Row(
        "proxmox_remove_disk_vm",
        on(107, disk="scsi1"),
        checks.is_detached("scsi1"),
        prepare=setups.with_second_disk(107),
    ),
    Row(
        "proxmox_remove_mountpoint_lxc",
        on(206, mp="mp0"),
        checks.is_detached("mp0"),
        prepare=setups.with_second_disk(206),
    ),
    Row("proxmox_move_disk_vm", on(104, disk="scsi0", storage="tank", delete=True), checks.disk_was_moved("scsi0")),
    Row(
        "proxmox_move_disk_lxc",
        on(206, disk="rootfs", storage="nas", delete=True),
        checks.disk_was_moved("rootfs"),
        prepare=setups.nas_takes_containers,
    ),
    Row(
        "proxmox_add_network_vm",
        on(102, net="net1", bridge="vmbr1", model="e1000", macaddr="BC:24:11:00:00:07", vlan=20, firewall=True),
        checks.config_has(net1=checks.holds("e1000=BC:24:11:00:00:07", "bridge=vmbr1", "tag=20", "firewall=1")),
    ),
    Row(
        "proxmox_add_network_lxc",
        on(204, net="net1", bridge="vmbr0", ip="10.9.0.5/24", gw="10.9.0.1", firewall=True),
        checks.config_has(net1=checks.holds("bridge=vmbr0", "ip=10.9.0.5/24", "gw=10.9.0.1", "firewall=1")),
    ),
    Row("proxmox_update_network_vm", on(108, net="net0", bridge="vmbr1", vlan=30), keeps_its_mac),
    Row(
        "proxmox_update_network_lxc",
        on(206, net="net0", ip="10.9.0.6/24", gw="10.9.0.1"),
        checks.config_has(net0=checks.holds("bridge=vmbr0", "hwaddr=", "ip=10.9.0.6/24", "gw=10.9.0.1")),
    ),
]
