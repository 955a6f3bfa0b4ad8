"""Storages, volumes and backups."""
