"""solomonneas/proxmox-mcp: 42 tools; writes require `confirm`, destructive ones an opt-in of the operator as well."""

from quorate.surfaces.compat.declaration import System, load_tools
from quorate.surfaces.compat.gates import DESTRUCTIVE_VARIABLE
from quorate.surfaces.compat.solomonneas import answers, guests, inside, queries, smoke

SYSTEM = System(
    "solomonneas",
    load_tools("solomonneas", queries.RECIPES, smoke.RECIPES, guests.RECIPES, inside.RECIPES),
    opt_in=DESTRUCTIVE_VARIABLE,
    arguments={"stop": "force"},
    error=answers.error,
)
