"""gilby125/mcp-proxmox: 55 tools that answer in markdown; all but a few reads require an opt-in of the operator."""

from quorate.surfaces.compat.declaration import load_system
from quorate.surfaces.compat.gilby125 import guests, hardware, markdown, queries

SYSTEM = load_system("gilby125", queries.RECIPES, guests.RECIPES, hardware.RECIPES, error=markdown.error)
