"""Backups, restore, backup jobs."""
