"""Endpoints below /cluster."""
