"""The endpoints of a Proxmox Backup Server, in files named after their path."""
