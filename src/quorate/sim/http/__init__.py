"""The HTTPS front: requests pass PVE's checks in PVE's order."""
