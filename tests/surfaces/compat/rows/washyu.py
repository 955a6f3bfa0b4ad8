"""washyu's rows. Those about Proxmox VE are here."""

from tests.rigs.compat_session import Row
from tests.surfaces.compat.rows import checks, washyu_containers, washyu_hosts, washyu_services
from tests.surfaces.compat.rows.brynnjocelyn import ISO, TEMPLATE

PROXMOX = [
    Row(
        "create_proxmox_lxc",
        {
            "node": "pve2",
            "vmid": 320,
            "hostname": "ct320",
            "ostemplate": TEMPLATE,
            "storage": "local-lvm",
            "memory": 512,
            "cores": 1,
            "rootfs_size": 9,
            "password": "long-enough",
            "start": True,
        },
        checks.is_made("lxc", hostname="ct320", rootfs=checks.holds("local-lvm:", "size=9G")),
    ),
    Row(
        "create_proxmox_vm",
        {
            "node": "pve1",
            "vmid": 321,
            "name": "vm321",
            "memory": 2048,
            "cores": 2,
            "disk_size": 20,
            "storage": "local-lvm",
            "iso": ISO,
            "start": True,
        },
        checks.is_made("qemu", name="vm321", scsi0=checks.holds("local-lvm:", "size=20G"), ide2=checks.holds(ISO)),
    ),
    Row(
        "clone_proxmox_vm",
        {"node": "pve3", "vmid": 206, "new_vmid": 322, "name": "ct322", "full": True, "vm_type": "lxc"},
        checks.is_cloned("lxc", new="new_vmid", hostname="ct322"),
    ),
    Row("delete_proxmox_vm", {"node": "pve3", "vmid": 205, "vm_type": "lxc", "purge": True}, checks.is_gone),
]

ROWS = [*PROXMOX, *washyu_hosts.ROWS, *washyu_containers.ROWS, *washyu_services.ROWS]
