"""gilby125/mcp-proxmox: 55 tools that answer in markdown; all but a few reads require an opt-in of the operator."""

from quorate.surfaces.compat.declaration import System, load_tools
from quorate.surfaces.compat.gates import ELEVATED_VARIABLE
from quorate.surfaces.compat.gilby125 import guests, hardware, markdown, queries

SYSTEM = System(
    "gilby125",
    load_tools("gilby125", queries.RECIPES, guests.RECIPES, hardware.RECIPES),
    opt_in=ELEVATED_VARIABLE,
    error=markdown.error,
)
