"""washyu/mcp_python_server: 49 tools for Proxmox VE and the machines around it, without a gate of their own; JSON."""

from quorate.surfaces.compat.declaring import System, by_name
from quorate.surfaces.compat.washyu import infrastructure, network, proxmox, scripts, servers, services, ssh, workloads
from quorate.surfaces.compat.washyu.shapes import error

SYSTEM = System(
    "washyu",
    by_name(
        ssh.TOOLS,
        network.TOOLS,
        infrastructure.TOOLS,
        workloads.TOOLS,
        services.TOOLS,
        servers.TOOLS,
        scripts.TOOLS,
        proxmox.TOOLS,
    ),
    words={
        "host_admin_setup": "setup_mcp_admin",
        "host_register": "register_server",
        "host_update": "update_server_credentials",
        "host_list": "list_registered_servers",
        "network_discover": "discover_and_map",
        "network_map": "get_network_sitemap",
        "workload_list": "list_vms",
        "infra_validate": "validate_infrastructure_changes",
        "infra_backup": "create_infrastructure_backup",
        "service_list": "list_available_services",
        "service_info": "get_service_info",
        "terraform_plan begins it": "install_service begins it",
        "guest_power action=shutdown": "manage_proxmox_vm action=shutdown",
        ", or give stop=true to cut its power": "",
        "Move the containers with move_to": "Name a device for its containers in migration_plan",
        "force=true": "force_removal=true",
        "replace=true puts this in its place, or choose another name": "Choose another name",
    },
    error=error,
)
