"""Community scripts for Proxmox VE: their index, their text, and running one without questions."""
