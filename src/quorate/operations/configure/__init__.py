"""Disks, networks and cloud-init of guests."""
