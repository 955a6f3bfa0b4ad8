"""The devices of the homelab over time: what was seen of each, their identity, and what has changed."""
