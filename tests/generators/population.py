"""Objects that operations need in the world."""

from __future__ import annotations

import hashlib
from typing import Any

from pve_simulator.storage.storages import Volume
from quorate.pipeline.caller import Exchange
from quorate.runs.store import Run, RunState
from tests.rigs.mcp_session import Rig

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHyG3n8sBvSm2pAcyRw7Yb0o2k4v1Pb0mP9Jq6c1xXyZ me@home"
ISO = "local:iso/debian-13.1.0-amd64-netinst.iso"
IMAGE = "https://dl-cdn.alpinelinux.org/alpine/v3.22/releases/x86_64/alpine-virt-3.22.2-x86_64.iso"
CONTENT = b"not much of an image"
NO_OPTIONS = hashlib.sha1(b"", usedforsecurity=False).hexdigest()
BACKUP = "nas:backup/vzdump-qemu-109-2025_12_31-02_00_01.vma.zst"
CT_BACKUP = "pbs:backup/ct/203/2026-01-14T01:00:05Z"
VM_BACKUP = "pbs:backup/vm/102/2026-01-14T01:00:05Z"
HOSTS = "/drive-scsi0.img.fidx/part/1/etc/hosts"
"""A file in it."""
TEMPLATE = "debian-13-standard"
PAUSED_RUN, ENDED_RUN = "000001", "000002"
UNDOABLE = "0123456789abcdef"

# Objects that some operations need, created through the product.
FURNITURE: list[tuple[str, dict[str, Any]]] = [
    ("backup_job_set", {"job": "nightly", "schedule": "21:00", "guest": [102, 203], "storage": "nas"}),
    ("replication_set", {"guest": 102, "target": "pve2"}),
    ("sdn_change", {"action": "set", "kind": "zone", "name": "z1", "type": "simple"}),
    ("sdn_change", {"action": "set", "kind": "vnet", "name": "v1", "zone": "z1"}),
    ("sdn_change", {"action": "set", "kind": "subnet", "name": "10.7.0.0/24", "vnet": "v1", "gateway": "10.7.0.1"}),
    ("firewall_object_set", {"scope": "cluster", "kind": "alias", "name": "lan", "cidr": "192.168.10.0/24"}),
    ("firewall_object_set", {"scope": "cluster", "kind": "ipset", "name": "admins", "add": ["192.168.10.9"]}),
    ("firewall_object_set", {"scope": "cluster", "kind": "group", "name": "web"}),
    ("firewall_object_set", {"scope": "guest", "of": 102, "kind": "alias", "name": "own", "cidr": "10.0.0.1"}),
    *(
        ("firewall_rule_set", {"scope": "guest", "of": 102, "type": "in", "action": "ACCEPT", "dport": port,
            "proto": "tcp"})
        for port in ("22", "80")
    ),
    ("firewall_rule_set", {"scope": "cluster", "type": "in", "action": "ACCEPT", "macro": "SSH"}),
    ("node_network_change", {"node": "pve2", "action": "set", "iface": "vmbr9", "type": "bridge"}),
    ("disk_add", {"guest": 108, "size": 2}),
    ("disk_change", {"action": "detach", "guest": 108, "disk": "scsi1"}),
    ("disk_add", {"guest": 108, "size": 3, "disk": "scsi2"}),
    ("disk_add", {"guest": 206, "size": 2, "path": "/data"}),
    ("disk_change", {"action": "detach", "guest": 206, "disk": "mp0"}),
    ("disk_add", {"guest": 206, "size": 3, "path": "/more"}),
    ("cloudinit_set", {"guest": 107, "user": "me", "ip": "dhcp"}),
    ("ha_set", {"guest": 103}),
    ("role_set", {"role": "Helper", "privileges": ["VM.Audit"]}),
    ("group_set", {"group": "family", "add": ["bob@pve"]}),
]  # fmt: skip
ONLY_SINCE_9 = [("ha_rule_set", {"rule": "near", "kind": "nodes", "guests": [103], "nodes": ["pve1", "pve2"]})]
ONLY_BEFORE_9 = [
    ("api_call", {"method": "POST", "path": "/cluster/ha/groups", "params": {"group": "g1", "nodes": "pve1"}})
]


def _runs(now: float) -> list[Run]:
    """An evacuation that waits for a person, and one that has taken a container to pve3."""
    usual: dict[str, Any] = {"kind": "evacuate", "cluster": "demo", "tool": "run_evacuate", "created": now}
    scope = {"node": "pve1", "stay": [], "guests": {}, "parallel": 1, "stopped": False, "with_local_disks": False}
    caller = {"client": "test", "access": "admin", "clusters": None}
    paused = Run(id=PAUSED_RUN, title="Evacuate pve1", caller=caller, scope=scope, state=RunState.PAUSED, **usual)
    ended = Run(id=ENDED_RUN, title="Evacuate pve1", caller=caller, scope=scope, state=RunState.DONE, **usual)
    ended.memory = {"moved": {"204": "pve3"}}
    return [paused, ended]


async def populate(quorate: Rig) -> None:
    for node in quorate.sim.world.nodes:
        archive = Volume("local:import/shop.ova", "import", "ova", 1024**3, 1024**3, 0)
        quorate.sim.world.storages["local"].add(node, archive)
    for run in _runs(quorate.clock.now()):
        await quorate.app.runs.store.add(run)
    nine = quorate.sim.world.version_at_least(9)
    for tool, arguments in [*FURNITURE, *(ONLY_SINCE_9 if nine else ONLY_BEFORE_9)]:
        await quorate.facts(tool, **arguments)
    await quorate.app.pipeline.run("guest_configure", {"guest": 206, "cores": 3}, Exchange(change=UNDOABLE))
    await quorate.facts("guest_power", guest=105, action="shutdown", wait=0)
