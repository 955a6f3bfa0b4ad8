"""Services from the catalog."""
