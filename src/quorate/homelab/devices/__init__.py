"""The devices of the homelab over time: what was seen of each, which is which, and what has changed."""
