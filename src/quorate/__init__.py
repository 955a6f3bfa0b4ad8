"""Quorate: an MCP server for Proxmox VE clusters and the homelab around them."""

__version__ = "0.2.0"
