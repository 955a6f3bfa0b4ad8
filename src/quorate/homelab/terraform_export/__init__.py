"""Exports guests to Terraform or OpenTofu: their configuration as resources of the provider bpg/proxmox."""
