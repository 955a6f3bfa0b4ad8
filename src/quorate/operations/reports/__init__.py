"""Health and capacity reports."""
