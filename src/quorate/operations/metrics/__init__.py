"""History of load as numbers and charts."""
