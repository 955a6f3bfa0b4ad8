"""washyu/mcp_python_server: 49 tools for Proxmox VE and the machines around it, without a gate of their own; JSON."""

from quorate.surfaces.compat.declaration import System, load_tools
from quorate.surfaces.compat.washyu import (
    answers,
    hosts,
    infrastructure,
    network,
    proxmox,
    services,
    workloads,
)

SYSTEM = System(
    "washyu",
    load_tools(
        "washyu",
        hosts.RECIPES,
        network.RECIPES,
        infrastructure.RECIPES,
        workloads.RECIPES,
        services.RECIPES,
        proxmox.RECIPES,
    ),
    arguments={"force": "force_removal", "move_to": "migration_plan"},
    error=answers.error,
)
