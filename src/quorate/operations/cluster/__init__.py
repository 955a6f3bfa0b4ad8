"""The cluster and its nodes."""
