"""A simulated Proxmox Backup Server."""
