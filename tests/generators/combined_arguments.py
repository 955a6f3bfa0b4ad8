"""Arguments that depend on each other: those each operation requires, for the populated world."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pve_simulator.cluster.firewall import Firewalls, with_digest
from pve_simulator.world import World
from tests.generators.population import BACKUP, CONTENT, CT_BACKUP, HOSTS, IMAGE, ISO, NO_OPTIONS, TEMPLATE, VM_BACKUP


def combined_arguments(world: World, image: Path) -> Mapping[str, list[dict[str, Any]]]:
    """Starting points by operation."""
    snapshots = [{"guest": guest.vmid, "snapshot": name} for guest in world.guests.values() for name in guest.snapshots]
    disks = [
        {"guest": guest.vmid, "disk": key}
        for guest in world.guests.values()
        for key, _ in guest.drives()
        if not guest.template and "cdrom" not in str(guest.config[key])
    ]
    others = [{**disk, "storage": storage} for disk in disks for storage in ("nas", "local-lvm", "tank")]
    running = str(world.tasks.active()[0].upid)
    bulk: list[tuple[str, dict[str, Any]]] = [
        ("start", {}), ("shutdown", {}), ("reboot", {}), ("snapshot", {"snapshot": "all"}), ("backup", {}),
        ("tag", {"tags": ["x"]}), ("untag", {"tags": ["lab"]}),
    ]  # fmt: skip
    rules_digest = with_digest(world.part(Firewalls).guest(102).rules)[0]["digest"]
    guest_path = "/nodes/pve1/qemu/108"
    return {
        "run_rolling_update": [
            {"nodes": ["pve3"], "shutdown_rest": True}, {"with_local_disks": True, "shutdown_rest": True},
        ],
        "run_restore_drill": [
            {"guest": 102, "storage": "local-lvm", "node": "pve1"}, {"backups": [BACKUP, CT_BACKUP]}, {"guest": [203]},
        ],
        "access_delete": [
            {"kind": "user", "name": "dave@pve"}, {"kind": "group", "name": "family"},
            {"kind": "role", "name": "Helper"}, {"kind": "token", "name": "alice@pve!ci"},
            {"kind": "pool", "name": "lab", "remove_members": True},
        ],
        "acl_set": [
            {"action": "grant", "path": "/vms/104", "roles": ["PVEVMUser"], "holders": ["bob@pve", "@family"]},
            {"action": "revoke", "path": "/pool/lab", "roles": ["PVEVMAdmin"], "holders": ["alice@pve"]},
        ],
        "api_call": [
            {"method": "POST", "path": f"{guest_path}/status/start"}, {"method": "DELETE", "path": guest_path},
            {"method": "PUT", "path": f"{guest_path}/config", "params": {"cores": 2, "onboot": True}},
            {"method": "POST", "path": "/pools", "params": {"poolid": "media"}},
        ],
        "backup_job_delete": [{"job": "nightly"}],
        "backup_job_run": [{"job": "nightly"}],
        "backup_job_set": [
            {"job": "all-but-one", "schedule": "03:00", "storage": "nas", "all": True, "exclude": [102]},
            {"schedule": "03:00", "storage": "nas", "guest": [102, 203]},
            {"job": "nightly"}, {"schedule": "02:00", "all": True, "storage": "pbs"},
            {"job": "other", "schedule": "02:00", "pool": "lab", "storage": "nas"},
        ],
        "backup_prune": [
            {"storage": "pbs", "keep": "last=1"}, {"storage": "pbs", "keep": "last=1", "guest": 203},
        ],
        "backup_file_restore": [
            {"backup": VM_BACKUP, "path": HOSTS},
            {"backup": VM_BACKUP, "path": HOSTS, "guest": 104, "to": "/root/hosts"},
            {"backup": VM_BACKUP, "path": HOSTS, "file": str(image.with_name("restored"))},
            {"backup": VM_BACKUP, "path": HOSTS, "to": "/etc/hosts", "overwrite": True},
        ],
        "backup_restore": [
            {"backup": BACKUP}, {"backup": CT_BACKUP}, {"backup": BACKUP, "vmid": 108, "overwrite": True},
            {"backup": CT_BACKUP, "node": "pve3", "storage": "local-lvm"},
        ],
        "cloudinit_set": [
            *({"guest": vmid, "user": "me"} for vmid in (107, 108, 102)),
            {"guest": 107, "ip": "10.0.0.7/24", "gateway": "10.0.0.1", "ip6": "fd00::7/64", "gateway6": "fd00::1"},
        ],
        "container_create": [{"template": TEMPLATE}, {"template": f"local:vztmpl/{TEMPLATE}_13.1-2_amd64.tar.zst"}],
        "disk_add": [
            {"guest": 108, "size": 2}, {"guest": 104, "size": "3G"}, {"guest": 206, "size": 2, "path": "/x"},
            {"guest": 204, "size": "1G", "path": "/srv", "options": {"ro": True}},
            {"guest": 104, "size": 1, "disk": "scsi7", "options": {"ssd": True, "discard": "on"}},
            {"guest": 103, "import_from": "tank:vm-103-disk-0"},
        ],
        "disk_change": [
            {"action": "attach", "guest": 108}, {"action": "attach", "guest": 108, "disk": "unused0"},
            {"action": "attach", "guest": 206, "disk": "unused0", "path": "/back"},
            {"action": "detach", "guest": 108, "disk": "scsi2"}, {"action": "detach", "guest": 206, "disk": "mp1"},
            {"action": "detach", "guest": 107, "disk": "scsi0", "force": True},
            *({"action": "move", **other} for other in others),
            {"action": "attach", "guest": 108, "slot": "virtio", "options": {"backup": False}},
            {"action": "attach", "guest": 206, "slot": "mp2", "path": "/srv/x", "options": {"ro": True}},
            {"action": "move", "guest": 104, "disk": "scsi0", "storage": "nas", "format": "qcow2", "delete": False},
            *({"action": "resize", "guest": vmid, "size": "+1G"} for vmid in (104, 107, 204, 206)),
        ],
        "disk_destroy": [
            {"guest": 108, "disk": "unused0"}, {"guest": 206, "disk": "unused0"}, {"guest": 108, "disk": "scsi2"},
        ],
        "firewall_delete": [
            {"scope": "cluster", "kind": "alias", "item": "lan"},
            {"scope": "cluster", "kind": "ipset", "item": "admins", "force": True},
            {"scope": "cluster", "kind": "group", "item": "web"},
            {"scope": "guest", "of": 102, "kind": "rule", "item": 0},
            {"scope": "cluster", "kind": "rule", "item": 0},
            {"scope": "guest", "of": 102, "kind": "rule", "item": 1, "digest": rules_digest},
        ],
        "firewall_object_set": [
            {"scope": "cluster", "kind": "alias", "name": "new", "cidr": "10.0.0.0/8"},
            {"scope": "cluster", "kind": "alias", "name": "lan", "cidr": "10.0.0.0/8"},
            {"scope": "guest", "of": 102, "kind": "ipset", "name": "mine", "add": ["10.0.0.1"]},
            {"scope": "cluster", "kind": "ipset", "name": "admins", "remove": ["192.168.10.9"]},
            {"scope": "cluster", "kind": "group", "name": "db"},
            {"scope": "cluster", "kind": "alias", "name": "lan", "rename": "home"},
        ],
        "firewall_options_set": [
            {"scope": "guest", "of": 102, "enable": True}, {"scope": "node", "of": "pve1", "enable": True},
            {"scope": "cluster", "policy_out": "ACCEPT"}, {"scope": "guest", "of": 204, "policy_in": "DROP"},
            {"scope": "guest", "of": 204, "enable": True, "digest": NO_OPTIONS},
        ],
        "firewall_rule_set": [
            {"scope": "guest", "of": 102, "type": "in", "action": "ACCEPT"},
            {"scope": "guest", "of": 204, "type": "out", "action": "DROP", "proto": "tcp"},
            {"scope": "guest", "of": 102, "pos": 1, "comment": "x", "digest": rules_digest},
            {"scope": "guest", "of": 102, "pos": 1, "move_to": 0},
            {"scope": "group", "of": "web", "type": "in", "action": "ACCEPT", "macro": "HTTPS"},
            {"scope": "node", "of": "pve1", "type": "in", "action": "ACCEPT", "proto": "icmp"},
            {"scope": "guest", "of": 102, "type": "group", "action": "web"},
        ],
        "group_set": [{"group": "new"}, {"group": "family", "add": ["carol@pve"]}],
        "guest_bulk": [
            {"action": "snapshot", "name": "docker*", "snapshot": "s1"},
            {"action": "tag", "tags": ["x"], "node": "pve1", "type": "vm"},
            {"action": "backup", "guests": [104], "storage": "pbs"},
            {"action": "move_disks", "guests": [104, 107, 204], "from_storage": "local-lvm", "storage": "tank"},
            *({"action": action, "guests": [107, 206], **more} for action, more in bulk),
            *({"action": action, "guests": [104, 204], **more} for action, more in bulk),
        ],
        "guest_clone": [
            {"guest": 9000}, {"guest": 9001}, {"guest": 9000, "full": True}, {"guest": 107}, {"guest": 206},
            {"guest": 108, "snapshot": "clean"}, {"guest": 203, "snapshot": "pre-migration"},
            {"guest": 101, "node": "pve2"},
        ],
        "guest_configure": [
            {"guest": 104, "unset": ["tags"]}, {"guest": 107, "cores": 2, "digest": world.guests[107].digest()},
            *({"guest": vmid, "onboot": flag} for vmid in (104, 107, 204, 206) for flag in (True, False)),
        ],
        "guest_migrate": [
            {"guest": 107, "node": "pve3"}, {"guest": 206, "node": "pve1"}, {"guest": 203, "node": "pve3"},
            {"guest": 104, "node": "pve3", "with_local_disks": True}, {"guest": 101, "node": "pve2"},
        ],
        "guest_power": [
            {"guest": 107, "action": "start"}, {"guest": 206, "action": "start"}, {"guest": 104, "action": "shutdown"},
            {"guest": 204, "action": "reboot"}, {"guest": 106, "action": "resume"}, {"guest": 104, "action": "suspend"},
            {"guest": [104, 204, 101], "action": "shutdown"},
        ],
        "guest_exec": [
            {"guest": 102, "command": "uptime"}, {"guest": "docker02", "command": ["ls", "-l", "/tmp dir"]},
        ],
        "guest_file_write": [
            {"guest": 102, "path": "/etc/app.conf", "content": "a = 1\n"},
            {"guest": "docker02", "path": "/srv/a b/c", "content": "eA==", "encoding": "base64", "parents": True},
        ],
        "guest_job": [{"action": "stop", "job": "agent:pve1:102:4711"}],
        "guest_service_control": [
            {"guest": guest, "service": "cron", "action": action}
            for guest in (102, "docker02") for action in ("start", "stop", "restart", "reload", "enable", "disable")
        ],
        "guest_stop": [
            {"guest": 104}, {"guest": 204}, {"guest": 101}, {"guest": [102, 202]},
            {"guest": 104, "reset": True},
        ],
        "guest_template": [{"guest": 107}, {"guest": 206}],
        "guest_delete": [{"guest": 107}, {"guest": 206}, {"guest": 204, "stop": True},
            {"guest": 101, "stop": True, "purge": True}],
        "ha_relocate": [{"guest": 101, "node": "pve2"}],
        "ha_remove": [{"guest": 101}, {"guest": 103}, {"rule": "near"}],
        "ha_set": [{"guest": 101, "state": "stopped"}, {"guest": 104}, {"guest": 204, "state": "started"}],
        "ha_rule_set": [
            {"rule": "r1", "kind": "nodes", "guests": [103], "nodes": ["pve1", "pve2"]},
            {"rule": "r2", "kind": "apart", "guests": [101, 103]}, {"rule": "near", "kind": "nodes", "guests": [103]},
        ],
        "image_download": [
            {"url": IMAGE, "storage": "nas"}, {"url": IMAGE, "content": "iso", "node": "pve1"},
            {"template": "alpine-3.22-default"}, {"template": "ubuntu-24.04-standard"},
        ],
        "image_upload": [{"file": str(image)}, {"data": base64.b64encode(CONTENT).decode(), "filename": "tiny.iso"}],
        "network_apply": [{"of": "node", "node": "pve2"}, {"of": "sdn"}],
        "nic_remove": [{"guest": vmid, "nic": "net0"} for vmid in (104, 107, 204, 206)],
        "nic_set": [{"guest": 104, "bridge": "vmbr0"}, {"guest": 204, "bridge": "vmbr0"},
            {"guest": 107, "nic": "net0", "vlan": 5},
                    {"guest": 206, "nic": "net0", "vlan": 5},
                    {"guest": 204, "nic": "net0", "ip": "10.0.0.7/24", "gateway": "10.0.0.1",
                    "ip6": "fd00::7/64", "gateway6": "fd00::1"}],
        "node_network_change": [
            {"node": "pve1", "action": "set", "iface": "vmbr5", "type": "bridge"},
            {"node": "pve1", "action": "set", "iface": "vmbr1"}, {"node": "pve2", "action": "revert"},
            {"node": "pve1", "action": "delete", "iface": "vmbr1"},
            {"node": "pve1", "action": "set", "iface": "vmbr1.20", "type": "vlan"},
        ],
        "node_service_control": [
            {"node": "pve1", "service": service, "action": action}
            for service in ("pvestatd", "chrony") for action in ("restart", "stop", "reload")
        ],
        "pool_set": [{"pool": "media", "comment": "films"}, {"pool": "lab", "add_guests": [205]},
            {"pool": "lab", "remove_guests": [104]}],
        "replication_delete": [{"job": "102-0"}],
        "replication_run": [{"job": "102-0"}],
        "replication_set": [{"guest": 102, "target": "pve2", "schedule": "02:00"}, {"guest": 103, "target": "pve1"}],
        "role_set": [{"role": "New", "privileges": ["VM.Audit"]},
            {"role": "Helper", "privileges": ["VM.Console"], "mode": "add"}],
        "sdn_change": [
            {"action": "set", "kind": "zone", "name": "z2", "type": "simple"},
            {"action": "set", "kind": "zone", "name": "z3", "type": "vlan", "options": {"bridge": "vmbr0"}},
            {"action": "set", "kind": "vnet", "name": "v2", "zone": "z1"},
            {"action": "set", "kind": "subnet", "name": "10.9.0.0/24", "vnet": "v1"},
            {"action": "delete", "kind": "subnet", "name": "10.7.0.0/24", "vnet": "v1"},
            {"action": "set", "kind": "vnet", "name": "v1", "options": {"alias": "one"}},
            {"action": "set", "kind": "zone", "name": "z1", "options": {"mtu": 1400}, "remove": ["dns"]},
            {"action": "set", "kind": "subnet", "name": "10.7.0.0/24", "vnet": "v1", "options": {"snat": True}},
        ],
        "snapshot_delete": snapshots, "snapshot_rollback": snapshots,
        "snapshot_update": [{**snapshot, "description": "now with a word"} for snapshot in snapshots],
        "guest_renumber": [{"guest": 107, "vmid": 470}, {"guest": 206, "vmid": 471, "restart": True}],
        "storage_cleanup": [{"what": ["orphans", "detached"]}, {"what": ["deleted_guests"], "older_than": 0}],
        "task_stop": [{"task": running}],
        "token_create": [{"token": "bob@pve!new"}, {"token": "alice@pve!new", "privsep": False}],
        "user_set": [{"user": "eve@pve", "password": "long-enough"}, {"user": "bob@pve", "comment": "still looks"}],
        "volume_delete": [{"volume": ISO, "node": "pve1"}, {"volume": CT_BACKUP}],
        "volume_update": [{"volume": BACKUP, "notes": "kept"}, {"volume": BACKUP, "protected": False}],
    }  # fmt: skip
