"""bsahane/mcp-proxmox: 53 tools; most changes require `confirm` and take `dry_run`, `wait` and `timeout`."""

from quorate.surfaces.compat.bsahane import configuration, queries, recipes
from quorate.surfaces.compat.declaration import load_system

SYSTEM = load_system("bsahane", queries.RECIPES, recipes.RECIPES, configuration.RECIPES)
