"""bsahane/mcp-proxmox: 53 tools; most changes require `confirm` and take `dry_run`, `wait` and `timeout`."""

from quorate.surfaces.compat.bsahane import configuration, queries, recipes
from quorate.surfaces.compat.declaration import System, load_tools

SYSTEM = System(
    "bsahane",
    load_tools("bsahane", queries.RECIPES, recipes.RECIPES, configuration.RECIPES),
    arguments={"overwrite": "force"},
)
