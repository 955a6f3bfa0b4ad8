"""Devices on the network: discovery, the map, changes, and what needs attention."""
