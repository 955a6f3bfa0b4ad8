"""High availability and replication."""
