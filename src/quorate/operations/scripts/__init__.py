"""Community scripts for Proxmox VE."""
