"""The devices of the homelab over time: sightings, identities and the history of changes."""
