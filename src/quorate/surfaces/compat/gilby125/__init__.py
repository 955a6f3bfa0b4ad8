"""gilby125/mcp-proxmox: 55 tools that answer in markdown; all but a few reads ask for an opt-in of the operator."""

from quorate.surfaces.compat.declaring import System, by_name
from quorate.surfaces.compat.gates import ELEVATED_VARIABLE
from quorate.surfaces.compat.gilby125 import guests, hardware, inside, markdown, power, reading, saving

SYSTEM = System(
    "gilby125",
    by_name(reading.TOOLS, inside.TOOLS, guests.TOOLS, power.TOOLS, saving.TOOLS, hardware.TOOLS),
    opt_in=ELEVATED_VARIABLE,
    words={
        "guest_power action=shutdown": "proxmox_shutdown_vm or proxmox_shutdown_lxc",
        ", or give stop=true to cut its power": "",
    },
    error=markdown.error,
)
