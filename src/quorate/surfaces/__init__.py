"""The ways in which operations are shown to a caller."""
