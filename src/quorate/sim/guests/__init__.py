"""Virtual machines and containers."""
