"""brynnjocelyn's rows."""

import base64

from tests.coverage import lists, looks
from tests.coverage.rows import Done, Turned, native, row

TEMPLATE = "local:vztmpl/debian-13-standard_13.1-2_amd64.tar.zst"
ISO = "local:iso/debian-13.1.0-amd64-netinst.iso"
OLD_BACKUP = "nas:backup/vzdump-qemu-109-2025_12_31-02_00_01.vma.zst"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHyG3n8sBvSm2pAcyRw7Yb0o2k4v1Pb0mP9Jq6c1xXyZ me@home"

HARD = {"forceStop": "guest_stop is hard by itself", "timeout": "a hard stop takes no time"}
SOFT = {"forceStop": "never from asking to cutting the power in one call: guest_stop is the other risk"}


def version_is_told(done: Done) -> None:
    assert done.facts["data"]["version"] == done.world.version


GET = native("guest_get", {"guest": "vmid"})
STOP = native("guest_stop", {"guest": "vmid"})

ROWS = [
    row("get_cluster_status", {}, native("cluster_status"), lists.cluster_is_told),
    row("list_nodes", {}, native("node_list"), lists.nodes_are_listed),
    row("get_node_status", {"node": "pve2"}, native("node_get", {"node": "node"}), lists.node_is_told),
    row("get_version", {}, native("api_call", method="GET", path="/version"), version_is_told),
    row(
        "list_vms",
        {"node": "pve1"},
        native("guest_list", {"node": "node"}, type="vm"),
        looks.is_listed(kind="qemu", node="pve1"),
    ),
    row("get_vm_status", {"node": "pve2", "vmid": 104}, GET, looks.is_described),
    row("get_vm_config", {"node": "pve1", "vmid": 102}, GET, looks.is_described),
    row(
        "start_vm",
        {"node": "pve2", "vmid": 107},
        native("guest_power", {"guest": "vmid"}, action="start"),
        looks.is_running,
        without={"timeout": "the start is followed to its end"},
    ),
    row("stop_vm", {"node": "pve2", "vmid": 104}, STOP, looks.is_stopped, without=HARD),
    row(
        "reboot_vm",
        {"node": "pve2", "vmid": 104, "timeout": 60},
        native("guest_power", {"guest": "vmid", "timeout": "timeout"}, action="reboot"),
        looks.was_rebooted,
    ),
    row(
        "shutdown_vm",
        {"node": "pve3", "vmid": 105, "timeout": 60},
        native("guest_power", {"guest": "vmid", "timeout": "timeout"}, action="shutdown"),
        looks.is_stopped,
        without=SOFT,
    ),
    row(
        "create_vm",
        {
            "node": "pve2", "vmid": 300, "name": "new-vm", "memory": 4096, "cores": 2, "sockets": 2, "ostype": "l26",
            "iso": "nas:iso/virtio-win-0.1.271.iso", "storage": "local-lvm", "diskSize": "16G",
        },
        native(
            "vm_create",
            {
                "node": "node", "vmid": "vmid", "name": "name", "memory": "memory", "cores": "cores",
                "sockets": "sockets", "ostype": "ostype", "iso": "iso", "storage": "storage",
                "disks": Turned("diskSize", lambda size: [size]),
            },
        ),
        looks.is_made(
            "qemu", name="new-vm", memory="4096", cores=2, sockets=2, ostype="l26",
            scsi0=looks.holds("local-lvm:", "size=16G"), ide2=looks.holds("virtio-win"),
        ),
    ),
    row(
        "clone_vm",
        {"node": "pve1", "vmid": 108, "newid": 301, "name": "copy", "full": True, "storage": "tank"},
        native("guest_clone", {"guest": "vmid", "vmid": "newid", "name": "name", "full": "full", "storage": "storage"}),
        looks.is_cloned("qemu", name="copy", scsi0=looks.holds("tank:")),
    ),
    row(
        "delete_vm",
        {"node": "pve2", "vmid": 107, "purge": True},
        native("guest_delete", {"guest": "vmid", "purge": "purge"}),
        looks.is_gone,
    ),
    row(
        "migrate_vm",
        {"node": "pve1", "vmid": 101, "target": "pve2", "online": True},
        native(
            "guest_migrate",
            {"guest": "vmid", "node": "target", "mode": Turned("online", lambda live: "live" if live else "offline")},
        ),
        looks.is_on("target"),
    ),
    row(
        "list_containers",
        {"node": "pve3"},
        native("guest_list", {"node": "node"}, type="ct"),
        looks.is_listed(kind="lxc", node="pve3"),
    ),
    row("get_container_status", {"node": "pve3", "vmid": 204}, GET, looks.is_described),
    row("get_container_config", {"node": "pve2", "vmid": 202}, GET, looks.is_described),
    row(
        "start_container",
        {"node": "pve3", "vmid": 206},
        native("guest_power", {"guest": "vmid"}, action="start"),
        looks.is_running,
    ),
    row("stop_container", {"node": "pve3", "vmid": 204}, STOP, looks.is_stopped),
    row(
        "create_container",
        {
            "node": "pve1", "vmid": 302, "ostemplate": TEMPLATE, "hostname": "new-ct", "memory": 1024,
            "storage": "tank", "password": "very-secret", "ssh_public_keys": KEY,
        },
        native(
            "container_create",
            {
                "node": "node", "vmid": "vmid", "template": "ostemplate", "hostname": "hostname", "memory": "memory",
                "storage": "storage", "password": "password",
                "ssh_keys": Turned("ssh_public_keys", str.splitlines),
            },
        ),
        looks.is_made("lxc", hostname="new-ct", memory=1024, rootfs=looks.holds("tank:subvol-302")),
    ),
    row("list_storage", {"node": "pve3"}, native("storage_list", {"node": "node"}), lists.storages_are_listed),
    row(
        "get_storage_content",
        {"node": "pve1", "storage": "nas", "content": "iso"},
        native("volume_list", {"node": "node", "storage": "storage", "content": "content"}),
        lists.content_is_listed,
    ),
    row(
        "upload_file",
        {
            "node": "pve2", "storage": "local", "filename": "tiny.iso",
            "content": base64.b64encode(b"not much of an image").decode(), "contentType": "iso",
        },
        native(
            "image_upload",
            {"node": "node", "storage": "storage", "filename": "filename", "data": "content", "content": "contentType"},
        ),
        looks.is_uploaded("local:iso/tiny.iso", 20),
    ),
    row(
        "create_backup",
        {"node": "pve2", "vmid": 203, "storage": "nas", "mode": "snapshot", "compress": "0", "notes": "by hand"},
        native(
            "backup_create",
            {
                "guest": "vmid", "storage": "storage", "mode": "mode", "notes": "notes",
                "compress": Turned("compress", lambda how: "none" if how == "0" else how),
            },
        ),
        looks.is_backed_up,
    ),
    row(
        "list_backups",
        {"node": "pve1", "storage": "pbs", "vmid": 203},
        native("backup_list", {"node": "node", "storage": "storage", "guest": "vmid"}),
        lists.backups_are_listed,
    ),
    row(
        "restore_backup",
        {"node": "pve1", "storage": "nas", "volid": OLD_BACKUP, "vmid": 108, "force": True},
        native("backup_restore", {"node": "node", "backup": "volid", "vmid": "vmid", "overwrite": "force"}),
        looks.is_restored("qemu", over_old=True),
        without={"storage": "the archive's name tells its storage"},
    ),
    row(
        "get_task_status",
        {"node": "pve1", "upid": lists.PAST_TASK},
        native("task_get", {"task": "upid"}),
        lists.task_is_told,
    ),
    row(
        "list_tasks",
        {"node": "pve1", "vmid": 102, "limit": 2},
        native("task_list", {"node": "node", "guest": "vmid", "limit": "limit"}),
        lists.tasks_are_listed,
    ),
]  # fmt: skip
