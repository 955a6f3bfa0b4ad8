"""Deterministic simulation: servers and cluster on one seeded clock, where anything may fail at any await."""
