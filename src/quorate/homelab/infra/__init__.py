"""Infrastructure plans: what is wanted, what is there, what was done."""
