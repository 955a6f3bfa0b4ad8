"""Community scripts for Proxmox VE: an index of them, their text, and how one is run without questions."""
