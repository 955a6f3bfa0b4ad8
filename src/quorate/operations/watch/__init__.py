"""Findings of the watch, and what has changed."""
