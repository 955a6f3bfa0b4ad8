"""Nodes: tasks, disks, networks, services, packages, logs."""
