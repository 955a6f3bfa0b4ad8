"""Services from the catalogue."""
