"""The homelab around the clusters: plain hosts, what runs on them, and the network map."""
