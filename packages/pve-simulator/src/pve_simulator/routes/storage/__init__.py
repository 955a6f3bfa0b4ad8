"""Endpoints below /storage and /nodes/{node}/storage."""
