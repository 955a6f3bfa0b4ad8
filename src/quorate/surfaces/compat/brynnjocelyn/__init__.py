"""brynnjocelyn/proxmox-mcp-server: 29 tools without a gate of their own; answers are JSON."""

from quorate.surfaces.compat.brynnjocelyn import recipes
from quorate.surfaces.compat.declaration import System, load_tools

SYSTEM = System(
    "brynnjocelyn",
    load_tools("brynnjocelyn", recipes.RECIPES),
    arguments={"overwrite": "force"},
)
