"""Drop-in surfaces: the tools of other Proxmox servers, by their names and parameters, over our own operations."""

from __future__ import annotations

import importlib

from quorate.config import ConfigError
from quorate.surfaces.compat.declaration import System

SYSTEMS = ("brynnjocelyn", "bsahane", "gilby125", "solomonneas", "washyu")


def system(name: str) -> System:
    """Import and return one system; the others are not loaded."""
    if name not in SYSTEMS:
        raise ConfigError(f"There is no surface {name!r}: choose from native, lean, {', '.join(SYSTEMS)}.")
    declared: System = importlib.import_module(f"quorate.surfaces.compat.{name}").SYSTEM
    return declared
