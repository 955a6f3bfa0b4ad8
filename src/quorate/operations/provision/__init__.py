"""Creating, cloning, migrating and deleting guests."""
