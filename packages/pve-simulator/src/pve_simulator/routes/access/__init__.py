"""Endpoints below /access."""
