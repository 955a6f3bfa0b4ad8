"""washyu/mcp_python_server: 49 tools for Proxmox VE and the machines around it, without a gate of their own; JSON."""

from quorate.surfaces.compat.declaration import load_system
from quorate.surfaces.compat.washyu import answers, hosts, infrastructure, network, proxmox, services, workloads

SYSTEM = load_system(
    "washyu",
    hosts.RECIPES,
    network.RECIPES,
    infrastructure.RECIPES,
    workloads.RECIPES,
    services.RECIPES,
    proxmox.RECIPES,
    error=answers.error,
)
