"""The whole PVE API."""
