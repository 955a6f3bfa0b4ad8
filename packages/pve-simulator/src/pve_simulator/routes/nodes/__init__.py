"""Endpoints below /nodes/{node}."""
