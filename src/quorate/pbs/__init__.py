"""Proxmox Backup Servers: their API, backups and tasks."""
