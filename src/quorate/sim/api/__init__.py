"""The implemented endpoints, one module per domain. Every module here is imported by itself; see `routing`."""
