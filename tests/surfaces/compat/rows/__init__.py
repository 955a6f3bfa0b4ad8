"""What five other Proxmox servers offer, row by row, and the native call that does the same here."""
