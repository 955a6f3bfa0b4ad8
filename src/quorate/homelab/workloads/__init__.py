"""Containers on machines: Docker, Podman, LXD and Incus, through their own APIs."""
