"""The operator's console in the browser."""
