"""bsahane/mcp-proxmox: 53 tools; most changes ask for `confirm` and take `dry_run`, `wait` and `timeout`."""

from quorate.surfaces.compat.bsahane import access, configuring, discovery, inside, lifecycle, storing
from quorate.surfaces.compat.declaring import System, by_name

SYSTEM = System(
    "bsahane",
    by_name(discovery.TOOLS, lifecycle.TOOLS, configuring.TOOLS, storing.TOOLS, access.TOOLS, inside.TOOLS),
    words={
        "task_wait task=": "proxmox-wait-task upid=",
        "task_wait": "proxmox-wait-task",
        "task_list": "proxmox-list-tasks",
        "guest_power action=shutdown": "proxmox-shutdown-vm",
        "guest_power action=start": "proxmox-start-vm",
    },
)
