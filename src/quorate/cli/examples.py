"""A call to begin with for each tool: on the demo's cluster it runs as it stands, with --demo."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quorate.operations.registry import Operation

ARGUMENTS = {
    "access_delete": "kind=user name=dave@pve",
    "access_list": "kind=users",
    "acl_set": "action=grant path=/vms/108 roles=PVEAuditor holders=dave@pve",
    "ansible_check": "service=node-exporter host=nas",
    "ansible_run": "service=node-exporter host=nas tags=settings",
    "api_call": "method=GET path=/cluster/status",
    "api_search": "words='firewall of a guest'",
    "backup_create": "guest=docker01 storage=pbs",
    "backup_job_delete": "job=nightly",
    "backup_job_run": "job=nightly",
    "backup_job_set": "job=nightly guest=docker01 storage=pbs schedule=02:30",
    "backup_prune": "storage=pbs keep=last=2",
    "backup_restore": "backup=pbs:backup/vm/102/2026-01-14T01:00:05Z vmid=602 storage=local-lvm",
    "backup_show": "backup=pbs:backup/vm/102/2026-01-14T01:00:05Z",
    "cloudinit_get": "guest=debian-13-cloud",
    "cloudinit_set": "guest=debian-13-cloud user=admin",
    "container_create": "template=debian-13-standard hostname=wiki memory=1G rootfs=8G",
    "disk_add": "guest=docker01 size=20G",
    "disk_change": "guest=docker01 action=resize disk=scsi0 size=+10G",
    "disk_destroy": "guest=win11 disk=scsi0 force=true",
    "firewall_delete": "scope=cluster kind=rule item=0",
    "firewall_object_set": "scope=cluster kind=alias name=printer cidr=192.168.10.9",
    "firewall_options_set": "scope=guest of=docker01 enable=true",
    "firewall_rule_set": "scope=guest of=docker01 type=in action=ACCEPT proto=tcp dport=443",
    "group_set": "group=family comment='may look'",
    "guest_bulk": "action=shutdown tag=lab",
    "guest_clone": "guest=debian-13-cloud name=web01",
    "guest_configure": "guest=docker01 memory=12G",
    "guest_delete": "guest=test-vm dry_run=true",
    "guest_dir_list": "guest=pihole path=/etc",
    "guest_exec": "guest=pihole command='uptime'",
    "guest_file_read": "guest=pihole path=/etc/hostname",
    "guest_file_write": "guest=pihole path=/root/note.txt content='back on Monday'",
    "guest_get": "guest=docker01",
    "guest_info": "guest=pihole",
    "guest_list": "status=running tag=prod",
    "guest_migrate": "guest=homeassistant node=pve2",
    "guest_network": "guest=pihole",
    "guest_path_stat": "guest=pihole path=/etc/hosts",
    "guest_power": "guest=test-vm action=start",
    "guest_screenshot": "guest=docker01",
    "guest_service": "guest=pihole",
    "guest_service_control": "guest=nginx-proxy service=nginx action=restart",
    "guest_stop": "guest=k3s-agent",
    "guest_template": "guest=win11",
    "guest_wait": "guest=docker01",
    "ha_relocate": "guest=homeassistant node=pve2",
    "ha_remove": "guest=homeassistant",
    "ha_rule_set": "rule=dns-apart kind=apart guests=pihole guests=router",
    "ha_set": "guest=router",
    "host_admin_groups": "host=nas groups=docker",
    "host_admin_remove": "host=nas",
    "host_admin_setup": "host=nas dry_run=true",
    "host_admin_verify": "host=nas",
    "host_discover": "host=pihole",
    "host_exec": "host=pve1 command='uptime'",
    "host_register": "host=nas address=192.168.10.9 user=admin labels=role=nas",
    "host_remove": "host=nas",
    "host_shell_open": "host=pve1",
    "host_update": "host=nas labels=role=nas labels=prod",
    "host_verify": "host=nas",
    "image_download": "template=debian-13-standard storage=local",
    "image_upload": "file=./debian.iso storage=local",
    "log_read": "node=pve1",
    "metrics_get": "guest=docker01",
    "network_apply": "of=node node=pve1",
    "network_changes": "since=1d",
    "network_scan": "targets=192.168.10.0/24",
    "network_suggest": "kind=database memory=8G",
    "nic_remove": "guest=docker01 nic=net0",
    "nic_set": "guest=docker01 bridge=vmbr0",
    "node_get": "node=pve1",
    "node_inspect": "node=pve1 aspect=disks",
    "node_network_change": "node=pve1 action=set iface=vmbr9 type=bridge",
    "node_power": "node=pve3 action=reboot",
    "node_service_control": "node=pve1 service=chrony action=restart",
    "node_updates_refresh": "node=pve1",
    "pool_set": "pool=lab add_guests=test-vm",
    "replication_delete": "job=202-0",
    "replication_run": "job=202-0",
    "replication_set": "guest=docker01 target=pve2",
    "role_set": "role=Viewer privileges=VM.Audit",
    "script_info": "script=jellyfin",
    "script_run": "script=jellyfin node=pve1 settings='{\"ram\": 4096}' dry_run=true",
    "script_search": "words=dns",
    "sdn_change": "action=set kind=zone name=lab type=simple",
    "service_check": "service=gitea host=docker01",
    "service_info": "service=pihole",
    "service_install": "service=uptime-kuma host=docker01 docker=true settings='{\"web_port\": 3005}'",
    "service_list": "words=photos",
    "service_status": "host=docker01",
    "service_uninstall": "service=uptime-kuma host=docker01",
    "service_upgrade": "service=uptime-kuma host=docker01",
    "snapshot_create": "guest=docker01 snapshot=before-update",
    "snapshot_delete": "guest=docker01 snapshot=before-upgrade",
    "snapshot_list": "guest=docker01",
    "snapshot_rollback": "guest=docker01 snapshot=before-upgrade",
    "snapshot_update": "guest=docker01 snapshot=before-upgrade description='before docker 29'",
    "task_get": "task=UPID:pve1:00000504:1464B400:6AF9FEE0:aptupdate::root@pam:",
    "task_stop": "task=UPID:pve1:00000504:1464B400:6AF9FEE0:aptupdate::root@pam:",
    "task_wait": "task=UPID:pve1:00000504:1464B400:6AF9FEE0:aptupdate::root@pam:",
    "terraform_apply": "service=registry host=nas plan=0123456789abcdef",
    "terraform_destroy": "service=registry host=nas",
    "terraform_export": "guests=pihole",
    "terraform_plan": "service=registry host=nas",
    "terraform_refresh": "service=registry host=nas",
    "token_create": "token=dave@pve!phone",
    "user_set": "user=alice@pve email=alice@example.com",
    "vm_create": "name=web01 memory=2G cores=2 disks=20G iso=debian-13.1.0-amd64-netinst.iso",
    "volume_delete": "volume=nas:iso/virtio-win-0.1.271.iso",
    "volume_update": "volume=nas:backup/vzdump-qemu-109-2025_12_31-02_00_01.vma.zst notes='keep this one'",
    "workload_deploy": "host=docker01 name=whoami image=traefik/whoami:v1.10 ports=8088:80 memory=64M",
    "workload_get": "host=docker01 name=whoami",
    "workload_list": "host=docker01",
    "workload_logs": "host=docker01 name=whoami lines=20",
    "workload_power": "host=docker01 name=whoami action=restart",
    "workload_remove": "host=docker01 name=whoami",
}
"""Of the tools that need some, or are of little use without."""


def pairs(operation: Operation) -> list[str]:
    """`key=value`, as a shell would hand them over."""
    if operation.name in ARGUMENTS:
        return shlex.split(ARGUMENTS[operation.name])
    schema = operation.schema()
    return [f"{name}={stand_in(name, schema['properties'][name])}" for name in schema.get("required", ())]


def stand_in(name: str, part: Mapping[str, Any]) -> str:
    """For an argument that nothing is known about: one of its choices, a number, or its name in capitals."""
    kinds = part.get("anyOf", [part])
    if choices := [*part.get("enum", ()), *(one["const"] for one in kinds if "const" in one)]:
        return str(choices[0])
    first = str(kinds[0].get("type"))
    number = str(min(100, int(part.get("maximum", 100))))
    return {"integer": number, "number": number, "boolean": "true", "object": "{}"}.get(first, name.upper())
