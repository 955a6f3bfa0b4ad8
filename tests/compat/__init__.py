"""The drop-in surfaces: listed as documented, every tool run, every gate tried."""
