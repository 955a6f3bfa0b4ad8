"""An administration account on a host: its key, its rights, what was made for it, and taking it away again."""
