"""The Proxmox VE API as data: endpoints, parameters, permissions, and PVE's own parameter checks.

Start with `pve_schema.schema.facts(version)`.
"""

__version__ = "0.1.0"
