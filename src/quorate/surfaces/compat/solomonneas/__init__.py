"""solomonneas/proxmox-mcp: 42 tools; writes require `confirm`, destructive ones an opt-in of the operator as well."""

from quorate.surfaces.compat.declaration import load_system
from quorate.surfaces.compat.solomonneas import answers, guests, inside, queries, smoke

SYSTEM = load_system("solomonneas", queries.RECIPES, smoke.RECIPES, guests.RECIPES, inside.RECIPES, error=answers.error)
