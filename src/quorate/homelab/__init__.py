"""What stands around the clusters: plain hosts, what runs on them, and the map of it all."""
