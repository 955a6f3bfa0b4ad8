"""Containers on plain hosts."""
