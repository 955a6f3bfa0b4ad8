"""The HTTPS server: requests pass PVE's checks in PVE's order."""
