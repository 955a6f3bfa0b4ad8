"""Commands on other machines over SSH. Independent of Proxmox VE."""
