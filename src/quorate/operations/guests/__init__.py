"""Finding guests, switching them on and off, changing their options."""
