"""The operator's console: pages for people, rendered here, live by server-sent events."""
