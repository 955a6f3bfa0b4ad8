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
    words={
        "terraform_plan begins it": "install_service begins it",
        "Move the containers with move_to": "Name a device for its containers in migration_plan",
    },
    arguments={"force": "force_removal"},
    error=answers.error,
)
