"""Containers on machines: Docker, Podman, LXD and Incus, by their own APIs."""
