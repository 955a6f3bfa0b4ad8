"""The administration account on a host: its key, its rights, what was created for it, and its removal."""
