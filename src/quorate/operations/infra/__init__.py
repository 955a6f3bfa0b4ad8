"""Infrastructure plans."""
