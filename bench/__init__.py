"""Measurements: speed as ratios against a baseline in the same run, sizes in bytes, upstream requests by count."""
