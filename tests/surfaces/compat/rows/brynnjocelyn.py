"""brynnjocelyn's rows."""

import base64

from tests.rigs.compat_session import Row
from tests.surfaces.compat.rows import checks

TEMPLATE = "local:vztmpl/debian-13-standard_13.1-2_amd64.tar.zst"
ISO = "local:iso/debian-13.1.0-amd64-netinst.iso"
OLD_BACKUP = "nas:backup/vzdump-qemu-109-2025_12_31-02_00_01.vma.zst"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHyG3n8sBvSm2pAcyRw7Yb0o2k4v1Pb0mP9Jq6c1xXyZ me@home"


ROWS = [
    Row("start_vm", {"node": "pve2", "vmid": 107}, checks.is_running),
    Row("stop_vm", {"node": "pve2", "vmid": 104}, checks.is_stopped),
    Row("reboot_vm", {"node": "pve2", "vmid": 104, "timeout": 60}, checks.was_rebooted),
    Row("shutdown_vm", {"node": "pve3", "vmid": 105, "timeout": 60}, checks.is_stopped),
    Row(
        "create_vm",
        {
            "node": "pve2",
            "vmid": 300,
            "name": "new-vm",
            "memory": 4096,
            "cores": 2,
            "sockets": 2,
            "ostype": "l26",
            "iso": "nas:iso/virtio-win-0.1.271.iso",
            "storage": "local-lvm",
            "diskSize": "16G",
        },
        checks.is_made(
            "qemu",
            name="new-vm",
            memory="4096",
            cores=2,
            sockets=2,
            ostype="l26",
            scsi0=checks.holds("local-lvm:", "size=16G"),
            ide2=checks.holds("virtio-win"),
        ),
    ),
    Row(
        "clone_vm",
        {"node": "pve1", "vmid": 108, "newid": 301, "name": "copy", "full": True, "storage": "tank"},
        checks.is_cloned("qemu", name="copy", scsi0=checks.holds("tank:")),
    ),
    Row("delete_vm", {"node": "pve2", "vmid": 107, "purge": True}, checks.is_gone),
    Row("migrate_vm", {"node": "pve1", "vmid": 101, "target": "pve2", "online": True}, checks.is_on("target")),
    Row("start_container", {"node": "pve3", "vmid": 206}, checks.is_running),
    Row("stop_container", {"node": "pve3", "vmid": 204}, checks.is_stopped),
    Row(
        "create_container",
        {
            "node": "pve1",
            "vmid": 302,
            "ostemplate": TEMPLATE,
            "hostname": "new-ct",
            "memory": 1024,
            "storage": "tank",
            "password": "very-secret",
            "ssh_public_keys": KEY,
        },
        checks.is_made("lxc", hostname="new-ct", memory=1024, rootfs=checks.holds("tank:subvol-302")),
    ),
    Row(
        "upload_file",
        {
            "node": "pve2",
            "storage": "local",
            "filename": "tiny.iso",
            "content": base64.b64encode(b"not much of an image").decode(),
            "contentType": "iso",
        },
        checks.is_uploaded("local:iso/tiny.iso", 20),
    ),
    Row(
        "create_backup",
        {"node": "pve2", "vmid": 203, "storage": "nas", "mode": "snapshot", "compress": "0", "notes": "by hand"},
        checks.is_backed_up,
    ),
    Row(
        "restore_backup",
        {"node": "pve1", "storage": "nas", "volid": OLD_BACKUP, "vmid": 108, "force": True},
        checks.is_restored("qemu", over_old=True),
    ),
]
