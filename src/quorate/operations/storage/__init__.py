"""Storages and the volumes on them."""
