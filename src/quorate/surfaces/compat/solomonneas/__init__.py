"""solomonneas/proxmox-mcp: 42 tools; writes ask for `confirm`, what destroys for an opt-in of the operator as well."""

from quorate.surfaces.compat.declaring import System, by_name
from quorate.surfaces.compat.gates import DESTRUCTIVE_VARIABLE
from quorate.surfaces.compat.solomonneas import inside, lifecycle, provisioning, reading, shapes, smoke

SYSTEM = System(
    "solomonneas",
    by_name(reading.TOOLS, smoke.TOOLS, lifecycle.TOOLS, provisioning.TOOLS, inside.TOOLS),
    opt_in=DESTRUCTIVE_VARIABLE,
    words={
        "task_wait task=": "proxmox_wait_task upid=",
        "task_wait": "proxmox_wait_task",
        "task_list": "proxmox_recent_tasks",
        "guest_power action=shutdown": "proxmox_stop_resource",
        "guest_power action=start": "proxmox_start_resource",
        "stop=true": "force=true",
    },
    error=shapes.error,
)
