"""Devices on the network: finding them, the map of them, what has changed, what deserves attention."""
