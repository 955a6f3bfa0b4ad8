"""Arguments for read operations, for the populated world."""

from __future__ import annotations

from typing import Any

from pve_simulator.world import World
from quorate.operations.registry import Operation
from tests.generators.population import BACKUP, CT_BACKUP, PAUSED_RUN


def read_arguments(operation: Operation, world: World) -> list[dict[str, Any]]:
    """Calls that succeed; an operation without required arguments is called without any."""
    running = next(guest.vmid for guest in world.guests.values() if guest.running and guest.kind == "qemu")
    task = str(next(iter([*world.tasks.active(), *world.tasks.newest_first("pve1")])).upid)
    inside = {"guest": running, "path": "/etc/hostname"}
    known: dict[str, list[dict[str, Any]]] = {
        "access_list": [{"kind": kind} for kind in ("users", "groups", "roles", "realms", "tokens", "acl", "pools")],
        "api_search": [{"words": "backup schedule"}, {"path": "/cluster/backup", "method": "GET"}],
        "backup_files": [{"backup": CT_BACKUP, "path": "/etc"}], "backup_show": [{"backup": BACKUP}],
        "capacity_plan": [
            {}, {"cores": 2, "memory": "4G", "disk": "20G"}, {"fails": "pve2"},
            {"count": 3, "memory": "4G", "disk": "20G", "reserve": "10%"},
        ],
        "cloudinit_get": [{"guest": 108}],
        "firewall_explain": [{"guest": running, "port": 22}, {"guest": running, "port": 53, "source": 200}],
        "firewall_get": [{}, {"scope": "guest", "of": str(running)}, {"scope": "node", "of": "pve1"}],
        "guest_list": [{}, {"find": "192.168.10.0/24"}, {"find": "vmbr0", "columns": ["onboot", "protection"]}],
        "log_read": [{}, {"node": "pve1"}],
        "metrics_get": [{"guest": running}, {"node": "pve1", "chart": True}],
        "network_list": [{}, {"of": "node", "node": "pve1"}, {"of": "sdn"}],
        "node_inspect": [{"node": "pve1", "aspect": aspect} for aspect in ("services", "updates", "disks")],
        "permission_audit": [{}, {"level": "operate"}],
        "guest_diff": [{"guest": 108, **old} for old in ({"snapshot": "clean"}, {"other": 107}, {"since": "1d"})],
        "guest_dir_list": [{"guest": running, "path": "/etc"}],
        "guest_file_read": [inside],
        "guest_path_stat": [inside],
        "guest_service": [{"guest": running}],
    }  # fmt: skip
    if operation.name in known:
        return known[operation.name]
    usual = {"guest": running, "node": "pve1", "task": task, "run": PAUSED_RUN, "port": 22}
    return [{name: usual[name] for name in operation.schema().get("required", ())}]
