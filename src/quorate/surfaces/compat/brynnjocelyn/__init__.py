"""brynnjocelyn/proxmox-mcp-server: 29 tools, without a gate of their own; answers are JSON."""

from quorate.surfaces.compat.brynnjocelyn import containers, machines, reading, saving
from quorate.surfaces.compat.declaring import System, by_name

SYSTEM = System(
    "brynnjocelyn",
    by_name(reading.TOOLS, machines.TOOLS, containers.TOOLS, saving.TOOLS),
    words={
        "task_wait task=": "get_task_status upid=",
        "task_wait": "get_task_status",
        ", or overwrite=true to replace it (which needs access admin)": "",
        "overwrite=true": "force=true",
        "guest_power action=shutdown": "shutdown_vm",
        ", or give stop=true to cut its power": "",
    },
)
