"""Commands on other machines over SSH. Knows nothing of Proxmox VE."""
