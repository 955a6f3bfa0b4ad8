"""Durable runs: each kind derives its next step from what PVE shows now and what the run remembers."""
