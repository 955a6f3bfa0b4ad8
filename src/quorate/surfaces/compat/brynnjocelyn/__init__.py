"""brynnjocelyn/proxmox-mcp-server: 29 tools without a gate of their own; answers are JSON."""

from quorate.surfaces.compat.brynnjocelyn import recipes
from quorate.surfaces.compat.declaration import load_system

SYSTEM = load_system("brynnjocelyn", recipes.RECIPES)
