"""Many clients at once, and several replicas on one database: real processes, real time. Run by `make load`."""
