"""The administration account on a host: its key, its privileges, what was created for it, and its removal."""
