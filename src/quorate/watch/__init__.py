"""Watching clusters and hosts: facts are read in cycles, judged, kept as findings and reported on channels."""
