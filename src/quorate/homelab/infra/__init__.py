"""Infrastructure documents: what is requested, what exists, what was done."""
